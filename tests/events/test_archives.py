"""Logs in archives: each event once, nested archives, limits, and members that are not read."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from gpu_ami.cli import main
from gpu_ami.events.archives import Archive, Limits

XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_31 = "NVRM: Xid (PCI:0000:86:00): 31, pid=811, name=llama, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS"
BANNER = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
# Boot: 10:00:00 on 3 March in a zone two hours east of Greenwich.
SYSLOG = f"""\
Mar  3 10:00:12 node7 kernel: [   12.400000] {BANNER}
Mar  3 10:16:41 node7 kernel: [ 1001.250011] {XID_79}
Mar  3 10:20:03 node7 kernel: [ 1203.700042] {XID_31}
"""
JOURNAL = f"""\
-- Journal begins at Mon 2025-03-03 10:00:00 CET. --
Mar 03 10:00:12 node7 kernel: {BANNER}
Mar 03 10:16:41 node7 kernel: {XID_79}
Mar 03 10:20:03 node7 kernel: {XID_31}
"""
DMESG = f"""\
[   12.400000] {BANNER}
[ 1001.250011] {XID_79}
[ 1203.700042] {XID_31}
"""
DMESG_T = f"""\
[Mon Mar  3 10:00:13 2025] {BANNER}
[Mon Mar  3 10:16:42 2025] {XID_79}
[Mon Mar  3 10:20:04 2025] {XID_31}
"""
DMESG_ISO = f"""\
2025-03-03T10:16:41,250011+02:00 {XID_79}
2025-03-03T10:20:03,700042+02:00 {XID_31}
"""
UTC_LOG = f"""\
2025-03-03T08:16:41.250200+00:00 node7 kernel: {XID_79}
2025-03-03T08:20:03.700100+00:00 node7 kernel: {XID_31}
"""
HEADING = "____________________________________________\n\n*** {0}\n*** ls: -rw-r----- 1 syslog adm 31337 {0}\n"


def bug_report(*sections: tuple[str, str]) -> str:
    return "Start of NVIDIA bug report log file.\n" + "\n".join(HEADING.format(name) + text for name, text in sections)


BUG_REPORT = bug_report(
    ("/var/log/messages", SYSLOG), ("/var/log/kern.log", SYSLOG), ("journalctl -b -0", JOURNAL), ("dmesg", DMESG)
)


def own_log(text: str) -> str:
    """What the parser of the image writes for these lines."""
    from gpu_ami.events.reader import read_events

    events = list(read_events(io.BytesIO(text.encode())))
    times = {79: "2025-03-03T08:16:41.250011Z", 31: "2025-03-03T08:20:03.700042Z"}
    return "".join(json.dumps({**event, "time": times[int(event["code"])]}) + "\n" for event in events)


def tar(mode: str = "w", **members: str | bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(name.replace("__", "."))
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def zipped(**members: str | bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return packed.getvalue()


def read(path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> tuple[list[Any], dict[str, Any]]:
    """(the events, what was left out)"""
    path.write_bytes(content)
    assert main(["events", str(path), "--json"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    left_out = [document for document in documents if document["kind"] == "left_out"]
    return [document for document in documents if "code" in document], left_out[0] if left_out else {}


def codes(events: list[Any]) -> list[int]:
    return [event["code"] for event in events]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_every_compression(pack: Callable[[bytes], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert codes(read(tmp_path / "log", pack(SYSLOG.encode()), capsys)[0]) == [79, 31]


def test_bug_report_in_our_bundle_in_a_zip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = gzip.compress(BUG_REPORT.encode())
    bundle = tar("w:gz", kernel__log=DMESG_ISO, gpuevent__log=DMESG, gpuevent__jsonl=own_log(DMESG), r__log__gz=report)
    events, left_out = read(tmp_path / "b.zip", zipped(bundle__tar__gz=bundle, readme__txt="Xid? see kern.log"), capsys)
    assert codes(events) == [79, 31] and events[0]["file"] == "bundle.tar/kernel.log"
    assert left_out["not_read"] == []


def test_members_that_are_not_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = b"LPKSHHRH" + bytes(500)
    content = tar(log=SYSLOG, system__journal=journal, core=bytes(range(256)) * 40, old__7z=b"7z\xbc\xaf\x27\x1c\0\4")
    path = tmp_path / "logs.tar"
    path.write_bytes(content)
    assert main(["events", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "not read: system.journal (a binary journal: journalctl --file=… -o short-precise)",
        "not read: core (binary)",
        "not read: old.7z (a 7-Zip archive: unpack it)",
    ]


def test_absence_is_not_claimed_where_a_member_was_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs.tar").write_bytes(tar(log="quiet\n", core=bytes(400)))
    assert main(["events", str(tmp_path / "logs.tar")]) == 0
    out = capsys.readouterr().out
    assert "No Xid" not in out and "No event was understood" in out


def test_file_of_another_format_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs.7z").write_bytes(b"7z\xbc\xaf\x27\x1c\0\4")
    assert main(["events", str(tmp_path / "logs.7z")]) == 2
    assert "a 7-Zip archive: unpack it" in capsys.readouterr().err


# The quickest levels; gzip's would be no bomb. bz2's blocks then have 100 kB: those before a cut are whole.
PACKS = [
    gzip.compress, functools.partial(bz2.compress, compresslevel=1),
    functools.partial(lzma.compress, preset=0), zstandard.ZstdCompressor().compress,
]  # fmt: skip


@pytest.mark.parametrize("pack", PACKS, ids=["gzip", "bz2", "lzma", "zstd"])
def test_decompression_bomb_ends_early(
    pack: Callable[[bytes], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bomb = pack(SYSLOG.encode() + b"x" * 20000 + bytes(40 << 20))
    events, left_out = read(tmp_path / "log.tar", tar(bomb=bomb, log=SYSLOG.replace("Mar  3", "Mar  5")), capsys)
    assert codes(events) == [79, 31, 79, 31]
    [unread] = left_out["not_read"]
    assert unread["file"] == "bomb" and "decompression bomb" in unread["why"]


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(file=70000), "only its first 0 MiB were read"),
        (Limits(total=70000), "in total: the rest was not read"),
        (Limits(members=1), "and all that follow: more than 1 members"),
        (Limits(depth=0), "more than 0 archives in each other"),
    ],
)
def test_limits(limits: Limits, why: str) -> None:
    archive = Archive(limits)
    inner = gzip.compress(b"line\n" * 100000)
    for member in archive.members(io.BytesIO(tar("w:gz", a=inner, b=inner))):
        while member.stream.read(65536):
            pass
    assert any(why in unread.why for unread in archive.unread), archive.unread


@pytest.mark.parametrize("pack", PACKS, ids=["gzip", "bz2", "lzma", "zstd"])
def test_damaged_archive_is_read_as_far_as_it_goes(
    pack: Callable[[bytes], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = "".join(f"[{i}.5] usb 1-{i}: {i * 7919 % 10007} found\n" for i in range(20000))
    packed = pack((SYSLOG + noise).encode())
    events, left_out = read(tmp_path / "log", packed[: len(packed) * 9 // 10], capsys)
    assert codes(events) == [79, 31]
    assert "damaged or cut off after" in left_out["not_read"][0]["why"]


def test_cut_tar_and_encrypted_zip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, left_out = read(tmp_path / "log", tar(one=SYSLOG, two="x" * 9000)[:4000], capsys)
    assert codes(events) == [79, 31] and "damaged or cut off" in left_out["not_read"][0]["why"]
    content = bytearray(zipped(log=SYSLOG, secret="x"))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.rindex(signature) + offset] |= 1
    events, left_out = read(tmp_path / "log.zip", bytes(content), capsys)
    assert codes(events) == [79, 31] and left_out["not_read"] == [{"file": "secret", "why": "encrypted"}]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_in_an_archive(encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, _ = read(tmp_path / "log.zip", zipped(log=SYSLOG.encode(encoding)), capsys)
    assert codes(events) == [79, 31]


def test_archive_on_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(tar("w:xz", one=SYSLOG, two=JOURNAL))))
    assert main(["events", "-", "--json"]) == 0
    assert capsys.readouterr().out.count('"code"') == 2
