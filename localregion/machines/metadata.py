"""The instance metadata service: IMDSv2 over a unix socket, one socket an instance.

A relay in the guest's network forwards connections to the instance's socket. The tree is built from the instance at
each request, so a changed tag or option is visible at once, as on EC2. It has the structure of version 2021-03-23,
which cloud-init requests (docs.aws.amazon.com, "Instance metadata categories").

Notices of an instance's end in its metadata, planted by the instance tag `gpu-ami:notice`.

The tag's value is KIND@TIME (several with commas), for example `spot-interruption@2026-11-23T10:02:00Z`; without @TIME
it is the time of the launch. Nothing follows from a notice: whoever plants it also ends the instance. Formats: EC2 user
guide, "Instance metadata categories"; EC2 Auto Scaling user guide, "Retrieve the target lifecycle state".
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

from localregion.backends import INSTANCE_SECRET, InstanceView, instance_access_key
from localregion.machines.qemu import short_path

VERSIONS = ("2009-04-04", "2016-09-02", "2018-09-24", "2021-03-23", "latest")
_MAX_TTL = 21600
_CREDENTIALS_HOURS = 6

# A node is text, or a folder: names to nodes. A folder's listing shows a node's name, or its `label` (public keys).
Node = str | Mapping[str, "Node"]


def build_tree(view: InstanceView) -> dict[str, Node]:
    """The content of /latest and of every dated version: meta-data, dynamic (user data is apart: it is bytes)."""
    return {"dynamic": {"instance-identity": {"document": _identity_document(view)}}, "meta-data": _meta_data(view)}


def _identity_document(view: InstanceView) -> str:
    document = {
        "accountId": view.account_id,
        "architecture": view.architecture,
        "availabilityZone": view.zone,
        "billingProducts": None,
        "devpayProductCodes": None,
        "marketplaceProductCodes": None,
        "imageId": view.image_id,
        "instanceId": view.instance_id,
        "instanceType": view.instance_type,
        "kernelId": None,
        "pendingTime": f"{view.launch_time:%Y-%m-%dT%H:%M:%SZ}",
        "privateIp": view.address,
        "ramdiskId": None,
        "region": view.region,
        "version": "2017-09-30",
    }
    return json.dumps(document, indent=2)


def _meta_data(view: InstanceView) -> dict[str, Node]:
    names = "\n".join(name for _, name in view.security_groups)
    tree: dict[str, Node] = {
        "ami-id": view.image_id,
        "ami-launch-index": str(view.launch_index),
        "ami-manifest-path": "(unknown)",
        "block-device-mapping": {"ami": view.root_device_name, "root": view.root_device_name},
        "hostname": view.hostname,
        "instance-action": "none",
        "instance-id": view.instance_id,
        "instance-life-cycle": "on-demand",
        "instance-type": view.instance_type,
        "local-hostname": view.hostname,
        "local-ipv4": view.address,
        "mac": view.mac,
        "network": {"interfaces": {"macs": {view.mac: _interface(view, names)}}},
        "placement": {"availability-zone": view.zone, "region": view.region},
        "profile": "default-hvm",
        "reservation-id": view.reservation_id,
        "security-groups": names,
        "services": {"domain": "amazonaws.com", "partition": "aws"},
        **notice_categories(view),
    }
    if view.public_key and view.key_name:
        tree["public-keys"] = {"0": _Labelled(f"0={view.key_name}", {"openssh-key": view.public_key.strip()})}
    if view.role:
        tree["iam"] = {"info": _profile(view), "security-credentials": {view.role: _credentials(view.instance_id)}}
    if view.tags_enabled:
        tree["tags"] = {"instance": dict(view.tags)}
    return tree


class _Labelled(dict[str, Node]):
    """A folder that its parent's listing shows under another name than its path has."""

    def __init__(self, label: str, nodes: Mapping[str, Node]) -> None:
        super().__init__(nodes)
        self.label = label


def _interface(view: InstanceView, group_names: str) -> dict[str, Node]:
    return {
        "device-number": "0",
        "interface-id": view.interface_id,
        "local-hostname": view.hostname,
        "local-ipv4s": view.address,
        "mac": view.mac,
        "owner-id": view.account_id,
        "security-group-ids": "\n".join(group for group, _ in view.security_groups),
        "security-groups": group_names,
        "subnet-id": view.subnet_id,
        "subnet-ipv4-cidr-block": view.subnet_cidr,
        "vpc-id": view.vpc_id,
        "vpc-ipv4-cidr-block": view.vpc_cidr,
        "vpc-ipv4-cidr-blocks": view.vpc_cidr,
    }


def _profile(view: InstanceView) -> str:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    identity = {"InstanceProfileArn": view.profile_arn, "InstanceProfileId": view.profile_id}
    return json.dumps({"Code": "Success", "LastUpdated": now, **identity}, indent=2)


def _credentials(instance_id: str) -> str:
    """Keys of the shape that EC2 gives. The local API takes any; these open nothing anywhere.

    The access key names the instance, for conditions under which its policy counts.
    """
    now = datetime.now(UTC)
    keys = {
        "Code": "Success",
        "LastUpdated": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "Type": "AWS-HMAC",
        "AccessKeyId": instance_access_key(instance_id),
        "SecretAccessKey": INSTANCE_SECRET,
        "Token": "the-local-region-takes-any-token",
        "Expiration": f"{now + timedelta(hours=_CREDENTIALS_HOURS):%Y-%m-%dT%H:%M:%SZ}",
    }
    return json.dumps(keys, indent=2)


def look_up(tree: Node, path: str) -> str | None:
    """The text at `path` ("meta-data/mac"), a folder's listing, or None."""
    node: Node = tree
    for name in (part for part in path.split("/") if part):
        if isinstance(node, str) or name not in node:
            return None
        node = node[name]
    return node if isinstance(node, str) else "\n".join(_listed(name, child) for name, child in node.items())


def _listed(name: str, node: Node) -> str:
    if isinstance(node, _Labelled):
        return node.label
    return name if isinstance(node, str) else f"{name}/"


class Tokens:
    """Session tokens of one instance, and until when each counts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def issue(self, seconds: int) -> str:
        token = secrets.token_urlsafe(40)
        with self._lock:
            now = self._clock()
            self._until = {old: end for old, end in self._until.items() if end > now} | {token: now + seconds}
        return token

    def valid(self, token: str) -> bool:
        with self._lock:
            counting = [known for known, end in self._until.items() if end > self._clock()]
        return any(hmac.compare_digest(token.encode(), known.encode()) for known in counting)


_BYTES = (("Content-Type", "application/octet-stream"),)


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class Metadata:
    """Answers one instance's requests. `view` is asked at each of them."""

    def __init__(self, view: Callable[[], InstanceView], tokens: Tokens | None = None) -> None:
        self._view = view
        self._tokens = tokens or Tokens()

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        """`headers`: lower-case names. 401 without a valid token, 403 where the endpoint is off, as on EC2."""
        view = self._view()
        if not view.endpoint_enabled:
            return Answer(403)
        version, _, rest = path.split("?")[0].strip("/").partition("/")
        if method == "PUT":
            return self._token(version, rest, headers)
        if method not in ("GET", "HEAD"):
            return Answer(405)
        token = headers.get("x-aws-ec2-metadata-token")
        if not (self._tokens.valid(token) if token is not None else not view.tokens_required):
            return Answer(401)
        return _read(view, version, rest)

    def _token(self, version: str, rest: str, headers: Mapping[str, str]) -> Answer:
        if (version, rest) != ("latest", "api/token"):
            return Answer(404)
        if "x-forwarded-for" in headers:  # a proxy inside the guest must not hand out tokens
            return Answer(403)
        seconds = headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        if not seconds.isascii() or not seconds.isdigit() or not 1 <= int(seconds) <= _MAX_TTL:
            return Answer(400)
        headers_back = (("X-aws-ec2-metadata-token-ttl-seconds", seconds),)
        return Answer(200, self._tokens.issue(int(seconds)).encode(), headers_back)


def _read(view: InstanceView, version: str, rest: str) -> Answer:
    if not version:
        return Answer(200, "\n".join(VERSIONS).encode())
    if version not in VERSIONS:
        return Answer(404)
    if rest.rstrip("/") == "user-data":
        return Answer(404) if view.user_data is None else Answer(200, view.user_data, _BYTES)
    tree = build_tree(view)
    if not rest:
        names = [f"{name}/" if name == "meta-data" else name for name in tree]
        return Answer(200, "\n".join([*names, *(["user-data"] if view.user_data is not None else [])]).encode())
    text = look_up(tree, rest)
    return Answer(404) if text is None else Answer(200, text.encode())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "EC2ws"
    sys_version = ""
    timeout = 60
    server: MetadataServer

    def do_GET(self) -> None:
        self._respond()

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET

    def _respond(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.server.metadata.answer(self.command, self.path, headers)
        self.send_response(answer.status)
        if not any(name == "Content-Type" for name, _ in answer.headers):
            self.send_header("Content-Type", "text/plain")
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def address_string(self) -> str:
        return "guest"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: a boot asks a hundred times."""


class MetadataServer(ThreadingMixIn, UnixStreamServer):
    """Serves one instance's metadata on `socket_path` till `close`."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, socket_path: Path, metadata: Metadata) -> None:
        self.metadata = metadata
        self._path = socket_path
        socket_path.unlink(missing_ok=True)
        with short_path(socket_path) as name:
            super().__init__(name, _Handler)
        os.chmod(socket_path, 0o600)  # noqa: PTH101
        threading.Thread(target=self.serve_forever, args=(0.2,), name="metadata", daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._path.unlink(missing_ok=True)


NOTICE_TAG = "gpu-ami:notice"


def notice_categories(view: InstanceView) -> dict[str, Any]:
    """Folders of meta-data: scheduled events always, as on EC2; the others where they are planted."""
    planted = _planted(view)
    events: dict[str, Any] = {"maintenance": {"history": "[]", "scheduled": _scheduled(view, planted)}}
    folders: dict[str, Any] = {"events": events}
    if when := planted.get("spot-interruption"):
        action = json.dumps({"action": "terminate", "time": when})
        folders["spot"] = {"instance-action": action, "termination-time": when}
    if when := planted.get("rebalance-recommendation"):
        events["recommendations"] = {"rebalance": json.dumps({"noticeTime": when})}
    if "autoscaling-termination" in planted:
        folders["autoscaling"] = {"target-lifecycle-state": "Terminated"}
    return folders


def _planted(view: InstanceView) -> dict[str, str]:
    """Kind of notice → its time."""
    launch = f"{view.launch_time:%Y-%m-%dT%H:%M:%SZ}"
    items = [item.strip().partition("@") for item in view.tags.get(NOTICE_TAG, "").split(",")]
    return {kind: when or launch for kind, _, when in items}


def _scheduled(view: InstanceView, planted: dict[str, str]) -> str:
    if "maintenance-event" not in planted:
        return "[]"
    when = _time_of_event(planted["maintenance-event"])
    event = {
        "NotBefore": when,
        "Code": "system-reboot",
        "Description": "scheduled reboot",
        "EventId": f"instance-event-{view.instance_id.removeprefix('i-')}",
        "NotAfter": when,
        "State": "active",
    }
    return json.dumps([event])


def _time_of_event(text: str) -> str:
    """Scheduled events alone are not in RFC 3339: `21 Jan 2026 09:00:43 GMT` (EC2 user guide, "Scheduled events")."""
    try:
        return format_datetime(datetime.fromisoformat(text).astimezone(UTC), usegmt=True).partition(", ")[2]
    except ValueError:
        return text
