// An ordinary template of a team that knows nothing of gpu-ami: a builder, shell scripts, a manifest.

variable "endpoint" { type = string }
variable "source_ami" { type = string }
variable "subnet_id" { type = string }
variable "security_group_id" { type = string }
variable "mirror" { type = string }
variable "kind" { type = string }
variable "scripts" { type = list(string) }
variable "manifest" { type = string }
variable "run_tags" {
  type    = map(string)
  default = {}
}

source "amazon-ebs" "image" {
  region                     = "us-east-1"
  custom_endpoint_ec2        = var.endpoint
  access_key                 = "gpu-ami-local"
  secret_key                 = "gpu-ami-local"
  skip_credential_validation = true
  skip_metadata_api_check    = true

  ami_name                  = "team-gpu-debian-12-${var.kind}-{{timestamp}}"
  source_ami                = var.source_ami
  instance_type             = "g5.xlarge"
  subnet_id                 = var.subnet_id
  security_group_ids        = [var.security_group_id]
  run_tags                  = var.run_tags
  communicator              = "ssh"
  ssh_username              = "admin"
  ssh_interface             = "private_ip"
  ssh_port                  = 2222
  ssh_clear_authorized_keys = true
}

build {
  sources = ["source.amazon-ebs.image"]

  provisioner "shell" {
    execute_command  = "chmod +x {{ .Path }}; sudo env {{ .Vars }} {{ .Path }}"
    environment_vars = ["MIRROR=${var.mirror}", "KIND=${var.kind}"]
    scripts          = var.scripts
  }

  post-processor "manifest" {
    output = var.manifest
  }
}
