# The builder and its image. Every Packer release from 1.6.6 on supports the options in this file.

locals {
  started = timestamp()
  run_id  = var.run_id != "" ? var.run_id : "by-hand-${formatdate("YYYYMMDDhhmmss", local.started)}"
  expires = var.expires != "" ? var.expires : timeadd(local.started, "${var.builder_lifetime_minutes}m")

  image_name = join("-", [
    join("_", compact(var.layer == "" ? ["gpu-ami", var.flag, var.nvidia_version] : ["gpu-ami-layer", var.layer, var.flag])),
    formatdate("YYYYMMDDhhmmss", local.started),
  ])

  # Components that the plan does not have get no tag. A layer image is of no single recipe or plan, and has no versions of one.
  origin_tags = merge(var.tags, { for key, value in {
    "gpu-ami:run"          = local.run_id
    "gpu-ami:recipe"       = var.layer == "" ? var.recipe : ""
    "gpu-ami:plan"         = var.layer == "" ? var.plan_digest : ""
    "gpu-ami:layer"        = var.layer
    "gpu-ami:layer-digest" = var.layer_digest
  } : key => value if value != "" })

  builder_tags = merge(local.origin_tags, var.builder_tags, {
    "Name"            = "gpu-ami ${var.recipe} ${local.run_id} builder"
    "gpu-ami:expires" = local.expires
  })

  # From Packer 1.7 on, CreateImage sets the builder's tags, and these replace them when the image is complete: an incomplete
  # image expires, a complete one does not ("never" is not a time).
  image_tags = merge(local.origin_tags, { for key, value in var.image_tags : key => value if var.layer == "" }, { for key, value in {
    "Name"              = local.image_name
    "gpu-ami:expires"   = var.image_expires != "" ? var.image_expires : "never"
    "nvidia_version"    = var.nvidia_version
    "cuda_version"      = var.cuda_version
    "cudnn_version"     = var.cudnn_version
    "nccl_version"      = var.nccl_version
    "efa_version"       = var.efa_version
    "intel_mkl_version" = var.intel_mkl_version
  } : key => value if value != "" && (var.layer == "" || contains(["Name", "gpu-ami:expires"], key)) })
}

source "amazon-ebs" "image" {
  region              = var.region
  profile             = var.profile
  custom_endpoint_ec2 = var.custom_endpoint
  access_key          = var.access_key
  secret_key          = var.secret_key
  # Other endpoints have no STS, and the host that runs Packer has no metadata service.
  skip_credential_validation = var.custom_endpoint != ""
  skip_metadata_api_check    = var.custom_endpoint != ""
  # AWS throttles Packer's polls; three retries, the SDK's default, end a build of an hour.
  max_retries = 10

  # The image.
  # No ami_description: Packer 1.6.6 sets it before it tags the image, and the caller's policy allows changes of tagged images
  # alone. gpu-ami sets it afterwards.
  ami_name      = local.image_name
  ena_support   = var.spot_price == "" ? true : null # a Spot Instance has its source AMI's, and cannot be modified
  tags          = local.image_tags
  snapshot_tags = local.image_tags

  # The builder.
  instance_type               = var.instance_type
  source_ami                  = var.source_ami
  subnet_id                   = var.subnet_id
  security_group_ids          = var.security_group_ids
  iam_instance_profile        = var.instance_profile
  associate_public_ip_address = contains(["public_ip", "public_dns"], var.ssh_interface) && var.subnet_id != "" ? true : null
  run_tags                    = local.builder_tags
  run_volume_tags             = local.builder_tags
  shutdown_behavior           = "terminate"
  # Terminates the builder if Packer is killed. A transient unit leaves no file in the image.
  user_data = <<-SCRIPT
    #!/bin/sh
    systemd-run --quiet --unit=gpu-ami-dead-man --on-active=${var.builder_lifetime_minutes}m systemctl poweroff
  SCRIPT

  dynamic "source_ami_filter" {
    for_each = var.source_ami == "" ? [var.source_ami_owner] : []

    content {
      most_recent = true
      owners      = [source_ami_filter.value]
      filters = {
        name                = var.source_ami_name
        architecture        = var.architecture
        root-device-type    = "ebs"
        virtualization-type = "hvm"
      }
    }
  }

  # The volume is encrypted from the start, and so is its snapshot: encrypt_boot, which copies the image, is not needed.
  launch_block_device_mappings {
    device_name           = var.root_device_name
    volume_type           = "gp3"
    volume_size           = var.root_volume_gib
    iops                  = 3000 # baseline of gp3; Packer 1.6 requires both values
    throughput            = 125
    encrypted             = true
    kms_key_id            = var.kms_key_id
    delete_on_termination = true
  }

  communicator  = "ssh"
  ssh_username  = var.ssh_username
  ssh_interface = var.ssh_interface
  ssh_port      = var.ssh_port
  ssh_timeout   = var.ssh_timeout
  # A jump host; without a key file Packer takes the keys of the SSH agent.
  ssh_bastion_host             = var.ssh_bastion_host
  ssh_bastion_port             = var.ssh_bastion_host != "" ? var.ssh_bastion_port : null
  ssh_bastion_username         = var.ssh_bastion_username
  ssh_bastion_private_key_file = var.ssh_bastion_key_file
  ssh_bastion_agent_auth       = var.ssh_bastion_host != "" && var.ssh_bastion_key_file == ""
  ssh_clear_authorized_keys    = true
  temporary_key_pair_name      = var.key_pair_name != "" ? var.key_pair_name : "gpu-ami-${local.run_id}-builder"
}
