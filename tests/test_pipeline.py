"""The stages from file to file: what is used again, what is said first, and what a session offers."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami import pipeline, sources
from gpu_ami.build import builder, image
from gpu_ami.cloud import MachineTraits, Place, preflight
from gpu_ami.cloud.preflight.findings import Finding, Level
from gpu_ami.errors import BuildError, CloudError, GpuAmiError, UsageError
from gpu_ami.plan import PLAN_FILE, Plan, cost, make_plan
from gpu_ami.progress import Progress
from gpu_ami.region import SANDBOX, Region, Session, SessionRequest
from gpu_ami.report import certificate
from gpu_ami.sources.survey import Finding as SourceFinding
from gpu_ami.sources.survey import ReadIndex
from gpu_ami.validate import RESTARTS, ProofOptions, image_proof
from tests.regions import NotingRegion
from tests.report.examples import a_host, a_report
from tests.validate.node_services.test_eks import Aws, a_cluster

RECIPE = Path(__file__).parents[1] / "variables" / "recipes" / "debian12-gpu.yml"
AWS = Place(name="aws", region="eu-central-1")


def session(region: Region | None = None, **changes: Any) -> Session:
    cloud, run = SimpleNamespace(place=AWS), SimpleNamespace(id="r-1")
    return Session(AWS, cloud, run, Progress("quiet"), region or NotingRegion(), **changes)  # type: ignore[arg-type]


def test_plan_stage_writes_what_packer_and_ansible_read(tmp_path: Path) -> None:
    plan = pipeline.plan_stage(RECIPE, ["build.root_volume_gib=64"], tmp_path, session())
    assert plan["build"]["root_volume_gib"] == 64
    assert Plan.load(tmp_path / PLAN_FILE).digest == plan.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ansible.json", "packer.pkrvars.json", "plan.json"]


def test_a_wrong_recipe_is_refused_before_anything_starts(tmp_path: Path) -> None:
    recipe = tmp_path / "x.yml"
    recipe.write_text("os: debian12\nnonsense: 1\n")
    with pytest.raises(UsageError, match="nonsense"):
        pipeline.check_recipe(recipe, [])


def test_build_stage_uses_an_ami_of_the_same_plan_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pipeline.plan_stage(RECIPE, [], tmp_path, session())
    kept = image.Build("ami-1", (), plan.digest, "sha256:0", "aws", "eu-central-1", "r-0", "2026-01-01T00:00:00Z")
    monkeypatch.setattr(image, "reusable", lambda *_: kept)
    monkeypatch.setattr(image, "build_image", lambda *_, **__: pytest.fail("built anew"))
    assert pipeline.build_stage(plan, tmp_path, session(), fresh=False) == kept


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Images whose sources were asked; everything is there."""
    images: list[str] = []

    def survey(document: Any, *_: Any, **__: Any) -> sources.Survey:
        images.append(document["image"])
        index = ReadIndex("https://vendor.example/", "sha256:1", "A" * 40, "2026-11-22")
        return sources.Survey(document["image"], "", "2026-11-22T00:00:00Z", indexes=[index])

    monkeypatch.setattr(sources, "survey", survey)
    return images


def recorded(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> list[Any]:
    """What the build keeps of the sources."""
    kept: list[Any] = []

    def build(*_: Any, source_check: Any, **__: Any) -> image.Build:
        kept.append(source_check)
        return image.Build("ami-2", (), plan.digest, "sha256:0", "aws", "eu-central-1", "r-1", "2026-01-01T00:00:00Z")

    monkeypatch.setattr(image, "build_image", build)
    return kept


def test_build_on_aws_begins_with_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    plan = pipeline.plan_stage(RECIPE, [], tmp_path, session())
    kept = recorded(monkeypatch, plan)
    pipeline.build_stage(plan, tmp_path, session(), fresh=True)
    assert asked == ["debian12-gpu"]
    assert kept == [{"date": "2026-11-22T00:00:00Z", "indexes": {"https://vendor.example/": "sha256:1"}}]
    pipeline.build_stage(plan, tmp_path, session(), fresh=True, source_check=False)
    assert asked == ["debian12-gpu"] and kept[1] == {"skipped": True}


def test_build_at_another_endpoint_asks_no_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    plan = pipeline.plan_stage(RECIPE, [], tmp_path, session())
    kept = recorded(monkeypatch, plan)
    local = dataclasses.replace(
        session(), place=dataclasses.replace(AWS, api=dataclasses.replace(AWS.api, endpoint="http://127.0.0.1:1"))
    )
    pipeline.build_stage(plan, tmp_path, local, fresh=True)
    assert asked == [] and kept == [None]


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ("missing", UsageError, "nvidia_driver nvidia-smi 1: missing: not in https://v/; nearest nvidia-smi 2"),
        ("unreachable", CloudError, "a source cannot be reached"),
    ],
)
def test_nothing_is_launched_where_a_source_lacks_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, error: type[GpuAmiError], message: str
) -> None:
    finding = SourceFinding("nvidia_driver", "nvidia-smi", "1", state, "https://v/", near=("nvidia-smi 2",))
    found = sources.Survey("debian12-gpu", "", "2026-11-22T00:00:00Z", [finding])
    monkeypatch.setattr(sources, "survey", lambda *_, **__: found)
    monkeypatch.setattr(image, "build_image", lambda *_, **__: pytest.fail("built"))
    plan = pipeline.plan_stage(RECIPE, [], tmp_path, session())
    with pytest.raises(error) as caught:
        pipeline.build_stage(plan, tmp_path, session(), fresh=True)
    assert message in str(caught.value) and "--no-source-check" in caught.value.hint


@pytest.mark.parametrize(
    ("check", "ami", "named"),
    [({"skipped": True}, "ami-1", True), ({"skipped": True}, "ami-2", False), (None, "ami-1", False)],
)
def test_certificate_names_sources_that_were_not_asked(tmp_path: Path, check: Any, ami: str, named: bool) -> None:
    made = image.Build(ami, (), "sha256:1", "sha256:0", "aws", "r", "r-1", "now", source_check=check)
    made.write(tmp_path)
    statement = pipeline.certify_stage(a_report(a_host()), tmp_path)
    assert statement.image.ami == "ami-1"
    assert ("sources: not asked before the build (--no-source-check)" in statement.not_proven) is named


@pytest.mark.parametrize(
    ("sandbox", "ami", "named"), [(True, "ami-1", True), (True, "ami-2", False), (False, "ami-1", False)]
)
def test_certificate_names_a_build_without_a_booted_builder(
    tmp_path: Path, sandbox: bool, ami: str, named: bool
) -> None:
    made = image.Build(ami, (), "sha256:1", "sha256:0", "local", "r", "r-1", "now", sandbox=sandbox)
    made.write(tmp_path)
    statement = pipeline.certify_stage(a_report(a_host()), tmp_path)
    assert (builder.NOT_BOOTED in statement.not_proven) is named


def test_who_builds_is_told_on_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pipeline.plan_stage(RECIPE, [], tmp_path, session())
    recorded(monkeypatch, plan)
    out = io.StringIO()
    place = dataclasses.replace(AWS, api=dataclasses.replace(AWS.api, endpoint="http://127.0.0.1:1"))
    told = dataclasses.replace(session(builder_note="a sandbox"), place=place, progress=Progress("plain", out))
    pipeline.build_stage(plan, tmp_path, told, fresh=True)
    assert "· a sandbox" in out.getvalue()


def test_a_sandbox_is_of_the_local_region(tmp_path: Path) -> None:
    where = tmp_path / "aws.yml"
    where.write_text("name: aws\nregion: us-east-1\n")
    with (
        pytest.raises(UsageError, match="--builder sandbox is of the local region"),
        pipeline.open_session(SessionRequest(where, builder=SANDBOX), Progress("quiet")),
    ):
        pass


@pytest.mark.parametrize(("ami", "named"), [("ami-1", True), ("ami-2", False)])
def test_certificate_names_the_source_ami_and_how_it_was_found(tmp_path: Path, ami: str, named: bool) -> None:
    """An SSM parameter means another AMI next week."""
    made = image.Build(ami, (), "sha256:1", "sha256:0", "aws", "r", "r-1", "now", source_ami="ami-0")
    replace(made, source_ami_name="al2023-6.1", source_ami_through="ssm:/aws/service/x").write(tmp_path)
    statement = pipeline.certify_stage(a_report(a_host()), tmp_path)
    assert statement.image.source_ami == ("ami-0 (al2023-6.1; ssm:/aws/service/x)" if named else "")
    assert ("| source AMI |" in (tmp_path / "certificate.md").read_text()) is named


LAYER = {"digest": "sha256:1", "parts": {}, "created": "2026-11-23T00:00:00.000Z"}


@pytest.mark.parametrize(("ami", "named"), [("ami-1", True), ("ami-2", False)])
def test_certificate_names_the_layers_that_came_with_a_layer_image(tmp_path: Path, ami: str, named: bool) -> None:
    rows = (
        {"name": "driver", "from_image": True, "ami": "ami-7", **LAYER},
        {"name": "telemetry", "from_image": False, "ami": "", **LAYER},
    )
    image.Build(ami, (), "sha256:1", "sha256:0", "aws", "r", "r-1", "now", layers=rows).write(tmp_path)
    statement = pipeline.certify_stage(a_report(a_host()), tmp_path)
    names = [(layer.name, layer.ami, layer.created) for layer in statement.image.layers]
    assert names == ([("driver", "ami-7", "2026-11-23T00:00:00.000Z")] if named else [])
    line = "| layer driver | `sha256:1` from ami-7 of 2026-11-23T00:00:00.000Z, not built with this image |"
    assert (line in (tmp_path / "certificate.md").read_text()) is named
    assert certificate.load(tmp_path / "certificate.json") == statement


def test_fresh_builds_anew_after_mirror_and_source_ami_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pipeline.plan_stage(RECIPE, [], tmp_path, session())
    made = image.Build("ami-2", (), plan.digest, "sha256:0", "aws", "eu-central-1", "r-1", "2026-01-01T00:00:00Z")
    region = NotingRegion()
    monkeypatch.setattr(image, "reusable", lambda *_: pytest.fail("looked for one"))
    monkeypatch.setattr(image, "build_image", lambda *_, **__: region.asked.append("build") or made)
    assert pipeline.build_stage(plan, tmp_path, session(region), fresh=True) == made
    assert region.asked == ["mirror", "source AMI", "build"]


def test_agent_package_is_for_the_local_region(tmp_path: Path) -> None:
    where = tmp_path / "aws.yml"
    where.write_text("region: eu-central-1\n")
    with (
        pytest.raises(UsageError, match="--agent-package"),
        pipeline.open_session(SessionRequest(where, tmp_path / "agent.deb"), Progress("quiet")),
    ):
        pytest.fail("a session was opened")


def _findings(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    monkeypatch.setattr(preflight, "examine", lambda _cloud: list(findings))


def test_a_wrong_place_is_refused_before_a_run_begins(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "aws.yml"
    where.write_text("region: eu-central-1\n")
    _findings(monkeypatch, Finding(Level.ERROR, "subnet_id", "subnet-1 is not there", "a subnet", "correct subnet_id"))
    with (
        pytest.raises(UsageError, match="subnet-1 is not there; expected a subnet"),
        pipeline.open_session(SessionRequest(where), Progress("quiet")),
    ):
        pytest.fail("a session was opened")
    assert not list(home.glob("runs/*"))


def test_a_place_with_an_endpoint_of_its_own_is_not_examined(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "own.yml"
    where.write_text("region: eu-central-1\nendpoint: http://127.0.0.1:9\n")
    _findings(monkeypatch, Finding(Level.ERROR, "subnet_id", "examined"))
    with pipeline.open_session(SessionRequest(where), Progress("quiet")) as opened:
        assert opened.place.api.endpoint == "http://127.0.0.1:9"


EKS_RECIPE = RECIPE.with_name("eks-1.34-al2023-gpu.yml")
ON_AWS = replace(AWS, instance_profile="nodes")


def eks_session(place: Place = ON_AWS, **clusters: Any) -> Session:
    """At a place with these EKS clusters; tests/validate/node_services/test_eks.py has what is refused of each."""
    own = SimpleNamespace(id="r-1")
    return Session(place, Aws(place, **clusters), own, Progress("quiet"), NotingRegion())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recipe", "asked", "opened", "told"),
    [
        ("debian12-gpu", {"join": "x"}, session(), "an image of node family ec2 is no node of a cluster"),
        ("dlami-ubuntu2204", {"join": ""}, session(), "an image of node family dlami is no node of a cluster"),
        ("eks-1.34-al2023-gpu", {"join": "x"}, eks_session(), "--join x: the EKS cluster is not in eu-central-1"),
        (
            "eks-1.34-al2023-gpu",
            {"join": "x"},
            eks_session(x=a_cluster(version="1.33")),
            "the cluster has Kubernetes 1.33, the plan's kubelet 1.34",
        ),
        ("debian12-gpu", {"nodes": 2}, session(), "expected one instance type, got g5.12xlarge, p4d.24xlarge"),
        (
            "al2023-neuron",
            {"nodes": 2, "instance_types": ("inf2.48xlarge",)},
            session(),
            "inf2.48xlarge has no EFA interface",
        ),
    ],
)
def test_what_cannot_be_proven_is_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, asked: Any, opened: Session, told: str
) -> None:
    monkeypatch.setattr(pipeline, "build_stage", lambda *_, **__: pytest.fail("built"))
    monkeypatch.setattr(pipeline, "proof_of", lambda *_: pytest.fail("proven"))
    options = ProofOptions(**asked)
    file = RECIPE.with_name(f"{recipe}.yml")
    building, certifying = pipeline.BuildOptions(), pipeline.CertificateOptions()
    with pytest.raises(UsageError, match=re.escape(told)) as caught:
        pipeline.prove(
            file, [], tmp_path, contextlib.nullcontext(opened), options, building=building, certifying=certifying
        )
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match=re.escape(told)):
        pipeline.decide(Plan.load(tmp_path / PLAN_FILE), options, opened)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (Finding(Level.ERROR, "role of nodes", "ecr:BatchGetImage is not allowed"), UsageError),
        (Finding(Level.ERROR, "cluster", "not examined: AccessDeniedException", refused=True), CloudError),
        (Finding(Level.WARNING, "cluster", "it has no add-on vpc-cni"), None),
    ],
)
def test_a_cluster_is_examined_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, row: Finding, error: type[GpuAmiError] | None
) -> None:
    """What only the place lacks would otherwise fail as a check of the image."""
    plan, asked, seen = make_plan(EKS_RECIPE, ON_AWS), ProofOptions(join="x"), list[Any]()
    opened = eks_session(x=a_cluster())
    monkeypatch.setattr(preflight, "examine_cluster", lambda *words: seen.append(words) or [row])
    notes = list[str]()
    monkeypatch.setattr(opened.progress, "note", notes.append)
    if error is None:
        pipeline.decide(plan, asked, opened, pipeline.BuildOptions())
        assert any("it has no add-on vpc-cni" in note for note in notes)
    else:
        with pytest.raises(error, match=re.escape(row.found)) as caught:
            pipeline.decide(plan, asked, opened, pipeline.BuildOptions())
        assert caught.value.exit_code == (2 if error is UsageError else 4)
    assert seen == [(opened.cloud, plan.document, "x", 1)]


def test_a_cluster_is_not_examined_in_the_local_region_or_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(EKS_RECIPE, ON_AWS)
    monkeypatch.setattr(preflight, "examine_cluster", lambda *_: pytest.fail("examined"))
    local = eks_session(replace(ON_AWS, api=replace(ON_AWS.api, endpoint="http://127.0.0.1:9")), x=a_cluster())
    pipeline.decide(plan, ProofOptions(join="x"), local, pipeline.BuildOptions())
    pipeline.decide(plan, ProofOptions(), eks_session(), pipeline.BuildOptions())


@pytest.mark.parametrize("billed", [True, False])
def test_expected_cost_is_noted_where_machines_are_billed_and_bounded_everywhere(billed: bool) -> None:
    root = Path(__file__).parent.parent
    plan = make_plan(root / "variables" / "recipes" / "debian12-gpu.yml", Place("aws", "us-east-1"))
    notes: list[str] = []
    session: Any = SimpleNamespace(
        place=Place("here", "us-east-1", machines=MachineTraits(billed=billed)),
        progress=SimpleNamespace(note=notes.append),
        budget=cost.Budget(),
        cloud=None,
        region=SimpleNamespace(images=None),
    )
    pipeline.decide(plan, ProofOptions(), session, pipeline.BuildOptions())
    assert len(notes) == (3 if billed else 0)
    assert not billed or "p4d.24xlarge 117 (35.10 USD)" in notes[2]
    assert not billed or "one that hangs runs until `gpu-ami sweep` (no dead_man_role)" in notes[1]
    pipeline.decide(plan, ProofOptions(restarts=RESTARTS), session, pipeline.BuildOptions())
    assert not billed or notes[-1].startswith("stop-start of p4d.24xlarge: EC2 may have no capacity")
    with pytest.raises(UsageError, match="--max-cost"):
        pipeline.decide(plan, ProofOptions(max_cost=0.01), session, pipeline.BuildOptions())


def test_the_builder_counts_against_max_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    plan = make_plan(RECIPE, AWS)
    builder = plan["build"]["instance_type"]
    limits: list[float] = []
    own = session()
    decided = pipeline.decide(plan, ProofOptions(), own)

    def build(*_: Any, max_seconds: float, **__: Any) -> Any:
        limits.append(max_seconds)
        clock[0] += max_seconds / 2
        return SimpleNamespace(ami="ami-1")

    monkeypatch.setattr(image, "build_image", build)
    own.budget.max_cost = 2.0
    price = cost.hourly_usd(builder)
    assert price
    pipeline.build_within(plan, tmp_path, own, tmp_path, None)
    assert limits == [pytest.approx(2.0 / price * 3600)] and own.budget.spent == pytest.approx(1.0)
    pipeline.build_within(plan, tmp_path, own, tmp_path, None)  # half of what is left
    assert own.budget.spent == pytest.approx(1.5)
    with pytest.raises(UsageError, match=r"the build has cost 1\.50 USD"):
        pipeline.require_rest(plan, replace(decided, options=ProofOptions(max_cost=2.0)), own)


def test_the_machines_of_a_proof_may_cost_what_the_builder_left(tmp_path: Path) -> None:
    own = session()
    own.budget.spent = 1.5
    plan = pipeline.plan_stage(RECIPE, [], tmp_path, own)
    asked = ProofOptions(max_cost=2.0, nodes=2)
    proof = pipeline.proof_of(plan, "ami-1", tmp_path, own, asked)
    assert (proof.options.max_cost, proof.spent, proof.options.nodes) == (2.0, 1.5, 2)


def test_a_builder_that_costs_too_much_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    own = session()
    own.budget.max_cost = 0.01

    def build(*_: Any, max_seconds: float, **__: Any) -> None:
        clock[0] += max_seconds
        raise BuildError("packer did not complete within 90 s")

    monkeypatch.setattr(image, "build_image", build)
    with pytest.raises(CloudError, match=r"--max-cost 0\.01: the builder .* was ended") as caught:
        pipeline.build_within(make_plan(RECIPE, AWS), tmp_path, own, tmp_path, None)
    assert caught.value.exit_code == 4


def test_what_will_be_proven_is_decided_before_anything_is_launched() -> None:
    plan = make_plan(RECIPE, AWS)
    options = ProofOptions(["g5.12xlarge"], restarts=("reboot",), max_cost=50.0)
    decided = pipeline.decide(plan, options, session(), pipeline.BuildOptions())
    shown = decided.to_json()
    assert (shown["instance_types"], shown["restarts"], shown["nodes"]) == (["g5.12xlarge"], ["reboot"], 1)
    assert shown["builder"] == plan["build"]["instance_type"] and shown["max_cost"] == 50.0
    lines = dict(line.split(maxsplit=1) for line in decided.text().splitlines())
    assert lines["machines"] == "1 of each: g5.12xlarge" and lines["cluster"] == "none"
    assert pipeline.decide(plan, options, session()).builder is None


@pytest.mark.parametrize(
    ("left_out", "called"), [("no_machines", ["files"]), ("no_files", ["machines without files: none selected"])]
)
def test_what_is_left_out_is_not_begun(
    left_out: str, called: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def prove_image(*_: Any, files: Any, no_files: str) -> None:
        calls.append(f"machines {'with' if files else 'without'} files: {no_files}")

    monkeypatch.setattr(pipeline, "validate_files_stage", lambda *_: calls.append("files"))
    monkeypatch.setattr(pipeline, "proof_of", lambda *_: None)
    monkeypatch.setattr(image_proof, "prove_image", prove_image)
    options = replace(ProofOptions(), **{left_out: "none selected"})  # type: ignore[arg-type]
    decided = pipeline.ProofPlan("x", options, ("g5.xlarge",), cost.Estimate(0.0, {}), False)
    plan = make_plan(RECIPE, AWS)
    pipeline.validate_stage(plan, "ami-1", tmp_path, session(NotingRegion(tmp_path / "images")), decided)
    assert calls == called
