# Provisioning of a builder that gpu-ami has launched, because Packer cannot ask for its capacity: a Spot Instance, a reservation
# by its id, a Capacity Block. The null builder makes no image; the manifest hands name and tags of the image over to gpu-ami.
# Provisioner and manifest are those of the directory above, variables and source are links to it. For every Packer from 1.6.6 on.

variable "ssh_host" {
  type        = string
  description = "Address of the builder."
}

variable "ssh_private_key_file" {
  type        = string
  description = "Private key of the builder's login user."
}

source "null" "launched" {
  communicator                 = "ssh"
  ssh_host                     = var.ssh_host
  ssh_port                     = var.ssh_port
  ssh_username                 = var.ssh_username
  ssh_private_key_file         = var.ssh_private_key_file
  ssh_timeout                  = var.ssh_timeout
  ssh_bastion_host             = var.ssh_bastion_host
  ssh_bastion_port             = var.ssh_bastion_host != "" ? var.ssh_bastion_port : null
  ssh_bastion_username         = var.ssh_bastion_username
  ssh_bastion_private_key_file = var.ssh_bastion_key_file
  ssh_bastion_agent_auth       = var.ssh_bastion_host != "" && var.ssh_bastion_key_file == ""
}

build {
  sources = ["source.null.launched"]

  provisioner "ansible" {
    command       = var.ansible_command
    playbook_file = "${path.root}/../../playbooks/image.yml"
    user          = var.ssh_username
    use_proxy     = false
    # Otherwise twice a build, and the inventory's form depends on what it finds.
    skip_version_check      = var.skip_ansible_check
    inventory_file_template = "{{ .HostAlias }} ansible_host={{ .Host }} ansible_user={{ .User }} ansible_port={{ .Port }}\n"
    # ansible.cfg sets pipelining, connection reuse and the path of the roles.
    ansible_env_vars = concat(["ANSIBLE_CONFIG=${abspath("${path.root}/../../ansible.cfg")}"], var.ansible_env_vars)
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
      image_name  = local.image_name
      image_tags  = jsonencode(local.image_tags)
    }
  }
}
