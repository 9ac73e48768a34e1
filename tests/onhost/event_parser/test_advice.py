"""What an event tells the on-call engineer to do: per code by its source, executable on EC2, never too little."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from gpu_ami.events import catalogue as xid
from gpu_ami.events.reader import parser_folder, parser_module

catalogue_module, event_module = parser_module("catalogue"), parser_module("event")
details, grammar, nvlink5 = parser_module("details"), parser_module("grammar"), parser_module("nvlink5")
CATALOGUE = catalogue_module.Catalogue(policy_path=None)
XIDS = range(1, 178)


def rows(name: str) -> list[dict[str, str]]:
    with (parser_folder() / "hwevents" / "data" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def event_of(text: str, driver: str | None = None) -> dict[str, Any]:
    """The event of one kernel record."""
    builder = event_module.Builder(CATALOGUE)
    moment = event_module.Moment(1, 1, "kernel", {})
    fact = grammar.parse(text)
    build = builder.sxid if isinstance(fact, grammar.Sxid) else builder.xid
    event: dict[str, Any] = build(moment, fact, driver)
    return event


def sxid_event(code: int, message: str) -> dict[str, Any]:
    return event_of(f"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): {code:05d}, {message}")


def asks_for_something(event: dict[str, Any]) -> bool:
    return event["ec2_action"] != "none" and not event["ec2_meaning"].startswith("Nothing to do")


@pytest.mark.parametrize("code", XIDS)
def test_no_severe_xid_says_nothing_to_do(code: int) -> None:
    explanation = xid.explain(str(code))
    if explanation.severity in ("critical", "fatal"):
        assert explanation.ec2_action != "none"
        assert "Nothing to do" not in explanation.ec2_meaning


@pytest.mark.parametrize("row", rows("sxid.csv"), ids=lambda row: row["sxid"])
def test_no_fatal_or_stalling_sxid_says_nothing_to_do(row: dict[str, str]) -> None:
    """Fatal by the Fabric Manager user guide, stalling by its impact, or fatal by the driver's own word in the line."""
    code = int(row["sxid"])
    if (
        row["class"] in ("fatal", "always_fatal")
        or "stall" in row["impact"]
        or row["severity"] in ("critical", "fatal")
    ):
        assert asks_for_something(sxid_event(code, "Non-fatal, Link 01 x")), row
        assert "Nothing to do" not in xid.explain(row["sxid"]).ec2_meaning
    fatal = sxid_event(code, "Fatal, Link 01 x")
    assert asks_for_something(fatal) and fatal["severity"] in ("critical", "fatal")


@pytest.mark.parametrize("driver", ["570.158.01", "580.65.06"])
def test_no_fatal_nvlink5_rule_says_nothing_to_do(driver: str) -> None:
    decoder = nvlink5.Nvlink5(str(parser_folder() / "hwevents" / "data"))
    layout = nvlink5.layout_of(driver)
    fatal = [rule for rule in decoder.rules if rule.severity != "Non-fatal"]
    assert len(fatal) == 47, "44 rows, and 3 whose second action is a reset"
    for rule in fatal:
        words = int(rule.masks[layout].replace("-", "0"), 2), (rule.statuses or [0])[0]
        message = f"{rule.unit} Fatal XC0 i0 Link 00 (0x{words[0]:08x} 0x{words[1]:08x} 0x0 0x0 0x0 0x0)"
        event = event_of(f"NVRM: Xid (PCI:0000:00:1e): {rule.xid}, {message}", driver)
        assert asks_for_something(event), (rule, event["action"])
        assert event["severity"] == "critical"


@pytest.mark.parametrize("number", range(1, 6))
def test_every_recovery_action_of_xid_154_asks_for_something(number: int) -> None:
    line = f"NVRM: Xid (PCI:0000:00:1e): 154, GPU recovery action changed from 0x0 (None) to 0x{number:x} (label)"
    assert asks_for_something(event_of(line))


@pytest.mark.parametrize(
    ("code", "severity", "action", "ec2_action"),
    [
        # Fabric Manager user guide DU-09883-001 v1.3: recovery of each code (through leptonai/gpud 4a8de33a)
        (12028, "critical", "RESTART_VM", "reboot"),  # traffic stalls: restart the guest VM
        (11004, "critical", "RESTART_VM", "reboot"),
        (19084, "critical", "RESET_FABRIC", "reboot"),  # reset all GPUs and NVSwitches
        (10003, "fatal", "RESET_FABRIC", "reboot"),
        (23001, "fatal", "RESTART_BM", "stop_start"),  # restart the host
        (22003, "fatal", "RESTART_BM", "stop_start"),
        (24007, "critical", "RESTART_VM", "reboot"),
        (22012, "critical", "CHECK_LINK", "check_link"),
        (20012, "warning", "CHECK_LINK", "check_link"),
        (10004, "warning", "CHECK_COOLING", "check_cooling"),
        (10001, "warning", "MONITOR_FABRIC", "monitor"),
        (20001, "warning", "MONITOR_FABRIC", "monitor"),
        (11012, "warning", "IGNORE", "none"),  # corrected by the NVSwitch
        (22013, "warning", "IGNORE", "none"),  # can be ignored
    ],
)
def test_sxid_recovery_is_the_guides_per_code(code: int, severity: str, action: str, ec2_action: str) -> None:
    event = sxid_event(code, "Non-fatal, Link 01 x" if severity == "warning" else "Fatal, Link 01 x")
    assert (event["severity"], event["action"], event["ec2_action"]) == (severity, action, ec2_action)
    assert xid.explain(str(code)).action == action


@pytest.mark.parametrize(
    ("message", "severity", "action", "decided_by"),
    [
        ("Fatal, Link 01 x", "critical", "RESTART_VM", "message"),
        ("Non-fatal, Link 01 x", "warning", "MONITOR_FABRIC", "message"),
        ("Correctable, Link 01 x", "warning", "IGNORE", "message"),
        ("NVSWITCH Temperature 100C", "warning", "CONTACT_SUPPORT", "unknown"),
    ],
)
def test_driver_decides_where_the_guide_lists_no_code(
    message: str, severity: str, action: str, decided_by: str
) -> None:
    event = sxid_event(10006, message)
    assert (event["severity"], event["action"], event["decided_by"]) == (severity, action, decided_by)


def test_sxid_numbers_of_older_branches() -> None:
    """R525 to R545 used 28000 to 29006 for multicast and reduction units (ctrl_dev_nvswitch.h per tag)."""
    line = "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 28002, Fatal, Link 29 x"
    assert event_of(line, "535.183.01")["name"] == "nport multicasttstate tagpool ecc dbe err"
    assert event_of(line, "580.65.06")["name"] == "osfp therm warn deactivated"
    unknown_today = "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 28006, Non-fatal, Link 29 MC TS crumbstore MCTO"
    assert event_of(unknown_today)["name"] == "nport multicasttstate crumbstore mcto err"
    assert xid.explain("28002", "535.183.01").mnemonic == "NVSWITCH_ERR_HW_NPORT_MULTICASTTSTATE_TAGPOOL_ECC_DBE_ERR"


RESET_CODES = [48, 46, 62, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 166, 167, 169, 171, 172]


@pytest.mark.parametrize("code", RESET_CODES)
def test_a_reset_is_a_reboot_on_ec2(code: int) -> None:
    """EC2 blocks GPU resets (NVIDIA/ai-cloud-validation#603): reboot first; the command is only for other places."""
    event = event_of(f"NVRM: Xid (PCI:0000:00:1e): {code}, x")
    assert event["ec2_action"] == "reboot"
    words = event["ec2_meaning"]
    assert "EC2 blocks GPU resets" in words
    if "--gpu-reset" in words:
        assert words.index("reboot the instance") < words.index("--gpu-reset")
        assert "-i 0000:00:1e.0" in words


def test_failed_remap_isolates_and_pending_remap_schedules_a_reset() -> None:
    failed = event_of(
        "NVRM: Xid (PCI:0000:00:1e): 64, Row Remapper Error: (0x1) - All reserved rows for bank are remapped"
    )
    assert (failed["severity"], failed["ec2_action"]) == ("fatal", "isolate")
    assert "Take the instance out of service: GPU 0000:00:1e.0" in failed["ec2_meaning"]
    pending = event_of(
        "NVRM: Xid (PCI:0000:00:1e): 63, Row Remapper: New row (0x1) marked for remapping, reset gpu to activate."
    )
    assert (pending["severity"], pending["ec2_action"]) == ("warning", "schedule_reboot")
    assert pending["ec2_meaning"].startswith("Schedule a reset: let the jobs on GPU 0000:00:1e.0 finish")
    assert "nvidia-smi -q -d ROW_REMAPPER -i 0000:00:1e.0" in pending["ec2_meaning"]
    deferred = event_of("NVRM: Xid (PCI:0000:00:1e): 94, Contained: LTC (0x3, 0x0). RST: No, D-RST: Yes")
    assert deferred["ec2_action"] == "schedule_reboot"


@pytest.mark.parametrize(
    ("board", "severity", "action"),
    [
        ({"remap_pending": "No", "remap_failure": "No", "recovery_action": "None"}, "info", "IGNORE"),
        ({}, "info", "IGNORE"),
        ({"remap_pending": "Yes"}, "warning", "SCHEDULE_RESET"),
        ({"remap_pending": "Yes", "remap_failure": "Yes"}, "fatal", "ISOLATE"),
        ({"recovery_action": "Reset"}, "critical", "RESET_GPU"),
        ({"recovery_action": "GPU_RESET"}, "critical", "RESET_GPU"),  # as one program's documents of a GB200 write it
        ({"recovery_action": "Reboot"}, "fatal", "RESTART_VM"),
        ({"recovery_action": "NODE_REBOOT"}, "fatal", "RESTART_VM"),
        ({"reset_required": "Yes"}, "critical", "RESET_GPU"),  # before R565
        ({"reset_required": "Yes", "drain_and_reset_recommended": "Yes"}, "critical", "RESET_GPU"),
        ({"drain_and_reset_recommended": "Yes"}, "critical", "DRAIN_RESET"),
        ({"reset_required": "No", "drain_and_reset_recommended": "No"}, "info", "IGNORE"),
        ({"recovery_action": "Drain and Reset", "remap_pending": "Yes"}, "critical", "DRAIN_RESET"),
        ({"recovery_action": "a label of a later driver"}, "warning", "CONTACT_SUPPORT"),
    ],
)
def test_state_at_boot_gives_the_same_advice(board: dict[str, str], severity: str, action: str) -> None:
    assert details.board_advice(board) == (severity, action)


@pytest.mark.parametrize(
    ("text", "ec2_action", "words"),
    [
        # Xid-Catalog.xlsx, Resolution Buckets
        ("145, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000001 0x0 0x0)", "restart_application", "Xid 154"),
        ("159, CHI Non-Data", "reboot", "unified memory"),
        ("45, Ch 00000001", "restart_application", "Fabric Manager"),
        ("79, GPU has fallen off the bus.", "stop_start", "another host"),
        ("151, Key rotation", "reboot", "Restart the VM"),
        ("4096, unknown", "aws_support", "AWS Support"),
    ],
)
def test_other_resolutions_of_nvidias_catalogue(text: str, ec2_action: str, words: str) -> None:
    event = event_of(f"NVRM: Xid (PCI:0000:00:1e): {text}", "580.65.06")
    assert event["ec2_action"] == ec2_action
    assert words in event["ec2_meaning"]


def test_commands_name_the_address_and_every_placeholder_is_replaced() -> None:
    for row in rows("actions.csv"):
        assert "INDEX" not in row["meaning"]
        instructions = CATALOGUE.action(row["action"]).instructions("0000:00:1e.0")
        assert "{" not in instructions and "PCI_ADDRESS" not in instructions
        assert "{" not in CATALOGUE.action(row["action"]).instructions(None)


def test_heavier_actions_rank_higher() -> None:
    order = [
        "IGNORE",
        "RESTART_APP",
        "CONTACT_SUPPORT",
        "SCHEDULE_RESET",
        "RESET_GPU",
        "RESTART_VM",
        "RESTART_BM",
        "ISOLATE",
    ]
    ranks = [CATALOGUE.action(name).rank for name in order]
    assert ranks == sorted(ranks) and len(set(ranks)) == len(ranks)
    assert event_module.heaviest(CATALOGUE, ["CONTACT_SUPPORT", "RESET_GPU"]) == "RESET_GPU"


def test_catalogue_version_was_raised() -> None:
    assert CATALOGUE.version.partition("+")[0] == "2026.11.27"
