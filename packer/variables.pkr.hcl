# Input variables of the template. gpu-ami writes them from the plan (out/<image>/packer.pkrvars.json) and adds the values of
# a run (run_id, expires, manifest_file, ansible_env_vars), which a run by hand can leave out.
# Packer 1.6 has no regex(): a value matches a pattern if regex_replace() with it leaves an empty string.

# --- Image --------------------------------------------------------------------------------------------------

variable "flag" {
  type        = string
  description = "Name of the image in the AMI's name: gpu-ami_<flag>_<driver version>-<timestamp>."

  validation {
    condition     = var.flag != "" && regex_replace(var.flag, "^[a-z0-9][a-z0-9.-]{0,63}$", "") == ""
    error_message = "The flag must be 1 to 64 lower-case letters, digits, dots and hyphens, as in \"debian12-gpu\"."
  }
}

variable "recipe" {
  type        = string
  description = "Name of the recipe; a tag of every created resource."
  default     = "by-hand"
}

variable "plan_digest" {
  type        = string
  description = "Digest of the plan (sha256:<64 hex digits>); a tag of every created resource."
  default     = ""

  validation {
    condition     = regex_replace(var.plan_digest, "^sha256:[0-9a-f]{64}$", "") == ""
    error_message = "The plan's digest must have the form sha256:<64 hex digits>."
  }
}

variable "architecture" {
  type        = string
  description = "Architecture of the source AMI, as EC2 names it."
  default     = "x86_64"

  validation {
    condition     = contains(["x86_64", "arm64"], var.architecture)
    error_message = "The architecture must be x86_64 or arm64."
  }
}

variable "source_ami" {
  type        = string
  description = "Id of the source AMI. Empty: the newest AMI of source_ami_owner whose name matches source_ami_name."
  default     = ""

  validation {
    condition     = regex_replace(var.source_ami, "^ami-[0-9a-f]{8,17}$", "") == ""
    error_message = "The source AMI must be an AMI id (ami-…), or empty."
  }
}

variable "source_ami_owner" {
  type        = string
  description = "Account id or alias (amazon, self) that owns the source AMI, where source_ami is empty."
  default     = ""
}

variable "source_ami_name" {
  type        = string
  description = "Name pattern of the source AMI (* and ? match), where source_ami is empty."
  default     = ""
}

# Recorded as tags of the AMI. The installed versions come from ansible_vars_file, which is written from the same plan.

variable "nvidia_version" {
  type        = string
  description = "NVIDIA driver version; part of the AMI's name. Empty: the image has no NVIDIA driver."
  default     = ""
}

variable "cuda_version" {
  type        = string
  description = "CUDA toolkit version of the plan."
  default     = ""
}

variable "cudnn_version" {
  type        = string
  description = "cuDNN version of the plan."
  default     = ""
}

variable "nccl_version" {
  type        = string
  description = "NCCL version of the plan."
  default     = ""
}

variable "efa_version" {
  type        = string
  description = "EFA installer version of the plan."
  default     = ""
}

variable "intel_mkl_version" {
  type        = string
  description = "Intel MKL version of the plan."
  default     = ""
}

# --- Builder ----------------------------------------------------------------------------------------------

variable "region" {
  type        = string
  description = "AWS region of the build."

  validation {
    condition     = var.region != "" && regex_replace(var.region, "^[a-z]{2}(-[a-z]+)+-[0-9]$", "") == ""
    error_message = "The region must be an AWS region's name, as in \"us-east-1\"."
  }
}

variable "profile" {
  type        = string
  description = "Profile of the AWS configuration files. Empty: the environment's credentials, or the default profile."
  default     = ""
}

variable "custom_endpoint" {
  type        = string
  description = "URL of an EC2 API other than AWS's. Empty: AWS."
  default     = ""

  validation {
    condition     = regex_replace(var.custom_endpoint, "[.]invalid$", "") == var.custom_endpoint
    error_message = "The plan is for the local region, which was not up when the plan was written: run \"gpu-ami region up --plan OUT/plan.json\", which writes the region's address into this file."
  }
}

variable "access_key" {
  type        = string
  description = "Access key for custom_endpoint, with secret_key. Empty: the environment's credentials, or those of the profile."
  default     = ""
}

variable "secret_key" {
  type        = string
  description = "Secret key of access_key. The local region's is public; AWS's is refused, because this file is not secret."
  default     = ""

  validation {
    condition     = length(var.secret_key) < 40
    error_message = "An AWS secret key must not be in a var-file: use the environment or a profile."
  }
}

variable "instance_type" {
  type        = string
  description = "Instance type of the builder."
}

variable "spot_price" {
  type        = string
  description = "Highest price in USD an hour at which the builder is a Spot Instance; \"auto\": the On-Demand price. Empty: On-Demand. Needs Packer 1.7 or later."
  default     = ""

  validation {
    condition     = var.spot_price == "auto" || regex_replace(var.spot_price, "^[0-9]+([.][0-9]+)?$", "") == ""
    error_message = "The Spot price must be a price in USD, as in \"1.25\", \"auto\", or empty."
  }
}

variable "subnet_id" {
  type        = string
  description = "Subnet of the builder. Empty: a subnet of the default VPC."
  default     = ""
}

variable "security_group_ids" {
  type        = list(string)
  description = "Security groups of the builder. Empty: Packer creates a temporary one that allows SSH."
  default     = []
}

variable "instance_profile" {
  type        = string
  description = "Instance profile of the builder. Empty: none."
  default     = ""
}

variable "kms_key_id" {
  type        = string
  description = "KMS key (id, alias or ARN) that encrypts the root volume and the snapshot. Empty: the account's default key for EBS."
  default     = ""
}

variable "root_device_name" {
  type        = string
  description = "Name of the source AMI's root device: /dev/xvda on Debian and Amazon Linux, /dev/sda1 on Ubuntu and RHEL."
  default     = "/dev/xvda"
}

variable "root_volume_gib" {
  type        = number
  description = "Size of the root volume in GiB."
  default     = 16

  validation {
    condition     = var.root_volume_gib >= 1 && var.root_volume_gib <= 16384
    error_message = "The root volume must have 1 to 16384 GiB."
  }
}

variable "ssh_username" {
  type        = string
  description = "The source AMI's login user: admin on Debian, ubuntu on Ubuntu, ec2-user on Amazon Linux."
}

variable "ssh_bastion_host" {
  type        = string
  description = "Jump host to the builder; empty for none."
  default     = ""

  validation {
    condition     = regex_replace(var.ssh_bastion_host, "^[A-Za-z0-9][A-Za-z0-9._-]*$", "") == ""
    error_message = "The jump host must be a name or an address."
  }
}

variable "ssh_bastion_port" {
  type        = number
  description = "Port of the jump host."
  default     = 22

  validation {
    condition     = var.ssh_bastion_port >= 1 && var.ssh_bastion_port <= 65535
    error_message = "The port of the jump host must be between 1 and 65535."
  }
}

variable "ssh_bastion_username" {
  type        = string
  description = "User on the jump host."
  default     = ""
}

variable "ssh_bastion_key_file" {
  type        = string
  description = "Private key for the jump host; empty for the keys of the SSH agent."
  default     = ""
}

variable "ssh_interface" {
  type        = string
  description = "Address through which Packer connects to the builder. Empty: the public address if there is one, else the private one."
  default     = ""

  validation {
    condition     = contains(["", "public_ip", "private_ip", "public_dns", "private_dns", "session_manager"], var.ssh_interface)
    error_message = "The ssh_interface must be empty, public_ip, private_ip, public_dns, private_dns or session_manager."
  }
}

variable "ssh_port" {
  type        = number
  description = "Port of the builder's sshd."
  default     = 22
}

variable "ssh_timeout" {
  type        = string
  description = "Time limit for the first SSH connection, as in \"10m\"."
  default     = "10m"
}

# --- Provisioning ------------------------------------------------------------------------------------------

variable "ansible_vars_file" {
  type        = string
  description = "File with the Ansible variables of the plan (out/<image>/ansible.json)."
}

variable "ansible_command" {
  type        = string
  description = "Path or name of the ansible-playbook program."
  default     = "ansible-playbook"
}

variable "skip_ansible_check" {
  type        = bool
  description = "Launch the builder without running ansible-playbook --version before. For callers that have found the program themselves."
  default     = false
}

variable "ansible_env_vars" {
  type        = list(string)
  description = "Further environment variables of ansible-playbook, as NAME=value."
  default     = []
}

variable "roles" {
  type        = list(string)
  description = "Roles to run, hygiene last: those that a layer image as source_ami does not have yet. Empty: all roles of the plan."
  default     = []

  validation {
    condition     = length(var.roles) == 0 || contains(var.roles, "hygiene")
    error_message = "The roles must end with hygiene, which removes the builder's keys and logs."
  }
}

variable "layer" {
  type        = string
  description = "Name of the layer image to make (docs/layers.md). Empty: the image of the plan."
  default     = ""

  validation {
    condition     = regex_replace(var.layer, "^[a-z][a-z0-9_]{0,31}$", "") == ""
    error_message = "The layer must be a name of variables/layers.yml, or empty."
  }
}

variable "layer_digest" {
  type        = string
  description = "Digest of the layer to make (sha256:<64 hex digits>); a tag by which later builds find it."
  default     = ""

  validation {
    condition     = regex_replace(var.layer_digest, "^sha256:[0-9a-f]{64}$", "") == ""
    error_message = "The layer's digest must have the form sha256:<64 hex digits>."
  }
}

# --- Run --------------------------------------------------------------------------------------------------------

variable "run_id" {
  type        = string
  description = "Id of this run: a tag of every created resource, and part of the temporary key pair's name. Empty: by-hand-<timestamp>."
  default     = ""

  validation {
    condition     = regex_replace(var.run_id, "^[A-Za-z0-9._-]{1,64}$", "") == ""
    error_message = "The run id must be at most 64 letters, digits, dots, underscores and hyphens."
  }
}

variable "key_pair_name" {
  type        = string
  description = "Name of the builder's temporary key pair. Empty: gpu-ami-<run id>-builder."
  default     = ""
}

variable "expires" {
  type        = string
  description = "Time after which the builder is a leftover that gpu-ami sweep removes (RFC 3339, UTC). Empty: builder_lifetime_minutes from now."
  default     = ""

  validation {
    condition     = var.expires == "" || can(formatdate("YYYY", var.expires))
    error_message = "The expiry must be an RFC 3339 time, as in \"2030-01-31T12:00:00Z\"."
  }
}

variable "image_expires" {
  type        = string
  description = "Time after which gpu-ami sweep removes the AMI and its snapshots (RFC 3339, UTC). Empty: never."
  default     = ""

  validation {
    condition     = var.image_expires == "" || can(formatdate("YYYY", var.image_expires))
    error_message = "The image's expiry must be an RFC 3339 time, as in \"2030-01-31T12:00:00Z\"."
  }
}

variable "builder_tags" {
  type        = map(string)
  description = "Further tags of the builder."
  default     = {}
}

variable "builder_lifetime_minutes" {
  type        = number
  description = "Time in minutes after which the builder powers off and is terminated, even if Packer no longer runs."
  default     = 180
}

variable "tags" {
  type        = map(string)
  description = "Further tags of every created resource, as in aws.yml."
  default     = {}
}

variable "image_tags" {
  type        = map(string)
  description = "Further tags of the image and its snapshots, which the services that use it read. A layer image has none of them."
  default     = {}
}

variable "manifest_file" {
  type        = string
  description = "Path of the manifest (JSON) that Packer writes."
  default     = "packer-manifest.json"
}
