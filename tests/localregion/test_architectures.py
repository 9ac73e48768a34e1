"""Programs of another architecture: which packages they need, and what the kernel is told of them."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError, MissingTool
from gpu_ami.process import Completed
from gpu_ami.recipes import ARCHITECTURES as PLANNED
from localregion import architectures, host, server
from localregion.architectures import ARCHITECTURES, Architecture
from localregion.images import base_image
from localregion.loopback import MIRROR_ADDRESS
from localregion.machines.platforms import PLATFORMS

ROOT = Path(__file__).resolve().parents[2]
REGISTERED = """\
enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: {flags}
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""


@pytest.fixture
def binfmt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's register on an x86_64 host that has all packages, and no entry yet."""
    folder = tmp_path / "binfmt_misc"
    folder.mkdir()
    for name in ("register", "status"):
        (folder / name).write_text("")
    monkeypatch.setattr(architectures, "BINFMT", folder)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(architectures, "is_there", lambda _: True)
    monkeypatch.setattr(architectures, "find_tool", lambda name, **_: f"/usr/bin/{name}")
    return folder


def test_they_are_those_of_the_plans() -> None:
    assert set(ARCHITECTURES) == set(PLANNED) == set(PLATFORMS)
    for name, architecture in ARCHITECTURES.items():
        assert (architecture.debian, architecture.machine) == (PLANNED[name].deb, PLANNED[name].rpm)
        assert architecture.compiler == f"{PLANNED[name].triplet}-gcc"


def test_the_makefile_installs_what_arm64_needs_for_its_recipes_alone() -> None:
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(r"^ARM64_PACKAGES := (.*)$", makefile, re.MULTILINE)
    always = re.search(r"^PACKAGES := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert found and always
    assert set(found[1].split()) == set(ARCHITECTURES["arm64"].tools.values())
    assert not set(found[1].split()) & set(always[1].split())


def test_what_machines_and_compilers_are_looked_up_by_is_among_the_tools() -> None:
    arm64, machine = ARCHITECTURES["arm64"], PLATFORMS["arm64"]
    assert {machine.program: machine.package}.items() <= arm64.tools.items()
    assert machine.firmware in arm64.tools and arm64.compiler in arm64.tools


def test_packages_that_are_renamed_are_in_the_base_image() -> None:
    listed = set(base_image.listed(base_image.SOURCE / "packages.txt"))
    for architecture in ARCHITECTURES.values():
        assert set(architecture.packages) <= listed
        assert all(architecture.debian in name for name in architecture.packages.values())


def test_the_kernel_is_told_once(binfmt: Path) -> None:
    architectures.require_programs("arm64")
    text = (binfmt / "register").read_text()
    name, kind, offset, magic, mask, interpreter, flags = text.removeprefix(":").split(":")
    assert (name, kind, offset, set(flags) >= {"F", "C"}) == ("gpu-ami-arm64", "M", "", True)
    assert "aarch64" in interpreter
    assert (magic.count(r"\x"), mask.count(r"\x")) == (20, 20) and r"\xb7" in magic
    (binfmt / "gpu-ami-arm64").write_text(REGISTERED.format(flags="POCF"))
    (binfmt / "register").write_text("")
    architectures.require_programs("arm64")
    assert (binfmt / "register").read_text() == ""


@pytest.mark.parametrize("flags", ["OP", "F", "OPF"])
def test_an_entry_without_other_roots_or_setuid_programs_is_not_enough(binfmt: Path, flags: str) -> None:
    """Debian 12's own has no C: sudo would run without its owner's rights."""
    (binfmt / "qemu-aarch64").write_text(REGISTERED.format(flags=flags))
    architectures.require_programs("arm64")
    assert (binfmt / "register").read_text().startswith(":gpu-ami-arm64:")


def test_a_disabled_entry_does_not_count(binfmt: Path) -> None:
    (binfmt / "qemu-aarch64").write_text(REGISTERED.format(flags="POCF").replace("enabled", "disabled"))
    architectures.require_programs("arm64")
    assert (binfmt / "register").read_text() != ""


def test_the_host_s_own_needs_nothing(binfmt: Path) -> None:
    architectures.require_programs("x86_64")
    assert (binfmt / "register").read_text() == ""
    assert ARCHITECTURES["x86_64"].gcc() == "/usr/bin/gcc"
    assert ARCHITECTURES["arm64"].gcc() == "/usr/bin/aarch64-linux-gnu-gcc"


def test_all_missing_packages_are_named_at_once(binfmt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "is_there", lambda tool: tool == "aarch64-linux-gnu-gcc")
    with pytest.raises(MissingTool, match="this host is x86_64, and for images of arm64") as caught:
        architectures.require_programs("arm64")
    assert caught.value.hint is not None
    assert "install --no-install-recommends qemu-efi-aarch64 qemu-system-arm qemu-user-static" in caught.value.hint
    assert (binfmt / "register").read_text() == ""


def test_a_kernel_without_binfmt_misc_is_one_clear_error(binfmt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> Completed:
        raise CloudError("mount ended with 32", details=["unknown filesystem type 'binfmt_misc'"])

    (binfmt / "register").unlink()
    monkeypatch.setattr(architectures, "run", run)
    with pytest.raises(CloudError) as caught:
        architectures.require_programs("arm64")
    assert str(binfmt) in caught.value.message and "another architecture" in caught.value.message
    assert "CONFIG_BINFMT_MISC" in (caught.value.hint or "")


def test_a_user_without_rights_is_told_so(binfmt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(CloudError, match="Permission denied") as caught:
        architectures.require_programs("arm64")
    assert "run it as root" in (caught.value.hint or "")


def test_the_doctor_names_what_arm64_lacks(binfmt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "is_there", lambda tool: tool == "aarch64-linux-gnu-gcc")
    (finding,) = host.foreign_architectures()
    assert (finding.name, finding.ok, finding.needed_for) == ("arm64", False, "recipes of arm64")
    assert finding.found == "not installed: qemu-efi-aarch64, qemu-system-arm, qemu-user-static"
    assert (
        finding.remedy == f"apt-get install --no-install-recommends {finding.found.partition(': ')[2].replace(',', '')}"
    )


def test_the_doctor_says_whether_the_kernel_knows_the_emulator(binfmt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for user, ok in ((0, True), (1000, False)):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        (finding,) = host.foreign_architectures()
        assert (finding.ok, "does not start its programs yet" in finding.found) == (ok, True)
        assert "as root" in finding.remedy
    (binfmt / "gpu-ami-arm64").write_text(REGISTERED.format(flags="POCF"))
    (finding,) = host.foreign_architectures()
    assert finding.ok and "binfmt_misc starts its programs" in finding.found


def test_the_doctor_asks_nothing_of_a_host_of_arm64(binfmt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert host.foreign_architectures() == []


def test_a_program_or_a_file_may_be_a_tool(tmp_path: Path) -> None:
    assert architectures.is_there("sh") and not architectures.is_there("no-such-program")
    assert architectures.is_there(str(tmp_path)) and not architectures.is_there(str(tmp_path / "none"))


def test_another_architecture_of_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert not Architecture("arm64", "aarch64", "arm64", 0xB7, "gcc").is_native
    assert Architecture("x86_64", "x86_64", "amd64", 0x3E, "gcc", tools={"no-such": "x"}).missing_packages() == []


def test_distributor_has_the_package_of_a_node_s_architecture(tmp_path: Path) -> None:
    folders = [f"amazoncloudwatch-agent.s3.amazonaws.com/debian/{name}/1.300071.0" for name in ("amd64", "arm64")]
    for folder in folders:
        path = tmp_path / "mirror/current" / folder / "amazon-cloudwatch-agent.deb"
        path.parent.mkdir(parents=True)
        path.touch()
    for architecture, folder in zip(("x86_64", "arm64"), folders, strict=True):
        found = server.distributed(tmp_path, "AmazonCloudWatchAgent", architecture)
        assert found == {"deb": f"http://{MIRROR_ADDRESS}/{folder}/amazon-cloudwatch-agent.deb"}
    assert server.distributed(tmp_path, "AnotherPackage", "arm64") == {}
