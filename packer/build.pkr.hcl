# How the builder becomes the image, for any Packer from 1.6.6 on. Packer 1.7 and later can do more: see current/, which
# differs from this file in its head alone.

build {
  sources = ["source.amazon-ebs.image"]

  provisioner "ansible" {
    command       = var.ansible_command
    playbook_file = "${path.root}/../playbooks/image.yml"
    user          = var.ssh_username
    use_proxy     = false
    # Pipes and the connection's reuse instead of a copy a task; roles and everything else are found through this file.
    ansible_env_vars = concat(["ANSIBLE_CONFIG=${abspath("${path.root}/../ansible.cfg")}"], var.ansible_env_vars)
    extra_arguments  = ["--extra-vars", "@${abspath(var.ansible_vars_file)}"]
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
