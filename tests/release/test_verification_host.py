"""A running machine against the certified inventory: what a first boot writes is accepted, anything else is not."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.errors import MachineError
from gpu_ami.files import data_dir
from gpu_ami.release import keys, verification, verification_host
from gpu_ami.release.verification import Findings
from tests.release import examples
from tests.validator.file_account import tree
from tests.validator.file_account.test_traces import TRACES
from validator.file_account import Entry, Finding, Inventory, Package, load_footprint, unexplained_accounts
from validator.file_account.inventory import Account
from validator.transport import Target, TransportFault

NOW = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
LOGIN = {"ssh_user": "admin"}


def verified(tmp_path: Path) -> verification.Verified:
    report = examples.write_folder(tmp_path / "out")
    plan = dict(report.plan) | {"os": LOGIN}
    examples.signed_folder(tmp_path / "out", tmp_path, replace(report, plan=plan))
    trusted = [keys.TrustedKey("release", keys.load_public(str(tmp_path / "release.key.pub")))]
    result = verification.verify(tmp_path / "out", trusted, verification.Requirements(), NOW)[1]
    assert result is not None
    return result


def compare(tmp_path: Path, change: Callable[[Inventory], Inventory]) -> Findings:
    certificate = verified(tmp_path)
    assert certificate.inventory is not None
    findings = Findings("out")
    running = replace(change(certificate.inventory), running=True)
    verification_host.compare(certificate, running, [data_dir("roles")], findings)
    return findings


def with_entry(entry: Entry) -> Callable[[Inventory], Inventory]:
    return lambda taken: replace(taken, entries={**taken.entries, entry.path: entry})


def file(path: str, mode: int = 0o644, **changes: object) -> Entry:
    return replace(Entry(path, "f", mode, "root", "root", changed=99, sha256="cd" * 32), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        lambda taken: taken,
        with_entry(file("/var/log/gpuevent.log")),  # the running parser's, of its role's footprint
        with_entry(file("/etc/ssh/ssh_host_ed25519_key", 0o600)),
    ],
    ids=["as certified", "log of a role", "host key"],
)
def test_the_certified_image_booted_is_accepted(tmp_path: Path, change: Callable[[Inventory], Inventory]) -> None:
    findings = compare(tmp_path, change)
    assert findings.exit_code == 0, findings.text()
    assert findings.points[-1].name == "host"


ROOT = Account("root", 0, 0, "/root", "/bin/sh", "set")
DIFFERENCES: dict[str, tuple[Callable[[Inventory], Inventory], str]] = {
    "replaced program": (
        with_entry(file("/usr/bin/nvidia-smi", 0o755, packages=("nvidia-utils",))),
        "/usr/bin/nvidia-smi (changed: content",
    ),
    "replaced program that its package agrees with": (
        with_entry(file("/usr/bin/nvidia-smi", 0o755, packages=("nvidia-utils",), differs=())),
        "/usr/bin/nvidia-smi (changed: content",
    ),
    "setuid": (
        lambda taken: with_entry(replace(taken.entries["/usr/bin/nvidia-smi"], mode=0o4755))(taken),
        "/usr/bin/nvidia-smi (changed: mode 4755, was 0755,",
    ),
    "new program": (with_entry(file("/usr/local/bin/miner", 0o755)), "/usr/local/bin/miner (new:"),
    "new preload": (with_entry(file("/etc/ld.so.preload")), "/etc/ld.so.preload (new:"),
    "removed program": (
        lambda taken: replace(taken, entries={p: e for p, e in taken.entries.items() if "nvidia" not in p}),
        "/usr/bin/nvidia-smi (removed:",
    ),
    "new package": (
        lambda taken: replace(taken, packages={**taken.packages, "nmap": Package("nmap", "7")}),
        "package nmap 7 (new)",
    ),
    "upgraded package": (
        lambda taken: replace(taken, packages={"nvidia-utils": Package("nvidia-utils", "580.2")}),
        "package nvidia-utils 580.2 (certified 580.1)",
    ),
    "removed package": (lambda taken: replace(taken, packages={}), "package nvidia-utils 580.1 (gone)"),
    "password of root": (lambda taken: replace(taken, accounts={"root": ROOT}), "account root (changed:"),
    "new account": (
        lambda taken: replace(taken, accounts={**taken.accounts, "eve": Account("eve", 0, 0, "/", "/bin/sh", "set")}),
        "account eve (new:",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_another_machine_is_refused(tmp_path: Path, name: str) -> None:
    change, expected = DIFFERENCES[name]
    findings = compare(tmp_path, change)
    assert [point.name for point in findings.refused] == ["other-host"], findings.text()
    assert expected in findings.refused[0].text


def test_a_role_does_not_explain_a_change_of_its_certified_file(tmp_path: Path) -> None:
    """The parser's unit may be in the image, but a machine whose unit is another one is not the certified image."""
    unit = file("/etc/systemd/system/aws-hw-monitor.service.d/paths.conf")
    certificate = verified(tmp_path)
    assert certificate.inventory is not None
    certificate.inventory = with_entry(unit)(certificate.inventory)
    running = replace(with_entry(replace(unit, sha256="ef" * 32))(certificate.inventory), running=True)
    findings = Findings("out")
    verification_host.compare(certificate, running, [data_dir("roles")], findings)
    assert [point.name for point in findings.refused] == ["other-host"]


def test_without_an_inventory_a_host_is_refused(tmp_path: Path) -> None:
    certificate = verified(tmp_path)
    running, certificate.inventory = certificate.inventory, None
    assert running is not None
    findings = Findings("out")
    verification_host.compare(certificate, running, [], findings)
    assert [point.name for point in findings.refused] == ["host"]


def test_a_host_that_does_not_answer_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TransportFault("port 22 is closed", "is sshd running?")

    monkeypatch.setattr("validator.transport.backend.HostLink.execute", refuse)
    with pytest.raises(MachineError, match="port 22 is closed"):
        verification_host.take(Target("127.0.0.1"))


@pytest.mark.slow
def test_traces_that_the_file_account_knows_are_refused(tmp_path: Path) -> None:
    """All planted into one machine, each is named."""
    tree.make_base(tmp_path / "root", tmp_path / "base-packages")
    tree.build(tmp_path / "root", tmp_path / "packages")
    certified = tree.take(tmp_path / "root")
    variables = {"login": ["admin"], "source": [], "key": [], "role": ["cuda"]}
    footprints = [load_footprint(data_dir("roles") / "cuda/meta/footprint.yml", "cuda", variables)]
    # Marks of apt are not among what is compared: they change what a later autoremove removes, not what runs.
    traces = [trace for trace in TRACES if not trace.get("needs") and "extended_states" not in trace["plant"]]
    for trace in traces:
        tree.plant(tmp_path / "root", trace["plant"])
    running = tree.take(tmp_path / "root")
    lines = verification_host.file_differences(running, certified, footprints, variables)
    lines += verification_host.package_differences(running, certified)
    lines += unexplained_accounts(running, certified, footprints, "admin")
    names = {str(trace.get("as") or trace.get("path") or trace["name"]) for trace in traces}
    shown = {Finding(name, "new", "").text().partition(" (")[0] for name in names}  # escaped, as the lines are
    assert len(names) > 60
    assert {name for name in shown if not any(name in line for line in lines)} == set()
