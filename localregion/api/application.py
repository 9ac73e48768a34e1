"""The region's API: moto's server, with EC2 calls carried out on machines before they are answered.

A WSGI middleware around moto's application. It refuses what moto accepts (an unknown image, an unknown key pair),
unpacks gzipped requests, calls the reconciler after each change, and answers with the machine's own console. A call
that describes an instance or image by its id while it is between two states is answered when it has settled, or after
some seconds, so that a waiter goes on at once.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment
from xml.sax.saxutils import escape

from localregion.api import launch_checks, protocol
from localregion.api.protocol import call_application, read_body, send, unpack
from localregion.backends import REGION, Refused, architectures_of
from localregion.images import ImageStore, Request
from localregion.machines import planned_architecture, read_console
from localregion.state import Layout

if TYPE_CHECKING:
    from localregion.machines import reconcile

_CREDENTIAL = re.compile(r"Credential=[^/]+/\d{8}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request")
_XML = [("Content-Type", "text/xml")]
# As EC2 words it (github.com/skypilot-org/skypilot issue 6315, read 2026-11-25).
_OTHER_ARCHITECTURE = (
    "The architecture '{}' of the specified instance type does not match the architecture '{}' of the specified AMI. "
    "Specify an instance type and an AMI that have matching architectures, and try again. You can use "
    "'describe-instance-types' or 'describe-images' to discover the architecture of the instance type or AMI."
)
_READ_ONLY = ("Describe", "Get", "List")
# Calls of waiters, and their parameter: answered late while what they name is between two states. A waiter polls each
# second or two, and gives a call a minute.
_WAITED_FOR = {"DescribeInstances": "InstanceId", "DescribeImages": "ImageId"}
HOLD_SECONDS = 5.0
# Calls that other regions answer, beside those that read: copies of AMIs are published there, and nothing runs.
_ELSEWHERE = {
    "CopyImage", "CreateTags", "DeleteSnapshot", "DeleteTags", "DeregisterImage", "DisableImageDeprecation",
    "DisableImageDeregistrationProtection", "EnableImageDeprecation", "EnableImageDeregistrationProtection",
    "ModifyImageAttribute",
}  # fmt: skip


@dataclass
class Call:
    """One EC2 query: its action and parameters (flat, as in the query protocol: `TagSpecification.1.Tag.1.Key`)."""

    action: str
    parameters: dict[str, str]

    def flag(self, name: str) -> bool | None:
        value = self.parameters.get(name)
        return None if value is None else value.lower() == "true"

    def members(self, name: str) -> list[str]:
        """The values of `name.1`, `name.2`, …"""
        return [value for key, value in self.parameters.items() if re.fullmatch(rf"{name}\.\d+", key)]


@dataclass(frozen=True)
class Refusal:
    code: str
    message: str

    def body(self) -> bytes:
        error = f"<Error><Code>{self.code}</Code><Message>{escape(self.message)}</Message></Error>"
        response = f"<Response><Errors>{error}</Errors><RequestID>local</RequestID></Response>"
        return f"<?xml version='1.0' encoding='UTF-8'?>{response}".encode()


class Api:
    """WSGI application around moto's."""

    def __init__(
        self,
        app: WSGIApplication,
        reconciler: reconcile.Reconciler,
        images: ImageStore,
        layout: Layout,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        """hold_seconds: for how long a call of `_WAITED_FOR` may wait."""
        self._app, self._reconciler, self._images, self._layout = app, reconciler, images, layout
        self._ec2, self._hold_seconds = reconciler.ec2, hold_seconds

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        unpack(environ)
        call = read_call(environ)
        if call is None:
            return self._app(environ, start_response)
        answer: bytes | None = None
        refusal = self._refuse(call, environ)
        try:
            if not refusal and not _is_elsewhere(environ):
                self._ec2.placement_groups.require(_placement_group(call))
                answer = self._ec2.placement_groups.answer(call.action, call.parameters)
        except Refused as error:
            refusal = Refusal(error.code, error.message)
        if refusal:
            return send(start_response, "400 BAD REQUEST", _XML, refusal.body())
        if answer is not None:
            return send(start_response, "200 OK", _XML, answer)
        if _is_elsewhere(environ):
            return self._app(environ, start_response)
        snapshot_tags = take_snapshot_tags(call)
        if call.action == "RunInstances":
            self._fill_launch(call)
        if call.action in _WAITED_FOR:
            self._ec2.settled(call.members(_WAITED_FOR[call.action]), self._hold_seconds)
        _write_call(call, environ)
        # No machine of a launch is prepared before its placement group is known.
        with self._reconciler.lock if _placement_group(call) else contextlib.nullcontext():
            status, headers, body = call_application(self._app, environ)
            if status.startswith("200"):
                body = self._after(call, body, snapshot_tags)
        return send(start_response, status, headers, body)

    def _refuse(self, call: Call, environ: WSGIEnvironment) -> Refusal | None:
        if _is_elsewhere(environ):
            if call.action in _ELSEWHERE or call.action.startswith(_READ_ONLY):
                return None
            return Refusal("AuthFailure", f"the local region is {REGION}; {call.action} was signed for another region")
        if mistake := next(protocol.mistakes(call.action, call.parameters), None):
            return Refusal("InvalidParameterValue", mistake)
        if call.action == "RunInstances":
            return self._refuse_launch(call)
        if call.action == "CreateImage":
            return self._refuse_image(call)
        if call.action == "StartInstances":
            return self._refuse_start(call)
        if call.action == "DescribeCapacityReservations":
            answers = launch_checks.reservation(call.parameters, "CapacityReservationId.")
            return next((Refusal(*answer) for answer in answers), None)
        return None

    def _refuse_launch(self, call: Call) -> Refusal | None:
        image_id = call.parameters.get("ImageId", "")
        image = self._ec2.images().get(image_id)
        if image_id and image is None:
            return Refusal("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
        if image is not None and image.state != "available":
            return Refusal("InvalidAMIID.Unavailable", f"The image id '[{image_id}]' is {image.state}")
        instance_type = call.parameters.get("InstanceType", "")
        if instance_type:
            supported = ",".join(architectures_of(instance_type)) or planned_architecture(instance_type)
            if not supported:
                return Refusal("InvalidInstanceType", f"The instance type '{instance_type}' does not exist")
            if image is not None and image.architecture not in supported.split(","):
                return Refusal("InvalidParameterValue", _OTHER_ARCHITECTURE.format(supported, image.architecture))
        key = call.parameters.get("KeyName")
        if key and key not in self._ec2.backend.key_pairs:
            return Refusal("InvalidKeyPair.NotFound", f"The key pair '{key}' does not exist")
        return next((Refusal(*answer) for answer in launch_checks.refusals(call.parameters, self._ec2)), None)

    def _fill_launch(self, call: Call) -> None:
        """Sets the region's defaults: IMDSv2 required (a launch may say `optional`), and the region's subnet.

        EC2 takes an empty SubnetId as none; Packer's amazon plugin 1.8 sends one when no subnet is configured.
        """
        parameters = call.parameters
        for key in [key for key, value in parameters.items() if key.endswith("SubnetId") and not value]:
            del parameters[key]
        parameters.setdefault("MetadataOptions.HttpTokens", "required")
        interfaces = {".".join(key.split(".")[:2]) for key in parameters if key.startswith("NetworkInterface.")}
        for name in interfaces:  # moto knows no network cards, and keeps one interface a device index
            card = parameters.get(f"{name}.NetworkCardIndex", "0")
            if card != "0":
                parameters[f"{name}.DeviceIndex"] = card
        for prefix in [f"{name}." for name in interfaces] or [""]:
            if f"{prefix}NetworkInterfaceId" not in parameters:
                parameters.setdefault(f"{prefix}SubnetId", self._ec2.subnet_id)

    def _refuse_image(self, call: Call) -> Refusal | None:
        instance = self._ec2.instance(call.parameters.get("InstanceId", ""))
        if instance is not None and instance.state not in ("running", "stopping", "stopped"):
            message = f"The instance '{instance.id}' is {instance.state}: no image can be made of it"
            return Refusal("IncorrectInstanceState", message)
        name = call.parameters.get("Name")
        for image in self._ec2.images().values():
            if image.name == name and image.owner_id == self._ec2.account:
                return Refusal("InvalidAMIName.Duplicate", f"AMI name {name} is already in use by AMI {image.id}")
        return None

    def _refuse_start(self, call: Call) -> Refusal | None:
        for instance_id in call.members("InstanceId"):
            instance = self._ec2.instance(instance_id)
            if instance is not None and instance.state not in ("running", "pending", "stopped"):
                message = f"The instance '{instance_id}' is {instance.state}: it cannot be started now"
                return Refusal("IncorrectInstanceState", message)
        return None

    def _after(self, call: Call, body: bytes, snapshot_tags: Mapping[str, str]) -> bytes:
        if call.action == "GetConsoleOutput":
            return self._with_console(call, body)
        if call.action.startswith(_READ_ONLY):
            return body
        if call.action in ("CreateImage", "CopyImage"):
            self._announce(call, body, snapshot_tags)
        for instance_id in call.members("InstanceId"):
            if call.action == "RebootInstances":
                self._reconciler.reboot(instance_id)
            elif call.action == "StopInstances" and call.flag("Force"):
                self._reconciler.force(instance_id)
        if call.action == "RunInstances":
            launched = _texts(body, "instanceId")
            self._ec2.share_profile(launched)
            for instance_id in launched:
                self._ec2.place(instance_id, _placement_group(call))
            body = body.replace(b"<code>16</code>", b"<code>0</code>")
            body = body.replace(b"<name>running</name>", b"<name>pending</name>")
        self._reconciler.absorb()
        return body

    def _announce(self, call: Call, body: bytes, snapshot_tags: Mapping[str, str]) -> None:
        for image_id in _texts(body, "imageId"):
            request = Request(
                no_reboot=bool(call.flag("NoReboot")),
                source_image_id=call.parameters.get("SourceImageId"),
                encrypted=call.flag("Encrypted"),
                snapshot_tags=tuple(snapshot_tags.items()),
            )
            self._images.announce(image_id, request)

    def _with_console(self, call: Call, body: bytes) -> bytes:
        """The answer with the machine's serial console instead of moto's text."""
        console = base64.b64encode(read_console(self._layout.instance(call.parameters["InstanceId"])))
        return re.sub(rb"<output>.*?</output>", b"<output>" + console + b"</output>", body, flags=re.DOTALL)


def _placement_group(call: Call) -> str:
    """The group that a launch names; "" for none, and for every other call."""
    return call.parameters.get("Placement.GroupName", "") if call.action == "RunInstances" else ""


def _is_elsewhere(environ: WSGIEnvironment) -> bool:
    """Whether a call was signed for another region, whose AMIs have no disks."""
    named = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
    return named is not None and named["region"] != REGION


def read_call(environ: WSGIEnvironment) -> Call | None:
    """The EC2 call in a request; None for every other service. The body can be read again afterwards."""
    named = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
    if named is None or named["service"] != "ec2":
        return None
    query = environ.get("QUERY_STRING", "")
    if environ.get("REQUEST_METHOD") == "POST":
        query = read_body(environ).decode()
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    action = parameters.get("Action")
    return Call(action, parameters) if action else None


def _write_call(call: Call, environ: WSGIEnvironment) -> None:
    """Writes the call's parameters, which may have changed, back into the request."""
    query = urlencode(call.parameters)
    if environ.get("REQUEST_METHOD") == "POST":
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(query.encode()), str(len(query))
    else:
        environ["QUERY_STRING"] = query


def take_snapshot_tags(call: Call) -> dict[str, str]:
    """Removes the snapshot's tags from a CreateImage call (moto refuses them) and returns them."""
    if call.action != "CreateImage":
        return {}
    parameters = call.parameters
    tags: dict[str, str] = {}
    for kind in [key for key, value in parameters.items() if value == "snapshot" and key.endswith(".ResourceType")]:
        mine = [name for name in parameters if name.startswith(kind.removesuffix("ResourceType"))]
        keys = [name for name in mine if name.endswith(".Key")]
        tags |= {parameters[name]: parameters.get(name.removesuffix("Key") + "Value", "") for name in keys}
        parameters = {name: value for name, value in parameters.items() if name not in mine}
    call.parameters = _renumbered(parameters)
    return tags


def _renumbered(parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters with lists numbered from 1 without gaps, as the query protocol needs them."""
    numbers = sorted({key.split(".")[1] for key in parameters if key.startswith("TagSpecification.")}, key=int)
    new = {old: str(index) for index, old in enumerate(numbers, start=1)}
    return {
        re.sub(r"^TagSpecification\.(\d+)", lambda match: f"TagSpecification.{new[match[1]]}", key): value
        for key, value in parameters.items()
    }


def _texts(body: bytes, element: str) -> list[str]:
    return [text.decode() for text in re.findall(rf"<{element}>([^<]+)</{element}>".encode(), body)]
