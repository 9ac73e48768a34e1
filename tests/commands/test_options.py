"""--checks and --waivers are read before anything is launched for them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from gpu_ami.cli import main
from gpu_ami.commands import check_options
from gpu_ami.commands import options as stages
from gpu_ami.errors import UsageError
from gpu_ami.validate import A_MACHINE, RESTARTS


def options(*words: str) -> list[str]:
    parser = argparse.ArgumentParser()
    stages.add_checks(parser)
    return check_options.validator_options(parser.parse_args(words))


@pytest.mark.parametrize(("words", "where"), [([], None), (["--where", "local"], None), (["--where", "a"], Path("a"))])
def test_the_local_region_can_be_named(words: list[str], where: Path | None) -> None:
    parser = argparse.ArgumentParser()
    stages.add_where(parser)
    assert parser.parse_args(words).where == where


@pytest.mark.parametrize(
    ("words", "join"),
    [([], None), (["--join"], ""), (["--join", "--other"], ""), (["--join", "gpu-nodes"], "gpu-nodes")],
)
def test_a_cluster_can_be_named(words: list[str], join: str | None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--other", action="store_true")
    stages.add_join(parser)
    assert parser.parse_args(words).join == join


@pytest.mark.parametrize("name", ["", "-x", "a b"])
def test_what_is_no_name_of_a_cluster(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    stages.add_join(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--join={name}"])
    assert f"expected the name of a cluster, such as gpu-nodes, got {name!r}" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["plan", "r.yml"], ["prove", "r.yml"], ["observe"], ["merge", "a"], ["rehearse"]])
@pytest.mark.parametrize(("name", "where"), [("file", ""), ("file/sub", " ({folder}/file is a file)")])
def test_a_file_in_place_of_the_output_folder_is_said(
    command: list[str], name: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is read or started."""
    (tmp_path / "file").touch()
    assert main([*command, "-o", str(tmp_path / name)]) == 2
    expected = f"{tmp_path / name}: expected a folder, got a file{where.format(folder=tmp_path)}; name another"
    assert expected in capsys.readouterr().err


@pytest.mark.slow
def test_checks_that_can_be_collected(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_it(host):\n    assert host.file('/').exists\n")
    assert options("--checks", str(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("test_mine.py", "import there_is_no_such_module\n", "there_is_no_such_module"),
        ("test_mine.py", "def test_it(host:\n", "SyntaxError"),
        ("mine.py", "def test_it(host):\n    pass\n", "no check in"),
    ],
)
def test_checks_that_cannot(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as refused:
        options("--checks", str(tmp_path))
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("select", "restarts", "options", "expected"),
    [
        (None, None, [], RESTARTS),
        ("efa and not version", None, ["-k", "efa and not version"], ()),
        ("efa", "reboot", ["-k", "efa"], ("reboot",)),
    ],
)
def test_selection_is_the_validators(
    select: str | None, restarts: str | None, options: list[str], expected: tuple[str, ...]
) -> None:
    parser = argparse.ArgumentParser()
    stages.add_checks(parser)
    stages.add_restarts(parser)
    words = [*(["-k", select] if select else []), *(["--restarts", restarts] if restarts else [])]
    args = parser.parse_args(words)
    assert check_options.validator_options(args) == options
    assert stages.restarts(args) == expected


def selection(expression: str) -> check_options.Selection:
    return check_options.Selection(expression, [], [A_MACHINE])


@pytest.mark.slow
def test_an_expression_that_pytest_refuses_is_refused_before_a_launch(tmp_path: Path) -> None:
    assert options("-k", "efa and not version") == ["-k", "efa and not version"]
    assert selection("efa and not version").require_some(tmp_path, None) == {A_MACHINE}
    with pytest.raises(UsageError, match=r"-k 'a and \(' is no expression of pytest's") as refused:
        selection("a and (").require_some(tmp_path, None)
    assert "at column 8" in refused.value.details[0]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e9", "soon"])
def test_a_deadline_is_a_number_of_seconds(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected seconds"):
        stages.seconds(text)
    assert stages.seconds("0.5") == 0.5


def test_waivers_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "waivers.yml"
    file.write_text("- {check: 'boot::*'}\n")
    with pytest.raises(UsageError, match="--waivers"):
        options("--waivers", str(file))


def test_options_reach_the_validator(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    stages.add_checks(parser)
    assert check_options.validator_options(parser.parse_args([])) == []
    given = parser.parse_args(["--provoke-xid", "--golden", str(tmp_path)])
    assert check_options.validator_options(given) == [f"--golden={tmp_path}", "--provoke-xid"]
    with pytest.raises(UsageError, match="/nonexistent: no such file or folder"):
        check_options.validator_options(parser.parse_args(["--golden", "/nonexistent"]))


def test_the_account_of_every_file_can_be_asked_for_anywhere() -> None:
    assert options("--account-files") == ["--account-files"]


def test_log_groups_are_those_that_a_place_knows() -> None:
    from gpu_ami.cloud.place import LOG_GROUPS

    assert stages.LOG_GROUPS == LOG_GROUPS


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("mine.yml", "a recipe, expected a folder with plan.json", "gpu-ami prove mine.yml does all steps"),
        (
            "mine.yml",
            "a recipe, expected a folder with plan.json",
            "gpu-ami plan mine.yml writes out/mine, which is to",
        ),
        (
            "debian12-gpu",
            "a recipe, expected a folder with plan.json",
            "gpu-ami plan debian12-gpu writes out/debian12-gpu",
        ),
        ("plan.json", "a file, expected a folder with plan.json", "name the folder: ."),
        ("nothing", "no such folder", "gpu-ami plan RECIPE -o nothing writes it"),
    ],
)
def test_file_is_no_folder_to_go_on_from(
    name: str, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if Path(name).suffix:
        Path(name).touch()
    with pytest.raises(UsageError) as refused:
        stages.existing_plan(Path(name))
    assert (refused.value.message, hint in str(refused.value.hint)) == (f"{name}: {message}", True)


_FOLDER = "expected OUT, the folder with plan.json, without -o"


@pytest.mark.parametrize(
    ("command", "before"), [("build", ""), ("validate", " gpu-ami build new,"), ("fleet attach", "")]
)
@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            "mine.yml -o new", f"mine.yml -o new: {_FOLDER}, got a recipe and -o",
            "gpu-ami plan mine.yml -o new,{before} then gpu-ami {command} new;"
            " gpu-ami prove mine.yml -o new does all steps",
        ),
        (
            "--out=new mine", f"mine -o new: {_FOLDER}, got a recipe and -o",
            "gpu-ami plan mine -o new,{before} then gpu-ami {command} new; gpu-ami prove mine -o new does all steps",
        ),
        ("-o new", f"-o new: {_FOLDER}", "gpu-ami {command} new"),
        (
            "there -o new", f"there -o new: {_FOLDER}, got two folders",
            "gpu-ami {command} there, or gpu-ami {command} new",
        ),
    ],
)  # fmt: skip
def test_the_folder_of_a_plan_is_named_without_an_option(
    command: str, before: str, words: str, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """`plan` and `prove` have -o; a reader tries the same of the stages between."""
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    assert main([*command.split(), *words.split()]) == 2
    assert capsys.readouterr().err == f"gpu-ami: {message}\n  → {hint.format(command=command, before=before)}\n"


def test_another_stage_names_its_own_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "-o", "new"]) == 2
    assert "expected OUT, the folder with report.json, without -o" in capsys.readouterr().err
