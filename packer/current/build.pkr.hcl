# The same build for Packer 1.7 and later: plugins are pinned and come with `packer init packer/current`, and IMDSv2 is
# required of builder and image by the calls that make them. Packer 1.6.6 does not know these words; there the driver asks
# for IMDSv2 afterwards, through the API. Variables and source are the very same files.

packer {
  required_version = ">= 1.7.0"

  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = "~> 1.8"
    }
    ansible = {
      source  = "github.com/hashicorp/ansible"
      version = "~> 1.1"
    }
  }
}

build {
  source "amazon-ebs.image" {
    imds_support            = "v2.0"
    temporary_key_pair_type = "ed25519"

    metadata_options {
      http_endpoint               = "enabled"
      http_tokens                 = "required"
      http_put_response_hop_limit = 1
    }
  }

  provisioner "ansible" {
    command       = var.ansible_command
    playbook_file = "${path.root}/../../playbooks/image.yml"
    user          = var.ssh_username
    use_proxy     = false
    # Pipes and the connection's reuse instead of a copy a task; roles and everything else are found through this file.
    ansible_env_vars = concat(["ANSIBLE_CONFIG=${abspath("${path.root}/../../ansible.cfg")}"], var.ansible_env_vars)
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
