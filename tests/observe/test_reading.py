"""The parts of an observation: the reading program's request, agreement of sources, versions of the nearest recipe."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from gpu_ami import cli, observe
from gpu_ami.errors import UsageError
from gpu_ami.files import write_json
from gpu_ami.observe import captures, findings, nearest, observation, screen
from gpu_ami.plan import Plan
from gpu_ami.recipes import load_facts
from gpu_ami.recipes.components import components, of_role
from onhost import observation as program
from tests.observe import foreign_images as foreign
from tests.observe import foreign_pipelines as pipelines
from tests.observe.foreign_images import Image, rpm_header
from tests.validator.transport.test_image_files import EXT4, gpt, write_disk


def test_every_component_with_a_version_says_how_it_is_observed() -> None:
    asked = observation.request()
    chosen = {name for name, one in components().items() if one.is_chosen} - {"nccl_tests"}  # no file names its version
    assert chosen <= asked.keys()
    kinds = {source[0] for sources in asked.values() for source in sources}
    assert kinds <= {name[1:] for name in dir(program.Observer) if name.startswith("_")}


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [("12.9", "12.9.1", True), ("580.178.04", "580.178.04", True), ("580.178.04", "580.159.03", False)],
)
def test_versions_agree_as_far_as_both_go(first: str, second: str, agree: bool) -> None:
    assert observation.same(first, second) is agree


def test_a_sites_role_declares_its_sources(tmp_path: Path) -> None:
    (tmp_path / "monitoring" / "meta").mkdir(parents=True)
    (tmp_path / "monitoring" / "meta" / "argument_specs.yml").write_text("argument_specs: {main: {options: {}}}\n")
    (tmp_path / "monitoring" / "meta" / "observed.yml").write_text("- {kind: package, target: node-exporter}\n")
    component = of_role(tmp_path, "monitoring")
    registry = {**components(), "monitoring": component}
    image = foreign.Image(tmp_path / "root", "debian12")
    image.install("node-exporter", version="1.9.0-1")
    found = observe.read_files(image.done(), registry).found
    assert found["monitoring"].version == "1.9.0"


@pytest.mark.parametrize(
    ("says", "flavour"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.178.04  Wed Sep 10", "proprietary"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.178.04  Release Build", "open"),
        ("", "boot"),
    ],
)
def test_flavour_is_that_of_the_loaded_module(says: str, flavour: str, tmp_path: Path) -> None:
    """EKS's accelerated AMI has both on disk, and installs the proprietary one on g4dn and g5."""
    image = foreign.Image(tmp_path / "root", "al2023", kernels=("6.12.1",))
    image.module("6.12.1", "nvidia", "580.178.04")
    image.module("6.12.1", "nvidia", "580.178.04", "NVIDIA", "extra")
    image.write("sys/module/nvidia/version", "580.178.04\n")
    image.write("proc/driver/nvidia/version", f"{says}\nGCC version:  gcc version 11.4.1\n")
    found = observe.read_files(image.done())
    loaded = program.Observer(str(tmp_path / "root"), True).read(["loaded", "nvidia", "([0-9.]+)", "module loaded"])
    readings = {**found.document["readings"]}
    readings["nvidia_driver"] = [*readings["nvidia_driver"], *loaded]
    running = observe.Observation({**found.document, "readings": readings}, found.registry)
    assert found.flavour == "boot"
    assert running.flavour == flavour
    assert [row["says"] for row in running.found["nvidia_driver"].readings if row["source"] == "module loaded"] == [
        says
    ]


def test_gpudirect_storage_is_read_from_package_and_module(tmp_path: Path) -> None:
    image = foreign.Image(tmp_path / "root", "ubuntu2404", kernels=("7.0.0-1014-aws",))
    image.install("nvidia-fs-dkms", version="2.29.4-1")
    image.module("7.0.0-1014-aws", "nvidia-fs", "2.28.4")
    found = observe.read_files(image.done()).found["gds"]
    read = {str(reading["source"]): reading["version"] for reading in found.readings}
    assert read == {"package database": "2.29.4", "module on disk": "2.28.4"}


def test_versions_that_the_facts_lack_are_the_newest_of_their_branch(tmp_path: Path) -> None:
    facts = load_facts()
    image = foreign.Image(tmp_path / "root", "debian12")
    image.install("nvidia-open", "nvidia-driver", version="580.999.01-1")
    image.module("6.1.0-40-cloud-amd64", "nvidia", "580.999.01")
    observed = observe.read_files(image.done())
    assert nearest.nearest_version(observed.found["nvidia_driver"], facts).startswith("580.")
    assert "580.999.01 was observed; the facts do not know it" in nearest.nearest_recipe(
        observed, facts, ["g5.12xlarge"]
    )
    assert findings.known_versions(observed, facts) == {}
    ids = {one.id for one in observe.findings_of(observed, facts, nearest.context_of(observed, facts, ["g5.12xlarge"]))}
    assert "unknown-version" in ids  # said, not refused


def test_rules_of_plan_are_run_over_what_is_there(tmp_path: Path) -> None:
    facts = load_facts()
    image = foreign.Image(tmp_path / "root", "ubuntu2404", kernels=("6.17.0-1009-aws",))
    image.install("nvidia-driver", version="535.309.01-1")
    image.module("6.17.0-1009-aws", "nvidia", "535.309.01")
    image.install("cuda-toolkit-13-0", version="13.0.0-1")
    observed = observe.read_files(image.done())
    context = nearest.context_of(observed, facts, ["g5.12xlarge"])
    texts = {one.id: one.text for one in observe.findings_of(observed, facts, context)}
    assert "driver 535.309.01 cannot run CUDA 13.0" in texts["driver-runs-cuda"]


def test_script_whose_output_nobody_sends_is_named(tmp_path: Path) -> None:
    root = foreign.snapshot_script(tmp_path / "root")
    (root / foreign.AGENT / "etc/amazon-cloudwatch-agent.d/file_config.json").write_text("{}")
    observed = observe.read_files(root)
    assert captures.unsent(observed) == ["/opt/aws/cloudwatch/nvidia/aws-hwaccel-event-parser.py"]
    assert "does not capture Xids" in screen.text(observed, observe.findings_of(observed, load_facts(), None))


def test_intels_library_of_2020_is_read_with_its_build(tmp_path: Path) -> None:
    image = foreign.Image(tmp_path / "root", "debian12")
    image.install("intel-mkl-2020.4-912", version="2020.4-912")
    assert observe.read_files(image.done()).found["mkl"].version == "2020.4-912"


def test_this_machine_is_read_when_its_boot_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(command: list[str], **_options: object) -> SimpleNamespace:
        asked.append(command[-1])
        return SimpleNamespace(stdout="degraded\n", returncode=1)

    monkeypatch.setattr(observation, "SYSTEMD", tmp_path)
    monkeypatch.setattr(observation.process, "run", run)
    monkeypatch.setattr(program, "observe", lambda *_: {"schema": program.SCHEMA} if asked else {})
    observed = observation.read_local()
    assert observed.document["system_state"] == "degraded"
    assert "cloud-init status --wait" in asked[0] and "is-system-running --wait" in asked[0]
    monkeypatch.setattr(observation, "SYSTEMD", tmp_path / "none")  # no systemd, such as in a container
    assert observation.read_local().document["system_state"] == ""
    assert len(asked) == 1


def test_image_is_compared_with_its_publisher_s_list(tmp_path: Path) -> None:
    """generate-version-info.sh of amazon-eks-ami 81fec2e8: rpm's `%{VERSION}-%{RELEASE}` for each name."""
    observed = observe.read_files(pipelines.eks_archive(tmp_path / "root"))
    found = {name: full for one in observed.found.values() for name, full in one.packages.items()}
    assert found["kubelet"] == "1.35.2-1"
    listed = {"packages": {**found, "bash": "5.2.15-1.amzn2023"}, "kernel_modules": {"nvidia": "580.126.09"}}
    assert observe.against_manifest(observed, listed) == []
    changed = {"packages": {**found, "nvidia-imex": "580.159.03-1", "cuda-toolkit-12-9": "12.9.1-1"}}
    assert observe.against_manifest(observed, changed) == [
        "package nvidia-imex: expected 580.159.03-1, got 580.126.09-1",
        "package cuda-toolkit-12-9: expected 12.9.1-1, got nothing",
    ]
    with pytest.raises(UsageError, match="expected an object with packages"):
        observe.against_manifest(observed, {"name": "x"})


@pytest.mark.parametrize(("agent", "lines"), [("1.98.0", []), ("1.99.0", ["ECS agent: expected 1.99.0, got 1.98.0-1"])])
def test_ecs_image_is_compared_with_its_parameter(agent: str, lines: list[str], tmp_path: Path) -> None:
    observed = observe.read_files(foreign.ecs_base(tmp_path / "root"))
    differences = observe.against_manifest(observed, {"ecs_agent_version": agent, "image_name": "al2023-ami-ecs-gpu"})
    assert [line.replace(".amzn2023", "") for line in differences] == lines


def test_observations_are_compared_as_plans_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, build in (("a", foreign.vendor_without_holds), ("b", foreign.mixed_parts)):
        write_json(tmp_path / f"{name}.json", observe.read_files(build(tmp_path / name)).to_json())
    assert cli.main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    printed = capsys.readouterr().out
    assert "nvidia_driver.version: 580.178.04 → 580.159.03" in printed
    assert "os.id: ubuntu → debian" in printed


def test_what_the_reading_program_prints_alone_is_an_observation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As EC2 Image Builder keeps it: it does not know what it is called."""
    root = foreign.snapshot_script(tmp_path / "root")
    write_json(tmp_path / "a.json", program.observe(str(root), False, observation.request()))
    assert cli.main(["diff", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 0
    assert cli.main(["observe", "--read", str(tmp_path / "a.json"), "-o", str(tmp_path / "out"), "-q"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (lambda document: document["readings"]["nvidia_driver"][0].pop("package"), "[0]: missing: package"),
        (lambda document: document["readings"]["nvidia_driver"][0].pop("full"), "[0]: missing: full"),
        (lambda document: document["captures"]["scripts"][0].update(reads=True), "scripts[0].reads: expected"),
        (lambda document: document["captures"]["scripts"][0].update(reads=[["a"]]), "scripts[0].reads[0]: expected"),
        (lambda document: document["settings"].update(runtime_packages=[]), "runtime_packages: expected"),
        (lambda document: document.pop("packages"), "packages: missing"),
    ],
)
def test_what_the_reading_program_never_prints_is_named(
    change: Callable[[Any], object], mistake: str, tmp_path: Path
) -> None:
    document = program.observe(str(foreign.snapshot_script(tmp_path / "root")), False, observation.request())
    change(document)
    write_json(tmp_path / "a.json", document)
    with pytest.raises(UsageError, match="not an observation as gpu-ami writes it") as caught:
        observe.load(tmp_path / "a.json")
    assert any(mistake in detail for detail in caught.value.details)


@pytest.mark.parametrize("build", [foreign.snapshot_script, foreign.fetched_by_unit, foreign.mixed_parts])
def test_every_key_that_the_reading_program_prints_has_a_type(build: Callable[[Path], Path], tmp_path: Path) -> None:
    """A key without one is not looked at when a file is read, and code that reads it stumbles."""
    document = program.observe(str(build(tmp_path / "root")), False, observation.request())
    assert list(untyped(observation.ObservationDocument, document, "")) == ["schema"]


def untyped(kind: Any, value: Any, path: str) -> Iterator[str]:
    """Keys of a document that its types do not name."""
    kind = get_args(kind)[0] if get_origin(kind) is NotRequired else kind
    if is_typeddict(kind):
        known = get_type_hints(kind)
        for key, below in value.items():
            if key in known:
                yield from untyped(known[key], below, f"{path}{key}.")
            else:
                yield f"{path}{key}"
    elif get_origin(kind) in (list, dict):
        for below in value.values() if isinstance(value, dict) else value:
            yield from untyped(get_args(kind)[-1], below, path)


def test_libraries_outside_usr_are_read(tmp_path: Path) -> None:
    image = foreign.Image(tmp_path / "root", "rocky9")
    image.libraries("580.178.04", "lib64")
    driver = observe.read_files(image.done()).found["nvidia_driver"]
    assert driver.by_source["library file"] == ["580.178.04"]


def test_the_architecture_of_a_tree_without_programs_is_unknown(tmp_path: Path) -> None:
    image = foreign.Image(tmp_path / "root", "debian12")
    (tmp_path / "root/usr/bin/env").unlink()
    observed = observe.read_files(image.done())
    assert "Debian GNU/Linux 12 (bookworm), unknown architecture" in screen.text(observed, [], [])


@pytest.mark.parametrize("name", ["missing", "fifo"])
def test_what_is_neither_folder_nor_disk_is_said(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError) as caught:
        observe.read_files(tmp_path / name)
    expected = "no such file or directory" if name == "missing" else "neither a folder nor a disk"
    assert caught.value.message == f"{tmp_path / name}: {expected}"


def ended(code: int, output: str = "", errors: str = "") -> SimpleNamespace:
    return SimpleNamespace(returncode=code, stdout=output, stderr=errors)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A disk with a data partition that is larger than that of the system."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return write_disk(tmp_path / "disk.raw", gpt((2048, 9999), (10000, 99999)), (2048, EXT4), (10000, EXT4))


def test_the_file_system_with_a_system_is_read(disk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    document = json.dumps(observe.read_files(foreign.ecs_base(tmp_path / "root")).document)
    asked: list[str] = []

    def run(command: list[str], **_options: object) -> SimpleNamespace:
        asked.append(command[9])
        return ended(0, document) if asked[-1] == str(2048 * 512) else ended(observation.NO_SYSTEM)

    monkeypatch.setattr(observation.process, "run", run)
    assert observe.read_files(disk).document["read_of"] == f"{disk} (file system at byte 1048576)"
    assert asked == [str(10000 * 512), str(2048 * 512)]


def test_a_disk_without_a_system_is_said(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation.process, "run", lambda *_, **__: ended(observation.NO_SYSTEM))
    with pytest.raises(UsageError, match="not the disk of a system: neither etc/os-release nor etc/passwd"):
        observe.read_files(disk)


def test_a_mount_that_fails_is_said_in_a_few_lines(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = "\n".join([*(f"line {number}" for number in range(20)), "", "mount: unknown filesystem type 'btrfs'."])
    monkeypatch.setattr(observation.process, "run", lambda *_, **__: ended(1, "", errors))
    with pytest.raises(UsageError, match="the file system at byte 5120000 cannot be read here") as caught:
        observe.read_files(disk)
    assert caught.value.details == ("line 18", "line 19", "mount: unknown filesystem type 'btrfs'.")


def test_another_kind_of_file_is_no_disk(tmp_path: Path) -> None:
    (tmp_path / "disk.qcow2").write_bytes(b"QFI\xfb\0\0\0\3")
    with pytest.raises(UsageError, match="a qcow2 image, expected a raw disk image") as caught:
        observe.read_files(tmp_path / "disk.qcow2")
    assert caught.value.hint == "qemu-img convert -O raw IMAGE disk.raw"


def test_the_plan_of_an_image_that_has_every_component_is_one(tmp_path: Path) -> None:
    """gpu-ami's own among them: an image that it built is observed as others are."""
    read = observe.read_files(foreign.vendor_without_holds(tmp_path / "root"))
    readings = {name: [{"source": "file", "version": "1.2.3", "where": "/x"}] for name in observation.request()}
    everything = observation.Observation({**read.document, "readings": readings}, read.registry)
    assert {"drain_hook", "event_parser", "neuron"} <= set(everything.found)
    plan = observe.observed_plan(everything, load_facts(), ["p5.48xlarge"], "foreign")
    write_json(tmp_path / "plan.json", plan.document)
    assert Plan.load(tmp_path / "plan.json").image == "foreign"


def test_a_module_that_is_linked_to_another_kernel_is_read_behind_its_link(tmp_path: Path) -> None:
    """RHEL's weak-modules makes absolute links; a link whose module is gone is none."""
    first, second, third = (
        "5.14.0-570.17.1.el9_6.x86_64",
        "5.14.0-570.26.1.el9_6.x86_64",
        "5.14.0-570.32.1.el9_6.x86_64",
    )
    image = Image(tmp_path, "rocky9", kernels=(first, second, third))
    image.install("kmod-nvidia-open", "nvidia-driver", version="580.95.05-1.el9", held=True)
    image.module(first, "nvidia", "580.95.05", folder="extra/nvidia")
    image.libraries("580.95.05", "usr/lib64")
    for kernel, name in ((second, "nvidia.ko.gz"), (third, "nvidia.ko.xz")):
        image.link(f"lib/modules/{kernel}/weak-updates/nvidia/{name}", f"/lib/modules/{first}/extra/nvidia/{name}")
    observation = observe.read_files(image.done())
    rows = [row for row in observation.document["readings"]["nvidia_driver"] if row.get("kernel")]
    assert {row["kernel"]: (row["version"], row["built_for"]) for row in rows} == dict.fromkeys(
        (first, second), ("580.95.05", first)
    )
    found = observe.findings_of(observation, load_facts(), None)
    assert not {"module-unread", "module-built-for"} & {one.id for one in found}
    assert not [one.text for one in found if "was built for kernel" in one.text]
    assert [one.text for one in found if one.id == "module-missing"] == [
        f"no kernel module of the driver for kernel {third}, the newest, which a boot takes"
    ]


def test_a_module_without_content_is_unread(tmp_path: Path) -> None:
    """A full disk leaves empty modules of DKMS; they do not agree with anything."""
    image = Image(tmp_path, "debian12")
    image.install("nvidia-open", version="580.95.05-1")
    image.write("lib/modules/6.1.0-40-cloud-amd64/updates/dkms/nvidia.ko", "")
    image.libraries("580.95.05")
    observation = observe.read_files(image.done())
    (unread,) = [one for one in observe.findings_of(observation, load_facts(), None) if one.id == "module-unread"]
    assert "no module information in it" in unread.text
    assert "module on disk" not in observation.found["nvidia_driver"].by_source


def test_packages_in_the_log_of_rpm_s_database_are_there(tmp_path: Path) -> None:
    """What rpm had not yet written into its database when the build's machine was stopped."""
    image = Image(tmp_path, "al2023", kernels=("6.1.158-178.288.amzn2023.x86_64",))
    image.install("system-release", version="2023.9-1")
    database = image.done() / "usr/lib/sysimage/rpm/rpmdb.sqlite"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("INSERT INTO Packages (blob) VALUES (?)", (rpm_header("nvidia-driver", "580.95.05", "1"),))
        connection.commit()
        kept = {path.name: path.read_bytes() for path in database.parent.iterdir() if not path.name.endswith("-shm")}
    for name, content in kept.items():
        (database.parent / name).write_bytes(content)
    before = {path: path.read_bytes() for path in database.parent.iterdir()}
    observation = observe.read_files(tmp_path)
    assert observation.document["packages"] == 3
    assert observation.found["nvidia_driver"].by_source["package database"] == ["580.95.05"]
    assert {path: path.read_bytes() for path in database.parent.iterdir()} == before


def test_what_no_package_database_could_say_is_not_said(tmp_path: Path) -> None:
    """rpm's older databases (Berkeley DB, ndb) are read by rpm alone; without it nothing is known of packages."""
    image = Image(tmp_path, "rocky9", kernels=("5.14.0-570.17.1.el9_6.x86_64",))
    image.module("5.14.0-570.17.1.el9_6.x86_64", "nvidia", "580.95.05", folder="extra")
    image.libraries("580.95.05", "usr/lib64")
    image.write_bytes("usr/lib/sysimage/rpm/Packages.db", b"RpmP" + bytes(4096))
    ids = {one.id for one in observe.findings_of(observe.read_files(tmp_path), load_facts(), None)}
    assert "no-database" in ids and "no-package" not in ids


def test_toolkits_beside_the_one_that_the_link_names_are_listed(tmp_path: Path) -> None:
    image = Image(tmp_path, "ubuntu2204")
    image.write("usr/local/cuda-10.2/version.txt", "CUDA Version 10.2.89\n")
    for version in ("11.8", "12.1", "12.4"):
        image.write(f"usr/local/cuda-{version}/version.json", f'{{"cuda" : {{"version" : "{version}.0"}}}}')
    image.link("usr/local/cuda", "/usr/local/cuda-12.1")
    cuda = observe.read_files(image.done()).found["cuda"]
    assert (cuda.version, cuda.disagreement) == ("12.1", "")
    assert cuda.by_source["toolkit folder"] == ["12.4", "12.1", "11.8", "10.2"]


@pytest.mark.parametrize(
    "names",
    [
        (
            "akmod-nvidia-open",
            "xorg-x11-drv-nvidia-cuda",
            "kmod-nvidia-open-5.14.0-570.17.1.el9_6.x86_64",
        ),  # RPM Fusion
        ("nvidia-open-driver-G06-signed-kmp-default", "nvidia-compute-G06", "nvidia-compute-utils-G06"),
    ],
)
def test_the_driver_s_packages_of_other_repositories_are_known(names: tuple[str, ...], tmp_path: Path) -> None:
    """Of RPM Fusion, and of openSUSE."""
    image = Image(tmp_path, "rocky9", kernels=())
    image.install(*names, version="580.95.05-1")
    assert set(observe.read_files(image.done()).found["nvidia_driver"].packages) == set(names)


@pytest.mark.parametrize(
    ("closed", "mode"),
    [
        ("lib/modules/6.1.0-40-cloud-amd64/updates/dkms", 0o000),
        ("lib/modules/6.1.0-40-cloud-amd64", 0o000),
        ("lib/modules", 0o100),
        ("opt/aws", 0o000),
        ("opt/aws/amazon-cloudwatch-agent/etc", 0o600),
        ("opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.json", 0o000),
        ("var/lib/dpkg/status", 0o000),
        ("bin/sh", 0o111),
    ],
)
def test_what_the_reading_user_may_not_read_is_not_missing(closed: str, mode: int, tmp_path: Path) -> None:
    image = Image(tmp_path, "debian12")
    image.install("nvidia-open", "amazon-cloudwatch-agent", version="580.95.05-1", held=True)
    image.module("6.1.0-40-cloud-amd64", "nvidia", "580.95.05")
    image.libraries("580.95.05")
    sends_gpus = {"metrics": {"metrics_collected": {"nvidia_gpu": {"measurement": ["utilization_gpu"]}}}}
    image.agent("amazon-cloudwatch-agent.json", {**foreign.sends(("/var/log/kern.log", "/gpu/kern")), **sends_gpus})
    image.write("bin/sh", "")
    root = image.done()
    (root / closed).chmod(mode)
    try:
        read = observation.Observation(_read_without_privilege(root), components())
    finally:
        (root / closed).chmod(0o700)
    unread, found = read.document["unread"], observe.findings_of(read, load_facts(), None)
    if closed == "bin/sh":  # another program has the architecture, too
        assert (unread, read.document["architecture"]) == ([], "x86_64")
        return
    assert f"/{closed}" in unread
    (said,) = [one for one in found if one.id == "unread"]
    assert f"/{closed}" in said.text and said.level == findings.Level.WARNING
    wrong = {"agent-config", "agent-unconfigured", "no-gpu-metrics", "module-missing", "no-kernel", "no-package"}
    assert not wrong & {one.id for one in found}
    assert not [one.text for one in found if "does not capture" in one.text]


def _read_without_privilege(root: Path) -> dict[str, object]:
    """What the reading program prints as a user whom modes hold: root without its capability to pass over them."""
    without = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if without and subprocess.run([*without, "true"], capture_output=True, check=False).returncode:
        pytest.skip("setpriv cannot take a capability from root here")
    command = [*without, sys.executable, "-m", "onhost.observation", "--root", str(root)]
    asked = json.dumps(observation.request())
    printed = subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(printed))
