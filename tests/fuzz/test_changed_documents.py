"""Documents and logs that somebody sent, mutated: no exception but the declared ones."""

from __future__ import annotations

import io
import json
import os
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_ami.errors import UsageError
from gpu_ami.events import reader
from gpu_ami.report import certificate, document, writer
from tests.report.examples import everything

pytestmark = pytest.mark.slow
# CI: about a minute for all; by hand more: GPU_AMI_FUZZ_EXAMPLES=20000.
EXAMPLES = int(os.environ.get("GPU_AMI_FUZZ_EXAMPLES", "150"))
_REPORT = everything().to_json()
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just("\x1b[2J::error::\ud800/../..")
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
fuzzed = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize="CI" in os.environ
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document."""
    found = [path] if path else []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        found += places(inner, (*path, key))
    return found


PLACES = places(json.loads(json.dumps(_REPORT)))


@fuzzed
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3))
def test_a_changed_report_is_read_or_refused(tmp_path_factory: Any, changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    changed = json.loads(json.dumps(_REPORT))
    for path, value in changes:
        target = changed
        try:
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    file = tmp_path_factory.getbasetemp() / "fuzzed-report.json"
    file.write_text(json.dumps(changed))
    try:
        report = document.load(file)
    except UsageError:
        return
    statement = certificate.certify(report)
    certificate.markdown(statement)
    writer.text(report)
    writer.markdown(report, statement)


_MAGIC = (b"\x1f\x8b", b"PK\x03\x04", b"ustar", b"\xfd7zXZ\x00", b"BZh9", b"MESSAGE=", b"__CURSOR=", b"\xe9", b"\x00")
_LINES = (
    b"NVRM: ",
    b"Xid (PCI:0000:01:00): 31, ",
    b"table\n",
    b" " * 50,
    b"1" * 50,
    b"\n",
    b'"',
    b"{",
    b"[ ",
    b"kernel: ",
)
PIECES = st.sampled_from([*_MAGIC, *_LINES])


@fuzzed
@given(st.lists(PIECES | st.binary(max_size=30), max_size=40))
def test_a_log_is_read(parts: list[bytes]) -> None:
    started = time.process_time()
    list(reader.read_events(io.BytesIO(b"".join(parts))))
    assert time.process_time() - started < 5
