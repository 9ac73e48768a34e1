"""Fuzz for a given time: hosts' answers, reports, shards, archives, logs and the other damaged files.

`GPU_AMI_FUZZ_SECONDS=3600 pytest tests/fuzz/test_for_a_minute.py` tries for an hour; CI tries for a minute. The
end of the run says how many inputs were tried. Each is made from its number, which a failure prints:
`GPU_AMI_FUZZ_KIND=KIND GPU_AMI_FUZZ_FIRST=NUMBER` begins there.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import resource
import shutil
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami import cli
from tests.fuzz.test_damaged_files import KINDS, MEMORY_KIB, ODD, altered, certified, damaged, lines
from validator import evidence, file_account, inputs, secret_shapes
from validator.transport import Command, SshError
from validator.transport.budget import Budget
from validator.transport.shell import Shell
from validator.transport.ssh import Target

pytestmark = pytest.mark.slow
SECONDS = float(os.environ.get("GPU_AMI_FUZZ_SECONDS", "60" if "CI" in os.environ else "10"))
FIRST = int(os.environ.get("GPU_AMI_FUZZ_FIRST", "0"))
_LONGEST = 30.0  # of one input, on a busy machine
_TEXT = (
    b"0 1 2\n9\n0\n", b"\n", b"\x1b]0;x\x07", b"\xe9", b"\0", b'{"a": [', b"NVRM: Xid", b"9" * 5000, b"\n::error::x\n",
)  # fmt: skip
_MEMBERS = (tarfile.REGTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)


class Answering:
    """A channel to a host that says what the test wants, and then hangs up."""

    def __init__(self, said: bytes, source: random.Random) -> None:
        self._said, self._source = said, source

    def settimeout(self, _seconds: float) -> None: ...
    def sendall(self, _data: bytes) -> None: ...
    def close(self) -> None: ...

    def send(self, data: bytes) -> int:
        return len(data)

    def recv(self, most: int) -> bytes:
        size = min(most, self._source.choice((1, 7, 100, 1 << 16)))
        data, self._said = self._said[:size], self._said[size:]
        return data

    def recv_stderr(self, _most: int) -> bytes:
        return b"sh: \x1b]0;x\x07\xff"


def answer(_folder: Path, source: random.Random) -> None:
    """Any bytes as the reply to a batch, most of them nearly right: an answer, or an error of the transport."""
    gone: Any = SimpleNamespace(get_exception=lambda: None)
    connection: Any = SimpleNamespace(target=Target("here"), alive=True, transport=gone, budget=Budget())
    channel = Answering(b"", source)
    connection.open = lambda _command: channel
    shell = Shell(connection)
    mark = shell.frame_mark.encode()
    count = source.randint(1, 3)
    sizes = [source.choice((0, 3, 3, 10**11, 1 << 29)) for _ in range(2 * count)]
    head = b"".join(b"0 %d %d\n" % (source.choice((1, 10**15)), 2) for _ in range(count))
    head += b"".join(b"%d\n" % size for size in sizes)
    whole = b"\n" + mark + b" ready\n" + b"." * source.randint(0, 9) + head + b"\n" + mark + b" \n" + b"x" * 40
    channel._said = damaged(whole, source) if source.random() < 0.8 else bytes(source.choices(range(256), k=200))
    with contextlib.suppress(SshError):
        answers = shell.execute([Command("true")] * count)
        assert len(answers) == count and all(0 <= item.rc < 10**16 for item in answers)


def kept(folder: Path, source: random.Random) -> None:
    """What a host prints where evidence is asked for: every file is written, and JSON is read or a finding."""
    document = altered({"schema": 1, "packages": [{"name": "a", "version": "1"}], "token": ["x", {"b": None}]}, source)
    said = source.choice(
        (json.dumps(document).encode(), lines(source), gzip.compress(lines(source)), b"".join(source.sample(_TEXT, 4)))
    )
    for name in (*evidence.COMMANDS, evidence.BUG_REPORT):
        evidence.keep_file(folder, name, source.choice((0, 1, 124)), damaged(said, source), b"\xff\n")
    with contextlib.suppress(file_account.InvalidInventory):
        file_account.read(gzip.compress(damaged(said, source)))
    evidence.replicas(said.decode(errors="replace"), said.decode(errors="replace"))
    secret_shapes.hidden_file("x.gz", damaged(gzip.compress(said * source.randint(1, 2000)), source))
    with contextlib.suppress(ValueError):
        inputs.parse_json(damaged(said, source))


def command(words: list[str]) -> None:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = cli.main(words)
    assert code in range(8), (words, shown.getvalue()[-2000:])
    assert "Traceback" not in shown.getvalue() and (code == 0 or shown.getvalue().strip()), words


def shard(folder: Path, source: random.Random) -> None:
    """A proof's folder in which files are replaced, by links, pipes, folders and other files: merged, signed, read."""
    proof = folder / "proof"
    shutil.copytree(certified(), proof)
    for _ in range(source.randint(1, 3)):
        paths = sorted(path for path in proof.rglob("*") if path.is_symlink() or not path.is_dir())
        path = source.choice(paths)
        data = b"" if path.is_symlink() or path.is_fifo() else path.read_bytes()
        path.unlink()
        match source.randrange(6):
            case 0:
                path.symlink_to(source.choice(("/etc/shadow", "/", "../x", path.name)))
            case 1:
                os.mkfifo(path)
            case 2:
                path.mkdir()
            case 3:
                path.write_bytes(damaged(data, source))
            case 4:
                path.with_name(source.choice(("..x", "a b", "\x1b[2J", "é", "x" * 250))).write_bytes(data)
            case _:
                path.write_text(json.dumps(source.choice(ODD), default=str))
    where, key = str(proof), str(proof / "release.key.pub")
    choices = (
        ["merge", where, "-o", str(folder / "merged")],
        ["merge", where, where, "-o", str(folder / "merged")],
        ["certify", where],
        ["verify", where, "--key", key, "--offline"],
        ["verify", where, "--key", key],
    )
    command(list(source.choice(choices)))


def archive(folder: Path, source: random.Random) -> None:
    """A tar with members of any kind, name and size, also of other archives."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=source.choice(("w", "w:gz", "w:xz"))) as file:
        for number in range(source.randint(1, 6)):
            names = ("var/log/kern.log", "../../x", "/etc/passwd", "a\x1b[2J", "x" * 300, f"{number}.gz", "kern.log.gz")
            member = tarfile.TarInfo(source.choice(names))
            member.type, member.linkname = source.choice(_MEMBERS), "/etc/shadow"
            data = source.choice(
                (lines(source), gzip.compress(lines(source)), bytes(1 << 20), buffer.getvalue()[:9999])
            )
            data = data if member.type == tarfile.REGTYPE else b""
            member.size, member.mtime = len(data), source.choice((0, 1 << 40))
            file.addfile(member, io.BytesIO(data))
    data = damaged(buffer.getvalue(), source) if source.random() < 0.5 else buffer.getvalue()
    (folder / "logs.tar").write_bytes(data)
    command(["events", str(folder / "logs.tar"), *["--json"] * source.randrange(2)])


def of_a_file(make: Callable[[Path, random.Random], list[str]]) -> Callable[[Path, random.Random], None]:
    return lambda folder, source: command(make(folder, source))


FUZZED: dict[str, Callable[[Path, random.Random], None]] = {
    "host's answer": answer,
    "evidence": kept,
    "shard": shard,
    "archive's members": archive,
    **{name: of_a_file(make) for name, make in KINDS.items()},
}


KIND = [name for name in FUZZED if name == os.environ.get("GPU_AMI_FUZZ_KIND", name)]


def test_no_input_ends_with_a_traceback_or_hangs(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    certified()  # made once, outside of the time
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    until, tried, spent = time.monotonic() + SECONDS, Counter[str](), dict.fromkeys(KIND, 0.0)
    while (started := time.monotonic()) < until:
        name = min(KIND, key=lambda name: spent[name])  # as much time for each: a recipe takes as long as 500 answers
        number, folder = FIRST + tried[name], tmp_path / "input"
        folder.mkdir()
        try:
            FUZZED[name](folder, random.Random(f"{name} {number}"))
        except BaseException as error:
            error.add_note(f"again: GPU_AMI_FUZZ_KIND={name!r} GPU_AMI_FUZZ_FIRST={number}")
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        tried[name] += 1
        took = time.monotonic() - started
        spent[name] += took
        assert took < _LONGEST, (name, number)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    each = ", ".join(f"{count} {name}" for name, count in tried.items())
    record_property("tried", f"fuzz: {tried.total():,} inputs in {SECONDS:g} s, {grown >> 10} MiB more memory: {each}")
    assert grown < MEMORY_KIB
