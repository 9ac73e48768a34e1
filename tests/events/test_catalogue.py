"""The Xid catalogue: name, cause, severity and action of a code, the action on EC2, and the sources.

The commands in the event pages print what the pages show, and the pages name what exists.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gpu_ami.cli import main
from gpu_ami.errors import UsageError
from gpu_ami.events import catalogue
from gpu_ami.events.reader import parser_module


@pytest.mark.parametrize("code", range(1, 183))
def test_every_xid_can_be_explained(code: int) -> None:
    explanation = catalogue.explain(str(code))
    assert explanation.name and explanation.severity and explanation.ec2_meaning and explanation.sources
    assert catalogue.as_text(explanation).startswith(f"Xid {code}: ")


def test_old_branch_had_another_meaning() -> None:
    assert catalogue.explain("139").name == "OFA1 Error"
    assert catalogue.explain("139", "535.129.03").name == "CUDA Fast Path Error"
    assert catalogue.explain("145", "555.42.02").name == "Reserved in this driver branch"


def test_switch_codes() -> None:
    explanation = catalogue.explain("22013")
    assert (explanation.kind, explanation.name) == ("sxid", "Minion Link DLREQ interrupt")
    assert explanation.causes == ("NVSwitch",)
    assert catalogue.explain("sxid 22013") == explanation
    assert "decides" in catalogue.explain("10000").notes[0]


@pytest.mark.parametrize(
    ("word", "kind", "ec2_action"),
    [
        ("RM_INIT_FAILED", "gpu_init_failed", "stop_start"), ("gsp_boot_failed", "gpu_init_failed", "stop_start"),
        ("PROBE_FAILED", "gpu_init_failed", "stop_start"), ("ALREADY_LOST", "gpu_init_failed", "stop_start"),
        ("not-supported-by-driver", "gpu_init_failed", "update_driver"),
        ("BOUND_TO_ANOTHER_DRIVER", "gpu_init_failed", "update_driver"), ("DMA_ERROR", "neuron", "stop_start"),
    ],
)  # fmt: skip
def test_codes_that_are_names(word: str, kind: str, ec2_action: str) -> None:
    explanation = catalogue.explain(word)
    assert (explanation.kind, explanation.ec2_action) == (kind, ec2_action)
    text = catalogue.as_text(explanation)
    assert text.splitlines()[0].endswith(f"{explanation.code}: {explanation.name}") and "source" in text


def test_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError) as error:
        catalogue.explain("RM_BROKEN")
    assert "RM_INIT_FAILED" in str(error.value.hint)


def test_action_that_nvidia_has_not_published() -> None:
    assert any("none published" in source for source in catalogue.explain("175").sources.values())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["abc"], "'abc' is not an Xid"),
        (["-1"], "not an Xid"),
        (["999"], "999: not in the catalogue"),
        (["99999"], "99999: not in the catalogue"),
        (["9" * 30], "is not an Xid"),
        (["63", "--driver", "new"], "--driver 'new' is not a driver version"),
    ],
)
def test_wrong_codes(words: list[str], complaint: str) -> None:
    driver = words[2] if len(words) > 1 else None
    with pytest.raises(UsageError, match=complaint):
        catalogue.explain(words[0], driver)


DOCS = Path(__file__).parents[2] / "docs"
TASK = DOCS / "tasks" / "xid-fired.md"
PAGES = (DOCS / "event-parser.md", TASK)
CHECKSUM = re.compile(r"(\d{4}\.\d\d\.\d\d)\+[0-9a-f]{8}")


def console_blocks(page: Path) -> list[tuple[str, str]]:
    """(command, output) of each `$ …` line in the console blocks of a page."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    commands = [command for block in blocks for command in re.split(r"^\$ ", block, flags=re.MULTILINE) if command]
    return [(command.partition("\n")[0], command.partition("\n")[2]) for command in commands]


def test_commands_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = console_blocks(TASK)
    assert [command.split()[0] for command, _ in commands] == ["cat", "gpu-ami", "gpu-ami", "gpu-ami"]
    for command, output in commands:
        program, *arguments = shlex.split(command)
        if program == "cat":
            (tmp_path / arguments[0]).write_text(output)
            continue
        assert main(arguments) == 0
        assert CHECKSUM.sub(r"\1", capsys.readouterr().out) == CHECKSUM.sub(r"\1", output), command


def test_every_action_is_in_the_table_of_the_task() -> None:
    actions = {action.ec2 for action in parser_module("catalogue").Catalogue(policy_path=None).actions.values()}
    table = set(re.findall(r"^\| `(\w+)` \|", TASK.read_text(encoding="utf-8"), re.MULTILINE))
    assert table == actions
    assert actions <= set(re.findall(r"`(\w+)`", PAGES[0].read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (page.parent / link).is_file()] == []


@pytest.mark.parametrize(
    ("kind", "code", "ec2_action"),
    [("xid", 43, "none"), ("sxid", 22013, "none"), ("sxid", 10001, "monitor"), ("sxid", 20001, "monitor"),
     ("xid", 13, "restart_application"), ("xid", 31, "restart_application"), ("xid", 94, "restart_application"),
     ("xid", 78, "update_driver"), ("sxid", 20012, "check_link"), ("sxid", 22012, "check_link"),
     ("sxid", 10004, "check_cooling"), ("xid", 63, "schedule_reboot"), ("xid", 48, "reboot"), ("xid", 74, "reboot"),
     ("xid", 95, "reboot"), ("xid", 119, "reboot"), ("xid", 120, "reboot"), ("sxid", 12028, "reboot"),
     ("sxid", 19084, "reboot"), ("xid", 79, "stop_start"), ("xid", 54, "stop_start"), ("sxid", 23001, "stop_start"),
     ("xid", 64, "isolate")],
)  # fmt: skip
def test_examples_of_the_task_are_right(kind: str, code: int, ec2_action: str) -> None:
    catalogue = parser_module("catalogue").Catalogue(policy_path=None)
    meaning = catalogue.xid(code) if kind == "xid" else catalogue.sxid(code, "")
    assert catalogue.action(meaning.action).ec2 == ec2_action
    row = re.search(rf"^\| `{ec2_action}` \|.*$", TASK.read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None and str(code) in row.group()
