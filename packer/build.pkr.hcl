# Provisioning of the builder, for Packer 1.6.6 and later. For Packer 1.7 and later use current/, which adds pinned plugins and
# IMDSv2; the provisioner and the manifest are the same.

locals {
  # A variable's validation is the same in both builds, hence file(): its error prints its argument.
  require_on_demand = var.spot_price == "" ? "" : file("spot_price needs Packer 1.7 or later and the template packer/current, or leave it empty")
}

build {
  sources = ["source.amazon-ebs.image"]

  provisioner "ansible" {
    command       = var.ansible_command
    playbook_file = "${path.root}/../playbooks/image.yml"
    user          = var.ssh_username
    use_proxy     = false
    # Otherwise twice a build, and the inventory's form depends on what it finds.
    skip_version_check      = var.skip_ansible_check
    inventory_file_template = "{{ .HostAlias }} ansible_host={{ .Host }} ansible_user={{ .User }} ansible_port={{ .Port }}\n"
    # ansible.cfg sets pipelining, connection reuse and the path of the roles.
    ansible_env_vars = concat(["ANSIBLE_CONFIG=${abspath("${path.root}/../ansible.cfg")}"], var.ansible_env_vars)
    extra_arguments = [
      "--extra-vars", "@${abspath(var.ansible_vars_file)}",
      "--extra-vars", "gpu_ami_build_folder=${dirname(abspath(var.ansible_vars_file))}",
      # The last --extra-vars win: the roles that are left to run where source_ami is a layer image, or those of a layer.
      "--extra-vars", jsonencode(merge({ gpu_ami_layer = var.layer }, { for name, roles in { gpu_ami_roles = var.roles } : name => roles if length(roles) > 0 })),
    ]
  }

  post-processor "manifest" {
    output     = var.manifest_file
    strip_path = true
    custom_data = {
      recipe      = var.recipe
      plan_digest = var.plan_digest
      run_id      = local.run_id
    }
  }
}
