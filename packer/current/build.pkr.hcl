# The build for Packer 1.7 and later: `packer init packer/current` installs pinned plugins, and the calls that create builder
# and image require IMDSv2. Packer 1.6.6 does not support these options; gpu-ami then sets IMDSv2 through the API. Variables
# and source are links to the files of the directory above.

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

variable "environment_endpoint" {
  type        = string
  description = "AWS_ENDPOINT_URL of Packer's environment; not to be set."
  default     = env("AWS_ENDPOINT_URL")
}

locals {
  # The plugin ignores custom_endpoint_ec2 in calls after the image is made (GetRegionConn, amazon 1.8.2), and asks AWS; it reads
  # AWS_ENDPOINT_URL for all of them. A variable's validation sees that variable alone, hence file(): its error prints its argument.
  require_endpoint = contains(["", var.environment_endpoint], var.custom_endpoint) ? "" : file("AWS_ENDPOINT_URL in the environment: expected the value of custom_endpoint; run the export command that gpu-ami region up prints, then Packer again")
}

build {
  source "amazon-ebs.image" {
    imds_support            = "v2.0"
    temporary_key_pair_type = "ed25519"

    # "open" is EC2's default, and Packer 1.6's; the plugin's own is "none". There is no capacity_reservation_id: with it the
    # plugin (amazon 1.8.2, StepRunSourceInstance) ends in a nil pointer dereference.
    capacity_reservation_preference = "open"
    spot_price                      = var.spot_price
    spot_tags                       = var.spot_price == "" ? null : local.builder_tags

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
    }
  }
}
