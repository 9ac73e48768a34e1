"""HCL2 templates become recipes as far as builders, variables, locals and provisioners go."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.importer import import_template
from gpu_ami.importer.template import read_template
from gpu_ami.recipes.facts.tables import load_facts

FACTS = load_facts()
TEMPLATE = """
packer {
  required_plugins { amazon = { source = "github.com/hashicorp/amazon", version = "~> 1" } }
}
variable "instance_type" {
  type    = string
  default = "p5.48xlarge"
}
variable "nvidia_driver_major_version" { default = "580" }
variable "disk" { type = number }
variable "unset" { type = string }
locals {
  name = "gpu-${lower("BASE")}"
  ami  = coalesce("", "${local.name}-1")
}
data "amazon-ami" "x" { owners = ["self"] }
source "amazon-ebs" "gpu" {
  ami_name        = local.ami
  ami_description = "Image of ${local.name}"
  instance_type   = var.instance_type
  region          = "eu-west-1"
  ssh_username    = "ubuntu"
  subnet_id       = null
  source_ami_filter {
    filters     = { name = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-*", architecture = "x86_64" }
    owners      = ["099720109477"]
    most_recent = true
  }
  launch_block_device_mappings {
    device_name = "/dev/sdf"
    volume_size = 900
  }
  launch_block_device_mappings {
    device_name = "/dev/sda1"
    volume_size = var.disk
    volume_type = "gp3"
  }
  user_data = templatefile("user.tpl", {})
}
source "amazon-ebs" "other" { instance_type = "t3.micro" }
build {
  sources = ["source.amazon-ebs.gpu"]
  provisioner "shell" { script = "install.sh" }
  provisioner "ansible" { playbook_file = "site.yml" }
  post-processors {
    post-processor "manifest" {}
  }
}
build {
  sources = ["source.amazon-ebs.other"]
  provisioner "shell" { script = "other.sh" }
}
"""


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "base.pkr.hcl"
    path.write_text(TEMPLATE)
    return path


def values(folder: Path, text: str = "disk = 120\n") -> Path:
    path = folder / "x.pkrvars.hcl"
    path.write_text(text)
    return path


def test_builders_variables_and_locals_are_read(template: Path) -> None:
    imported = import_template(template, FACTS, [values(template.parent)])
    recipe = imported.recipe
    assert (recipe["os"], recipe["instance_types"]) == ("ubuntu2204", ["p5.48xlarge"])
    assert recipe["nvidia_driver"] == {"version": "580"}
    assert recipe["build"] == {"instance_type": "p5.48xlarge", "root_volume_gib": 120}
    assert recipe["description"] == "Image of gpu-base"
    assert recipe["source_ami"] == {
        "owner": "099720109477",
        "name": "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-*",
    }
    assert imported.place == {"region": "eu-west-1"}


@pytest.mark.parametrize(
    "line",
    [
        "unset: without a value here",
        "source.amazon-ebs.gpu.user_data: the function templatefile is not understood",
        "data.amazon-ami.x: a block that is not carried over",
        "builders[0].user_data: not carried over",
        'builders[0].launch_block_device_mappings[0]: \'{"device_name": "/dev/sdf", "volume_size": 900}\' is not',
        "builders[0].launch_block_device_mappings[1].volume_type: 'gp3'",
        "builders[1]: 'amazon-ebs' is not carried over: gpu-ami builds with one amazon-ebs builder; --only",
        "provisioners[0] (shell) 'install.sh'",
        "provisioners[1] (ansible) 'site.yml': not carried over: gpu-ami's roles replace it",
        "post-processors[0] (manifest)",
    ],
)
def test_what_is_left_is_listed(line: str, template: Path) -> None:
    remarks = import_template(template, FACTS, [values(template.parent)]).remarks
    assert [remark for remark in remarks if remark.startswith(line)], remarks
    assert not [remark for remark in remarks if "other.sh" in remark]


def test_folder_is_read_with_its_automatic_variables(template: Path) -> None:
    (template.parent / "a.auto.pkrvars.hcl").write_text('disk = 77\ninstance_type = "g6.xlarge"\n')
    recipe = import_template(template.parent, FACTS, [], "gpu").recipe
    assert recipe["build"] == {"instance_type": "g6.xlarge", "root_volume_gib": 77}
    chosen = read_template(template.parent, only="amazon-ebs.other")
    assert [step["script"] for step in chosen.provisioners] == ["other.sh"]


def test_declarations_of_the_files_beside_are_read(tmp_path: Path) -> None:
    (tmp_path / "variables.pkr.hcl").write_text('variable "kind" { default = "g5.xlarge" }\n')
    (tmp_path / "builds.pkr.hcl").write_text(
        'build {\n  sources = ["source.amazon-ebs.x"]\n  provisioner "shell" { script = "a.sh" }\n}\n'
    )
    path = tmp_path / "x.pkr.hcl"
    path.write_text('source "amazon-ebs" "x" {\n  instance_type = var.kind\n}\n')
    template = read_template(path)
    assert template.builders == [{"type": "amazon-ebs", "name": "x", "instance_type": "g5.xlarge"}]
    assert [step["script"] for step in template.provisioners] == ["a.sh"]


def test_value_that_is_made_of_itself_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.pkr.hcl"
    path.write_text('locals {\n  a = local.b\n  b = local.a\n}\nsource "amazon-ebs" "x" {\n  region = local.a\n}\n')
    assert any("which is made of itself" in line for line in read_template(path).remarks)


def test_value_of_an_undeclared_variable_is_said(template: Path) -> None:
    remarks = read_template(template, [values(template.parent, "disk = 9\ntypo = 1\n")]).remarks
    assert "typo: a value of a variable that the template does not declare; not used" in remarks


def test_file_of_variables_that_is_no_hcl2_is_refused(template: Path) -> None:
    with pytest.raises(UsageError, match=r"x\.pkrvars\.hcl: not HCL2 that can be read"):
        read_template(template, [values(template.parent, "a = = 1\n")])
