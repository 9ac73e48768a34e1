#!/usr/bin/python3 -IS
# gpu-ami replica of the SSM Agent: registers its machine with the credentials of the instance profile, and runs what
# the region sends (aws:runShellScript, aws:configurePackage). `gpu-ami region user-data` prints what
# installs it.
"""Environment, for tests: GPU_AMI_METADATA and GPU_AMI_API (URLs), GPU_AMI_ROOT (prefix of every path it writes)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

VERSION = "3.3.0.0"
_CREDENTIALS_S = 300.0
_BEAT_S = 5.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 15.0
_KEPT = 24000  # characters of output that Systems Manager keeps
_TARGETS = {"ssm": "AmazonSSM", "ec2messages": "EC2WindowsMessageDeliveryService_v20150611"}


class Agent:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.metadata = environment.get("GPU_AMI_METADATA", "http://169.254.169.254")
        self.api = environment.get("GPU_AMI_API", "http://169.254.169.251")
        self.root = environment.get("GPU_AMI_ROOT", "")
        self.environment = dict(environment)
        self.stopped = False
        self.identity: dict[str, str] | None = None
        self.read_at = 0.0

    def run(self) -> None:
        """Till `stopped`: registers, then one message after the other. A failure is tried again, later each time."""
        wait, registered = _FIRST_WAIT_S, False
        while not self.stopped:
            try:
                if not registered:
                    self.register()
                    registered = True
                for message in self.call("ec2messages", "GetMessages", {}).get("Messages", []):
                    self.answer(message)
                wait = _FIRST_WAIT_S
            except (OSError, ValueError, KeyError) as error:
                if not self.stopped:
                    print("not connected: %s" % error, file=sys.stderr, flush=True)
                registered, self.identity = False, None
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_S)

    def register(self) -> None:
        self.call("ssm", "UpdateInstanceInformation", {"AgentVersion": VERSION, **platform(self.root)})

    def answer(self, message: Mapping[str, Any]) -> None:
        """Runs the steps of a message, while another thread says that the agent is there."""
        done = threading.Event()
        threading.Thread(target=self.beat, args=(done,), daemon=True).start()
        try:
            results = self.steps(message)
        finally:
            done.set()
        self.call("ec2messages", "SendReply", {"MessageId": message["MessageId"], "Results": results})

    def beat(self, done: threading.Event) -> None:
        while not done.wait(_BEAT_S):
            try:
                self.register()
            except (OSError, ValueError, KeyError):
                pass

    def steps(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for step in message["Steps"]:
            results.append(self.step(step))
            if results[-1]["status"] != "Success" and step["inputs"].get("onFailure") == "exit":
                break
        return results

    def step(self, step: Mapping[str, Any]) -> dict[str, Any]:
        inputs = step["inputs"]
        if step["action"] == "aws:configurePackage":
            script = package_script(inputs, self.root)
        else:
            lines = inputs["runCommand"]
            script = lines if isinstance(lines, str) else "\n".join(lines)
        code, out, err, in_time = self.shell(script, float(inputs.get("timeoutSeconds") or 3600))
        status = "TimedOut" if not in_time else "Success" if code == 0 else "Failed"
        return {"name": step["name"], "status": status, "code": code, "stdout": out[:_KEPT], "stderr": err[:_KEPT]}

    def shell(self, script: str, timeout: float) -> tuple[int, str, str, bool]:
        """Exit status, output, errors, and whether it ended in time. The script is a file, as with AWS's agent."""
        folder = tempfile.mkdtemp(prefix="ssm-")
        try:
            path = os.path.join(folder, "_script.sh")
            with open(path, "w", encoding="utf-8") as file:
                file.write(script)
            child = subprocess.Popen(
                ["sh", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=self.environment, cwd=self.root or "/", start_new_session=True,
            )  # fmt: skip
            try:
                out, err = child.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                out, err = child.communicate()
                return -1, out.decode(errors="replace"), err.decode(errors="replace"), False
            return child.returncode, out.decode(errors="replace"), err.decode(errors="replace"), True
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def call(self, service: str, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        key = self.credentials()["AccessKeyId"]
        scope = "%s/%s/us-east-1/%s/aws4_request" % (key, time.strftime("%Y%m%d", time.gmtime()), service)
        headers = {
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": "%s.%s" % (_TARGETS[service], action),
            # The region takes any signature.
            "Authorization": "AWS4-HMAC-SHA256 Credential=%s, SignedHeaders=host, Signature=0" % scope,
        }
        request = urllib.request.Request(self.api + "/", json.dumps(body).encode(), headers)
        with open_url(request, 60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def credentials(self) -> Mapping[str, str]:
        """Those of the instance profile. ValueError: the instance has none."""
        if self.identity is None or time.monotonic() - self.read_at > _CREDENTIALS_S:
            token = self.ask("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "300"})
            known = {"X-aws-ec2-metadata-token": token}
            folder = "/latest/meta-data/iam/security-credentials/"
            role = self.ask("GET", folder, known).split("\n")[0].strip("/")
            self.identity = json.loads(self.ask("GET", folder + role, known))
            self.read_at = time.monotonic()
        return self.identity

    def ask(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(self.metadata + path, headers=headers, method=method)
        try:
            with open_url(request, 10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            raise ValueError("%s: %s" % (path, error)) from error


def open_url(request: urllib.request.Request, timeout: float) -> Any:
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout)


def platform(root: str) -> dict[str, str]:
    """Name and version of the operating system."""
    rows = {}
    path = root + "/etc/os-release"
    with open(path if os.path.exists(path) else "/etc/os-release", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.strip().partition("=")
            rows[name] = value.strip('"')
    return {
        "PlatformType": "Linux",
        "PlatformName": rows.get("NAME", "Linux"),
        "PlatformVersion": rows.get("VERSION_ID", "0"),
        "ComputerName": os.uname().nodename,
    }


def package_script(inputs: Mapping[str, Any], root: str) -> str:
    """What installs or removes a Distributor package. source: the region's URLs of it, by format."""
    name = {"AmazonCloudWatchAgent": "amazon-cloudwatch-agent"}.get(inputs["name"], inputs["name"])
    releases = ("/etc/redhat-release", "/etc/amazon-linux-release")
    kind = "rpm" if any(os.path.exists(root + path) for path in releases) else "deb"
    if inputs["action"] == "Uninstall":
        remove = "rpm -e %s" if kind == "rpm" else "DEBIAN_FRONTEND=noninteractive dpkg --purge %s"
        return "systemctl stop %s 2>/dev/null; %s" % (name, remove % name)
    url = inputs.get("source", {}).get(kind, "")
    if not url:
        return "echo 'the package %s is not in the mirror of the local region: make a plan first' >&2; exit 1" % name
    fetch = "python3 -c 'import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])' '%s' \"$file\"" % url
    install = "rpm -U --nosignature --replacepkgs" if kind == "rpm" else "DEBIAN_FRONTEND=noninteractive dpkg -i"
    script = 'file=$(mktemp --suffix=.%s) && %s && %s "$file"; code=$?; rm -f "$file"; exit $code'
    return script % (kind, fetch, install)


def main() -> None:
    agent = Agent(os.environ)

    def stop(*_: object) -> None:
        agent.stopped = True
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    agent.run()


if __name__ == "__main__":
    main()
