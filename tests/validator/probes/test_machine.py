"""What a machine is: instance metadata from a service on loopback, its clock, its boot, its GPUs."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scripted_host import table_host
from validator.probes.machine import METADATA, Clock, MachineUnderTest, metadata_of

FOUND = {
    "instance-id": "i-1",
    "instance-type": "g5.xlarge",
    "ami-id": "ami-1",
    "region": "eu-west-1",
    "private-ip": "10.0.0.7",
}
XML = '<nvidia_smi_log><gpu id="00000000:00:1E.0"><product_name>NVIDIA A10G</product_name></gpu></nvidia_smi_log>'
TREE = {
    "meta-data/instance-id": "i-1\n",
    "meta-data/instance-type": "g5.xlarge",
    "meta-data/ami-id": "ami-1",
    "meta-data/public-keys/": "0=first\n1=second",
    "meta-data/public-keys/0/openssh-key": "ssh-ed25519 AAAA first\n",
    "meta-data/public-keys/1/openssh-key": "ssh-ed25519 BBBB second\n",
    "dynamic/instance-identity/document": '{"region": "eu-west-1", "privateIp": "10.0.0.7"}',
}


class Service(BaseHTTPRequestHandler):
    """The instance metadata service: answers only who shows the token that it has given (IMDSv2)."""

    tree = TREE

    def do_PUT(self) -> None:
        lives = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self._answer("token" if self.path == "/latest/api/token" and lives else None)

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != "token":
            self.send_error(401)
            return
        self._answer(self.tree.get(self.path.removeprefix("/latest/")))

    def _answer(self, text: str | None) -> None:
        if text is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Nothing on the console."""


@pytest.fixture
def service() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def ask(service: HTTPServer) -> Any:
    program = METADATA.replace('("169.254.169.254", 80)', f'("127.0.0.1", {service.server_port})')
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return metadata_of(done.stdout) if done.returncode == 0 else done.stderr


def test_metadata_program(service: HTTPServer) -> None:
    assert ask(service) == FOUND | {"public-keys": ["ssh-ed25519 AAAA first", "ssh-ed25519 BBBB second"]}


def test_instance_without_keys(service: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "tree", {path: text for path, text in TREE.items() if "public-keys" not in path})
    assert ask(service) == FOUND | {"public-keys": []}


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
def test_any_version_of_http_will_do(service: HTTPServer, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(Service, "protocol_version", version)
    assert ask(service)["ami-id"] == "ami-1"


def test_metadata_service_that_refuses_is_named(service: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "do_PUT", lambda self: self.send_error(403))
    assert ask(service) == "api/token: HTTP/1.0 403 Forbidden\n"


def test_metadata_program_starts_fast() -> None:
    """An emulated machine takes seconds for the import of urllib or http.client."""
    program = METADATA.partition("token =")[0].replace("-IS", "-IS -X importtime") + "'"
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "socket" in imported and not imported & {"urllib.request", "http.client", "json", "ssl", "email"}


def test_metadata_is_read_once_and_only_if_needed() -> None:
    document = json.dumps({"region": "eu-west-1", "privateIp": "10.0.0.7"})
    host = table_host({"python3 -IS -c *": "\36".join(["i-1", "g5.xlarge", "ami-1", document, "ssh-ed25519 A"]) + "\n"})
    machine = MachineUnderTest(host)
    assert machine.known_type == "" and host.backend.asked == []
    assert (machine.instance_id, machine.instance_type, machine.known_type) == ("i-1", "g5.xlarge", "g5.xlarge")
    assert machine.metadata == FOUND | {"public-keys": ["ssh-ed25519 A"]}
    assert len(host.backend.asked) == 1


def test_identity_document_that_is_not_json_is_unproven() -> None:
    machine = MachineUnderTest(table_host({"python3 -IS -c *": "\36".join(["i-1", "t", "ami-1", "<html>"]) + "\n"}))
    with pytest.raises(pytest.skip.Exception, match="has no identity document of JSON"):
        _ = machine.metadata


def test_id_and_type_of_the_caller_are_used() -> None:
    machine = MachineUnderTest(table_host({}), "i-2", "p5.48xlarge")
    assert (machine.instance_id, machine.instance_type, machine.known_type) == ("i-2", "p5.48xlarge", "p5.48xlarge")


def test_no_metadata_service_is_unproven() -> None:
    machine = MachineUnderTest(table_host({"python3 -IS -c *": (1, "", "Traceback\nTimeoutError: timed out\n")}))
    with pytest.raises(pytest.skip.Exception, match=r"does not answer on the host \(TimeoutError: timed out"):
        _ = machine.metadata


@pytest.mark.parametrize(
    ("least", "most", "offset"), [(-0.1, 0.2, 0.0), (0.5, 0.8, 0.5), (-0.8, -0.5, -0.5), (0.0, 0.0, 0.0)]
)
def test_clock_offset_is_the_smallest_possible(least: float, most: float, offset: float) -> None:
    assert Clock(least, most).offset == offset


@pytest.mark.parametrize(("ahead", "shown"), [(30.0, r"\+(29\.9|30\.0)"), (-30.0, r"-(30\.0|29\.9)")])
def test_wrong_clock_is_unproven(ahead: float, shown: str) -> None:
    machine = MachineUnderTest(table_host({"date +%s.%N": lambda _: f"{time.time() + ahead:.9f}\n"}))
    with pytest.raises(pytest.skip.Exception, match=f"the host's clock is off by {shown} s"):
        machine.require_clock()


def test_right_clock() -> None:
    machine = MachineUnderTest(table_host({"date +%s.%N": lambda _: f"{time.time():.9f}\n"}))
    machine.require_clock()
    assert machine.clock.least <= 0 <= machine.clock.most


def test_boot_time() -> None:
    stat = SimpleNamespace(content_string="cpu  1 2 3\nctxt 9\nbtime 1700000000\nprocesses 5\n")
    host = SimpleNamespace(file={"/proc/stat": stat}.__getitem__)
    assert MachineUnderTest(host).boot_time == 1700000000.0


def test_first_boot_is_that_of_cloud_init() -> None:
    command = "stat -L -c %Y /var/lib/cloud/instance/sem/consume_data"
    assert MachineUnderTest(table_host({command: "1700000123\n"})).first_boot_time == 1700000123.0
    with pytest.raises(pytest.skip.Exception, match="cloud-init has no record of this instance"):
        _ = MachineUnderTest(table_host({command: (1, "", "No such file")})).first_boot_time


def test_gpus() -> None:
    (gpu,) = MachineUnderTest(table_host({"nvidia-smi -q -x": XML})).gpus
    assert (gpu.name, gpu.pci) == ("NVIDIA A10G", "0000:00:1e.0")
    with pytest.raises(pytest.skip.Exception, match="nvidia-smi -q -x exited with status 9: NVIDIA-SMI has failed"):
        _ = MachineUnderTest(table_host({"nvidia-smi -q -x": (9, "NVIDIA-SMI has failed\n")})).gpus
