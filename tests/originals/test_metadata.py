"""AWS's own amazon-ec2-metadata-mock as a second judge: of the drain hook, and of the region's metadata service.

It was written from EC2's documentation by others than the authors of either.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localregion.machines.metadata import NOTICE_TAG, Metadata, build_tree
from tests.localregion.machines.test_metadata import TOKEN, TTL, VIEW
from tests.onhost.drain_hook.programs import Installed
from tests.originals import fetch
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("kept_originals")]

RELEASE = "1.13.0"
MAC, ROLE = "0e:49:61:0f:c3:11", "baskinc-role"  # of the original's instance
NOTICES = "spot-interruption@2026-11-23T10:02:00Z,rebalance-recommendation@2026-11-23T10:00:00Z"
# Its instance is always in a group of Auto Scaling, and has one event of maintenance.
INSTANCE = replace(
    VIEW,
    mac=MAC,
    role=ROLE,
    profile_arn=f"arn:aws:iam::123456789012:instance-profile/{ROLE}",
    security_groups=(("sg-0123456789abcdef0", "a-group-of-this-1"),),
    tags={"Name": "a-name", NOTICE_TAG: f"{NOTICES},autoscaling-termination,maintenance-event@2026-01-06T09:00:43Z"},
    tags_enabled=True,
)
# Texts without a form, and categories that the original does not have (EC2 user guide, "Instance metadata categories").
_WITHOUT_FORM = {"SecretAccessKey", "Token", "openssh-key", "Description", "InstanceProfileId"}
_NOT_IN_THE_ORIGINAL = {
    "meta-data/events/maintenance/history",
    "meta-data/profile",
    f"meta-data/tags/instance/{NOTICE_TAG}",
}


class Original:
    """The running program; `get` asks as the drain hook does, with a token."""

    def __init__(self, port: int) -> None:
        self.port, self.address = port, f"http://127.0.0.1:{port}"
        self.token = ""

    def ask(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, str]:
        self.token = self.token or self.ask("PUT", "/latest/api/token", {TTL: "600"})[1]
        return self.ask("GET", f"/latest/{path}", {TOKEN: self.token})


@contextmanager
def original(folder: Path, *words: str) -> Iterator[Original]:
    """The program on a free port of loopback, IMDSv2 alone. words: its subcommand and options."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(fetch.metadata_mock(RELEASE)), *words, "--imdsv2", "--hostname", "127.0.0.1", "--port", str(port)]
    with (folder / "original.log").open("w") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log, env={"HOME": str(folder)})
        try:
            service = Original(port)
            until(lambda: _listens(port), 60)
            yield service
        finally:
            running.terminate()
            running.wait(20)


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


AT = "2026-12-06T05:54:55Z"


@pytest.mark.parametrize(
    ("words", "kind", "action", "time"),
    [
        (("spot", "--action", "terminate", "--time", AT), "spot-interruption", "terminate", AT),
        (("spot", "--action", "stop", "--time", AT), "spot-interruption", "stop", AT),
        (("spot", "--action", "hibernate", "--time", AT), "spot-interruption", "hibernate", AT),
        (("spot", "--rebalance-rec-time", AT), "rebalance-recommendation", "rebalance", AT),
        (("events", "--code", "instance-stop", "--not-before", AT), "maintenance-event", "instance-stop", AT),
        (
            ("events", "--code", "instance-retirement", "--not-before", AT),
            "maintenance-event",
            "instance-retirement",
            AT,
        ),
        (("asglifecycle",), "autoscaling-termination", "terminate", ""),
    ],
    ids=lambda value: "-".join(value[:3:2]) if isinstance(value, tuple) else "",
)
def test_drain_hook_obeys_the_original(
    tmp_path: Path, words: tuple[str, ...], kind: str, action: str, time: str
) -> None:
    hook = Installed(tmp_path)
    hook.script("10-first", 'echo "$DRAIN_NOTICE $DRAIN_ACTION $DRAIN_TIME" > "${0%/*}/../told"')
    with original(tmp_path, *words) as service:
        for _ in range(2):
            status, output = hook.once(service.address, "--notices", kind)
            assert status == 0, output
    assert hook.names_run() == ["10-first"]
    assert (tmp_path / "told").read_text() == f"{kind} {action} {time}\n"
    (row,) = hook.lines("drained")
    assert (row["notice"], row["action"], row["notice_time"]) == (kind, action, time)
    assert row["scripts"][0]["outcome"] == "ok"


@pytest.mark.parametrize("state", ["completed", "canceled"])
def test_drain_hook_leaves_an_event_that_is_over(tmp_path: Path, state: str) -> None:
    hook = Installed(tmp_path)
    hook.script("10-first", "")
    with original(tmp_path, "events", "--state", state) as service:
        assert hook.once(service.address, "--notices", "maintenance-event")[0] == 0
    assert hook.names_run() == []


def test_drain_hook_waits_for_a_notice(tmp_path: Path) -> None:
    """Before its time the notice's category is not there (404), as on an instance that nothing threatens."""
    hook = Installed(tmp_path)
    hook.script("10-first", "")
    with original(tmp_path, "spot", "--mock-delay-sec", "6") as service:
        status, output = hook.once(service.address, "--notices", "spot-interruption")
        assert (status, hook.names_run()) == (0, []), output
        until(lambda: service.get("meta-data/spot/instance-action")[0] == 200, 60)
        assert hook.once(service.address, "--notices", "spot-interruption")[0] == 0
    assert hook.names_run() == ["10-first"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    with original(tmp_path_factory.mktemp("metadata")) as service:
        yield service


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, str):
        yield path, node
    else:
        for name, child in node.items():
            yield from _leaves(child, f"{path}/{name}".lstrip("/"))


LEAVES = dict(_leaves(build_tree(INSTANCE)))


def form(text: Any, name: str = "") -> Any:
    """What a value looks like: its punctuation; of JSON the forms of its values."""
    if isinstance(text, dict):
        return {key: form(value, key) for key, value in text.items()}
    if isinstance(text, list):
        return [form(value) for value in text]
    if not isinstance(text, str) or name in _WITHOUT_FORM:
        return None if text is None else type(text).__name__
    if text[:1] in ("{", "["):
        return form(json.loads(text))
    return re.sub(r"[0-9A-Za-z]+", "x", text.strip())


@pytest.mark.parametrize("path", sorted(LEAVES.keys() - _NOT_IN_THE_ORIGINAL))
def test_region_tells_what_the_original_tells(everything: Original, path: str) -> None:
    status, text = everything.get(path)
    name = path.rpartition("/")[2]
    if path == "dynamic/instance-identity/document" or "events/maintenance" in path:
        ours, theirs = form(LEAVES[path]), form(text)
        rows = [(ours, theirs)] if isinstance(ours, dict) else list(zip(ours, theirs, strict=True))
        assert status == 200 and rows
        for our, their in rows:
            assert our == {key: their.get(key, "not in the original") for key in our}
    else:
        assert (status, form(LEAVES[path], name)) == (200, form(text, name))


def test_times_of_events_are_written_as_the_original_writes_them(everything: Original) -> None:
    """The form alone has no difference between `6 Dec 2026` and `Dec 6 2026`."""
    (theirs,) = json.loads(everything.get("meta-data/events/maintenance/scheduled")[1])
    (ours,) = json.loads(LEAVES["meta-data/events/maintenance/scheduled"])
    wanted = re.compile(r"[0-9]{1,2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")
    assert wanted.fullmatch(theirs["NotBefore"]) and wanted.fullmatch(ours["NotBefore"])


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("PUT", "/latest/api/token", {TTL: "60"}),
        ("PUT", "/latest/api/token", {}),
        ("PUT", "/latest/api/token", {TTL: "0"}),
        ("PUT", "/latest/api/token", {TTL: "21601"}),
        ("PUT", "/latest/api/token", {TTL: "soon"}),
        ("GET", "/latest/meta-data/instance-id", {}),
        ("GET", "/latest/meta-data/instance-id", {TOKEN: "wrong"}),
        ("GET", "/latest/dynamic/instance-identity/document", {}),
    ],
    ids=lambda value: ",".join(f"{key}={each}" for key, each in value.items()) if isinstance(value, dict) else value,
)
def test_region_refuses_what_the_original_refuses(
    everything: Original, method: str, path: str, headers: dict[str, str]
) -> None:
    ours = Metadata(lambda: INSTANCE).answer(method, path, {name.lower(): value for name, value in headers.items()})
    assert ours.status == everything.ask(method, path, headers)[0]


def test_unknown_category_is_missing_in_both(everything: Original) -> None:
    region = Metadata(lambda: INSTANCE)
    token = region.answer("PUT", "/latest/api/token", {TTL: "60"}).body.decode()
    path = "meta-data/no-such-category"
    assert region.answer("GET", f"/latest/{path}", {TOKEN: token}).status == everything.get(path)[0] == 404
