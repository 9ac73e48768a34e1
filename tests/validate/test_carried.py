"""What an earlier proof has: which checks need not run on a changed image, and which earlier proofs are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import validator
from gpu_ami.build.layering import load_definition
from gpu_ami.errors import UsageError
from gpu_ami.progress import Progress
from gpu_ami.report import COMES_BACK, HostReport, Report, ReportLayer, certificate, writer
from gpu_ami.validate import carried
from gpu_ami.validate.machines.restarts import RESTARTS
from gpu_ami.validate.proof import CARRIED_FILE, Proof
from gpu_ami.validate.validator_process import Target
from tests.report.examples import WAIVER, a_check, a_host, a_report, offline
from validator.results import CarriedOver, HostResults

MAX_AGE = timedelta(days=7)
LAYERS = (
    ReportLayer("kernel", "sha256:k", ("kernel",)),
    ReportLayer("driver", "sha256:d", ("nvidia_driver", "cuda")),
    ReportLayer("telemetry", "sha256:t", ("cloudwatch_agent", "event_parser")),
)
TELEMETRY_CHANGED = (*LAYERS[:2], replace(LAYERS[2], digest="sha256:t2"))
DRIVER_CHANGED = (LAYERS[0], *(replace(layer, digest=f"{layer.digest}2") for layer in LAYERS[1:]))


def now(days: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


def after(role: str, restart: str) -> Any:
    return a_check(role, id=f"{role}::test_it@{restart}", after=restart)


def proven(**changes: Any) -> Report:
    """A PASS of one machine with both restarts, and of the image's files; its layers are LAYERS."""
    restarted = [after(check.role, how) for how in RESTARTS for check in a_host().checks]
    back = [a_check("boot", id=f"{COMES_BACK}@{how}", after=how) for how in RESTARTS]
    host = a_host("g5.12xlarge", a_check("kernel"), a_check("cuda"), a_check("hygiene"), *restarted, *back)
    report = a_report(replace(host, restarts=RESTARTS), offline(cuda="PASS", file_account="PASS"), unproven=())
    return replace(report, **{"finished": now(), "layers": LAYERS, "suite": "sha256:s", **changes})


def kept(folder: Path, report: Report) -> Path:
    writer.write(report, folder)
    certificate.certify(report).write(folder)
    return folder


def load(folder: Path, image: str = "x", simulated: bool = False) -> carried.Earlier:
    return carried.load("old", folder, image=image, simulated=simulated, max_age=MAX_AGE)


def earlier(report: Report) -> carried.Earlier:
    return carried.Earlier(report, certificate.report_digest(report.to_json()), "old")


def ids(found: carried.Carried, host: str = "g5.12xlarge", restart: str = "") -> list[str]:
    return sorted(record.id.partition("::")[0] for record in found.of(host, restart))


def carry(report: Report, layers: tuple[ReportLayer, ...], plan: dict[str, Any] | None = None) -> carried.Carried:
    return carried.carry_over(earlier(report), dict(report.plan) | (plan or {}), layers, "sha256:s", MAX_AGE)


def test_an_earlier_proof_is_accepted(tmp_path: Path) -> None:
    found = load(kept(tmp_path, proven()))
    assert found.digest == certificate.report_digest(found.report.to_json())


def changed_report(folder: Path) -> None:
    """Another verdict in a report, as somebody would write it who wants a check to count as proven."""
    path = folder / "report.json"
    data = json.loads(path.read_text())
    data["hosts"][0]["checks"][0]["observed"] = "2"
    path.write_text(json.dumps(data))


def not_passed(folder: Path) -> None:
    report = proven()
    failed = replace(report, hosts=(a_host("g5.12xlarge", a_check("cuda", "FAIL")),))
    writer.write(failed, folder)
    statement = replace(certificate.certify(report), report_sha256=certificate.report_digest(failed.to_json()))
    statement.write(folder)


@pytest.mark.parametrize(
    ("report", "spoil", "name"),
    [
        (proven(), changed_report, "changed-report"),
        (proven(), not_passed, "verdict"),
        (proven(), lambda folder: (folder / "certificate.json").unlink(), "no-certificate"),
        (proven(plan=dict(proven().plan) | {"image": "y"}), None, "other-image"),
        (proven(simulated=True), None, "other-hardware"),
        (proven(layers=()), None, "no-layers"),
        (proven(suite=""), None, "no-layers"),
        (proven(finished=now(8)), None, "too-old"),
        (proven(finished="yesterday"), None, "too-old"),
        (proven(finished=now(-1)), None, "future"),
    ],
)
def test_what_is_refused_by_name(
    tmp_path: Path, report: Report, spoil: Callable[[Path], Any] | None, name: str
) -> None:
    kept(tmp_path, report)
    if spoil:
        spoil(tmp_path)
    with pytest.raises(UsageError) as refused:
        load(tmp_path)
    assert refused.value.message.startswith(f"--since old: refused: {name}: ")
    assert refused.value.hint


def test_it_is_found_by_its_file_folder_and_ami(tmp_path: Path) -> None:
    folder = kept(tmp_path / "out/old", proven())
    for name in (folder, folder / "report.json", folder / "certificate.json"):
        assert carried.find(str(name)) == folder
    assert carried.find("ami-1", tmp_path / "out") == folder
    for name in ("ami-2", str(tmp_path / "nowhere")):
        with pytest.raises(UsageError, match="refused: missing"):
            carried.find(name, tmp_path / "out")


def test_checks_of_unchanged_layers_are_carried_over() -> None:
    found = carry(proven(), TELEMETRY_CHANGED, {"telemetry": {"interval_s": 30}})
    assert ids(found) == ["cuda", "kernel", "nvidia_driver"]
    assert ids(found, "image-files") == ["cuda"]
    (kernel,) = [record for record in found.of("g5.12xlarge") if record.role == "kernel"]
    report = earlier(proven())
    assert kernel.carried is not None
    assert (kernel.carried.layer, kernel.carried.digest, kernel.carried.image) == ("kernel", "sha256:k", "ami-1")
    assert kernel.carried.report.startswith("sha256:") and len(kernel.carried.report) == len(report.digest)
    assert found.notes == ("4 checks carried over from old: same layers: kernel, driver; changed: telemetry",)


def test_restarts_are_done_unless_every_layer_is_the_same() -> None:
    for layers in (TELEMETRY_CHANGED, DRIVER_CHANGED):
        found = carry(proven(), layers)
        assert [found.of("g5.12xlarge", how) for how in RESTARTS] == [(), ()]
    same = carry(proven(), LAYERS, {"digest": "sha256:2", "description": "other words"})
    assert {"boot", "xid", "metrics"} <= set(ids(same, restart="reboot"))
    assert not {"boot", "xid", "metrics", "logs", "hygiene"} & set(ids(same))  # of the new image's own boot


def test_one_failed_check_after_a_restart_repeats_the_restart() -> None:
    report = proven()
    host = report.hosts[0]
    checks = tuple(
        replace(check, waived=WAIVER) if check.id == "xid::test_it@reboot" else check for check in host.checks
    )
    found = carry(replace(report, hosts=(replace(host, checks=checks),)), LAYERS)
    assert found.of("g5.12xlarge", "reboot") == ()
    assert found.of("g5.12xlarge", "stop-start") != ()


def test_a_changed_layer_takes_those_above_it_along() -> None:
    assert ids(carry(proven(), DRIVER_CHANGED)) == ["kernel"]


def test_a_change_of_telemetry_alone_is_a_change_of_the_last_layer() -> None:
    """The plan's section belongs to no role: the layer's digest may not say that it differs."""
    assert ids(carry(proven(), LAYERS, {"telemetry": {"interval_s": 30}})) == ["cuda", "kernel", "nvidia_driver"]


@pytest.mark.parametrize("plan", [{"instance_types": [{"name": "g5.12xlarge"}]}, {"os": {"version": "13"}}])
def test_a_change_of_what_no_layer_has_carries_nothing_over(plan: dict[str, Any]) -> None:
    found = carry(proven(), LAYERS, plan)
    assert found.records == {}
    assert "which is of no layer: all checks run" in found.notes[0]


def test_other_checks_carry_nothing_over() -> None:
    found = carried.carry_over(earlier(proven()), proven().plan, LAYERS, "sha256:other", MAX_AGE)
    assert found.records == {} and "all of them run" in found.notes[0]


@pytest.mark.parametrize(
    "check", [a_check("cuda", "FLAKY"), a_check("cuda", "UNPROVEN"), a_check("cuda", waived=WAIVER)]
)
def test_what_did_not_pass_by_itself_is_proven_anew(check: Any) -> None:
    found = carry(replace(proven(), hosts=(a_host("g5.12xlarge", check),)), TELEMETRY_CHANGED)
    assert ids(found) == ["nvidia_driver"]


def test_what_was_carried_over_keeps_its_first_proof_until_that_is_too_old() -> None:
    def chained(days: float) -> carried.Carried:
        first = CarriedOver(now(days), "sha256:first", "ami-0", "driver", "sha256:d")
        host = a_host("g5.12xlarge", a_check("cuda", carried=first))
        return carry(replace(proven(), hosts=(host,)), TELEMETRY_CHANGED)

    (cuda,) = [record for record in chained(6).of("g5.12xlarge") if record.role == "cuda"]
    assert cuda.carried is not None and (cuda.carried.report, cuda.carried.image) == ("sha256:first", "ami-0")
    assert ids(chained(8)) == ["nvidia_driver"]


def test_other_instance_types_are_proven_anew() -> None:
    assert carry(proven(), TELEMETRY_CHANGED).of("p4d.24xlarge") == ()


def test_the_validator_does_not_run_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = carry(proven(), TELEMETRY_CHANGED)
    proof = Proof({"roles": []}, None, None, tmp_path, Progress("quiet"), carried=earlier)
    asked: list[Any] = []

    def run(command: list[Any], *_: Any) -> HostResults:
        asked.extend(command)
        return HostResults("h", (a_check("boot"),))

    monkeypatch.setattr("gpu_ami.validate.validator_process.run_checks", run)
    results = proof.check(Target("ssh://h", "g5.12xlarge"))
    file = tmp_path / "evidence/g5.12xlarge" / CARRIED_FILE
    assert f"--carried={file}" in asked
    assert sorted(file.read_text().split()) == ["cuda::test_it", "kernel::test_it", "nvidia_driver::test_it"]
    assert sorted(check.role for check in results.checks) == ["boot", "cuda", "kernel", "nvidia_driver"]


def carried_host() -> HostReport:
    earlier_proof = CarriedOver(now(), "sha256:r", "ami-0", "driver", "sha256:d")
    return a_host("g5.12xlarge", a_check("cuda", carried=earlier_proof))


def test_the_level_is_rehearsed_unless_the_place_allows_more() -> None:
    report = replace(a_report(carried_host()), layers=LAYERS)
    assert certificate.level_of(report) == "rehearsed"
    assert certificate.level_of(replace(report, certify_carried=True)) == "certified"
    assert certificate.level_of(a_report(a_host())) == "certified"


def test_certificate_and_report_name_them(tmp_path: Path) -> None:
    report = replace(a_report(carried_host()), layers=LAYERS)
    statement = certificate.certify(report)
    lines = [line for line in statement.not_proven if "did not run on this image" in line]
    assert lines == [
        f"g5.12xlarge: 1 check of layer driver did not run on this image: proven on {now()[:10]} on ami-0"
        " by report sha256:r, layer digest sha256:d"
    ]
    assert f"carried over from {now()[:10]}" in certificate.markdown(statement)
    writer.write(report, tmp_path)
    again = certificate.report_digest(Report.from_json(json.loads((tmp_path / "report.json").read_text())).to_json())
    assert again == statement.report_sha256


def test_no_check_needs_a_role_of_a_layer_above_its_own() -> None:
    """The digest of a layer is over those below it alone: such a check would be carried over when it must run."""
    roles = load_definition().roles
    height = {role: number for number, members in enumerate(roles.values()) for role in members}
    needed = re.compile(r'pytest\.mark\.planned\("(\w+)')
    found = {
        file.stem: {name for name in needed.findall(file.read_text(encoding="utf-8")) if name in height}
        for file in (Path(validator.__file__).parent / "checks").glob("*.py")
        if file.stem in height
    }
    assert {"nvidia_driver"} < found["tuning"]
    assert [role for role, names in found.items() if any(height[name] > height[role] for name in names)] == []
