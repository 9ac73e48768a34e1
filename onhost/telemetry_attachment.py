"""Telemetry on a machine that gpu-ami did not build: prepare, install, status, detach, clean. Python 3.7, root.

Systems Manager runs it (gpu_ami/fleet/payload.py). Every verb prints one line of JSON; a refusal goes to standard
error, with exit status 1. Before anything is installed, `prepare` writes down what was there: `detach` takes back what
was not, and no more. GPU_AMI_ROOT is a prefix of every path, for tests.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import io
import json
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import time
from typing import Any, NoReturn

ROOT = os.environ.get("GPU_AMI_ROOT", "")
STATE = "/var/lib/gpu-ami-fleet"
PARTS, MANIFEST, SAVED = STATE + "/parts", STATE + "/attached.json", STATE + "/agent-before"
HOME = "/opt/aws/cloudwatch/nvidia"
PARSER, AGENT = "aws-hw-monitor.service", "amazon-cloudwatch-agent.service"
AGENT_HOME = "/opt/aws/amazon-cloudwatch-agent"
AGENT_PARTS = AGENT_HOME + "/etc/amazon-cloudwatch-agent.d"
CTL = AGENT_HOME + "/bin/amazon-cloudwatch-agent-ctl"
POLICY = "/etc/gpu-ami/xid-policy.json"
STATUS = "/run/gpu-ami/event-parser.json"
DIAGNOSE = HOME + "/gpu-ami-diagnose"
_OWN_PARTS = "ssm_AmazonCloudWatch-gpu-ami-"
# Systems Manager keeps 24,000 characters of a command's output.
_FINDINGS, _TEXT = 20, 240
_OF_PARSER = (
    HOME, "/etc/systemd/system/" + PARSER, "/etc/systemd/system/" + PARSER + ".d", "/etc/logrotate.d/gpu-ami-events",
    "/usr/bin/gpu-ami-diagnose", "/var/lib/gpu-ami/event-parser", "/run/gpu-ami", POLICY,
)  # fmt: skip
# What the agent's package and its scripts leave when it is removed.
_OF_AGENT = (
    AGENT_HOME, "/etc/amazon/amazon-cloudwatch-agent", "/var/log/amazon/amazon-cloudwatch-agent",
    "/usr/bin/amazon-cloudwatch-agent-ctl", "/etc/systemd/system/" + AGENT, "/etc/init/amazon-cloudwatch-agent.conf",
)  # fmt: skip
# Folders that others use, too: removed where attach made them and nothing is in them.
_SHARED = (
    "/opt/aws/cloudwatch", "/opt/aws", "/etc/amazon", "/var/log/amazon", "/etc/gpu-ami", "/var/lib/gpu-ami",
)  # fmt: skip
_ACCOUNTS = ("cwagent", "aoc")


def fail(text: str) -> NoReturn:
    sys.stderr.write(text + "\n")
    raise SystemExit(1)


def at(path: str) -> str:
    return ROOT + path


def exists(path: str) -> bool:
    return os.path.lexists(at(path))


def run(*words: str) -> str:
    """Output of a program; "" where it fails or is not there."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False
        )
    except OSError:
        return ""
    return done.stdout.decode(errors="replace").strip()


def must(*words: str) -> None:
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        fail(
            "%s: exit status %d: %s" % (" ".join(words), done.returncode, done.stdout.decode(errors="replace").strip())
        )


def is_active(unit: str) -> bool:
    return run("systemctl", "is-active", unit) == "active"


def read_json(path: str) -> dict[str, Any]:
    try:
        with open(at(path), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: str, document: dict[str, Any]) -> None:
    os.makedirs(at(STATE), mode=0o700, exist_ok=True)
    with open(at(path) + ".new", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    os.replace(at(path) + ".new", at(path))


def written(log: str) -> list[str]:
    """A log and its rotated parts."""
    return glob.glob(glob.escape(at(log)) + "*")


def accounts() -> list[str]:
    return [name for name in _ACCOUNTS if name in {row.pw_name for row in pwd.getpwall()}]


def prepare(plan: dict[str, Any]) -> dict[str, Any]:
    """Writes down what is there, once; refuses a machine whose image has the telemetry already."""
    manifest = read_json(MANIFEST)
    if not manifest and exists(HOME):
        fail("the machine has the event parser of its image (%s): nothing is attached to it" % HOME)
    if not manifest:
        paths = (*_OF_PARSER, *_OF_AGENT, *_SHARED)
        manifest = {
            "before": [path for path in paths if exists(path)], "accounts": accounts(),
            "agent": "present" if exists(CTL) else "absent", "agent_active": is_active(AGENT),
            "logs": [path for path in plan["logs"] if not written(path)],
        }  # fmt: skip
        if exists(AGENT_PARTS):
            shutil.copytree(at(AGENT_PARTS), at(SAVED))
        write_json(MANIFEST, manifest)
    return {
        "agent": "present" if exists(CTL) else "absent", "gpu": exists("/usr/bin/nvidia-smi"),
        "kept": own_configuration(),
    }  # fmt: skip


def own_configuration() -> list[str]:
    """Files of the agent's configuration that are not of an attachment: they stay, and ours is appended to them."""
    files = glob.glob(at(AGENT_PARTS) + "/*") + glob.glob(at(AGENT_HOME) + "/etc/amazon-cloudwatch-agent.json")
    return sorted(os.path.basename(path) for path in files if not os.path.basename(path).startswith(_OWN_PARTS))


def install(plan: dict[str, Any]) -> dict[str, Any]:
    """Unpacks the parts that arrived, and starts the parser. plan: its digest and image, those of the archive."""
    manifest = read_json(MANIFEST)
    if not manifest:
        fail("nothing was prepared on this machine")
    packed = b""
    for number in range(1, int(plan["parts"]) + 1):
        try:
            with open(at("%s/%d" % (PARTS, number)), "rb") as file:
                packed += base64.b64decode(file.read())
        except OSError as error:
            fail("part %d of %d did not arrive: %s" % (number, plan["parts"], error.strerror))
    if hashlib.sha256(packed).hexdigest() != plan["archive"]:
        fail("the parts in %s are not those of plan %s" % (PARTS, plan["plan"]))
    shutil.rmtree(at(HOME), ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:xz") as archive:
        for entry in archive:
            if entry.name != POLICY.lstrip("/") or not exists(POLICY):
                archive.extract(entry, at("/"), set_attrs=True)
    shutil.rmtree(at(PARTS), ignore_errors=True)
    write_json(MANIFEST, {**manifest, "plan": plan["plan"], "image": plan["image"], "policy": digest(POLICY)})
    must(sys.executable, "-m", "compileall", "-q", at(HOME) + "/hwevents")
    must("systemctl", "daemon-reload")
    must("systemctl", "enable", "--quiet", PARSER)
    must("systemctl", "restart", PARSER)
    return {"plan": plan["plan"]}


def digest(path: str) -> str:
    try:
        with open(at(path), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def status(_: dict[str, Any]) -> dict[str, Any]:
    """What runs here, and which plan it is of: "" for a machine with nothing, or with its image's own telemetry."""
    manifest, parser = read_json(MANIFEST), read_json(STATUS)
    fields = ("backlog_bytes", "records_lost", "sink_errors", "events_dropped", "policy_errors", "heartbeat_period_s")
    found = {key: parser[key] for key in fields if key in parser}
    if "heartbeat_monotonic_s" in parser:
        found["heartbeat_age_s"] = round(time.monotonic() - parser["heartbeat_monotonic_s"], 1)
    parts = sorted(os.listdir(at(AGENT_PARTS))) if exists(AGENT_PARTS) else []
    origin = "fleet" if manifest.get("plan") else "incomplete" if manifest else "image" if exists(HOME) else ""
    return {
        "plan": manifest.get("plan", ""), "image": manifest.get("image", ""), "origin": origin,
        "agent": run("systemctl", "is-active", AGENT) if exists(CTL) else "absent",
        "agent_version": version(), "configuration": parts, "kept": own_configuration(),
        "gpu": exists("/usr/bin/nvidia-smi"),
        "parser": run("systemctl", "is-active", PARSER) if exists(HOME) else "absent", "parser_status": found,
        "diagnosis": diagnosis(),
    }  # fmt: skip


def diagnosis() -> dict[str, Any]:
    """What gpu-ami-diagnose found: findings, the first 20 in words, and how many there are; why: what it did not read.

    A machine whose diagnosis is missing has no findings, and a reason why nothing is known of it.
    """
    if not exists(DIAGNOSE):
        return {"exit_code": None, "findings": [], "count": 0, "why": "gpu-ami-diagnose is not installed"}
    printed = run(sys.executable, at(DIAGNOSE), "--json")  # its probes have deadlines of their own
    try:
        document = json.loads(printed)
        found, probes = document["findings"], document["probes"]
        unread = ["%s: %s" % (name, each.get("why", "")) for name, each in sorted(probes.items())
                  if each["status"] in ("missing", "failed", "timeout")]  # fmt: skip
        rows = [{"level": each["level"], "text": ("%s: %s" % (each["subject"], each["text"]))[:_TEXT],
                 "kind": each["kind"]} for each in found[:_FINDINGS]]  # fmt: skip
        why = "; ".join(line[:_TEXT] for line in unread)
        return {"exit_code": int(document["exit_code"]), "findings": rows, "count": len(found), "why": why}
    except (ValueError, KeyError, TypeError, AttributeError):
        text = "gpu-ami-diagnose printed no diagnosis: %s" % (printed[-_TEXT:] or "no output")
        return {"exit_code": None, "findings": [], "count": 0, "why": text}


def version() -> str:
    try:
        with open(at(AGENT_HOME + "/bin/CWAGENT_VERSION"), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def detach(_: dict[str, Any]) -> dict[str, Any]:
    """Takes back the parser and the agent's configuration. The package of an agent that attach installed goes later."""
    manifest = read_json(MANIFEST)
    if not manifest:
        return {"agent": "kept", "attached": False}
    kept = [POLICY] if exists(POLICY) and digest(POLICY) != manifest.get("policy", "") else []
    if exists("/etc/systemd/system/" + PARSER):
        run("systemctl", "disable", "--quiet", "--now", PARSER)
    remove(manifest, [path for path in _OF_PARSER if path not in kept])
    for path in manifest["logs"]:
        for written_file in written(path):
            os.unlink(written_file)
    run("systemctl", "daemon-reload")
    if manifest["agent"] == "absent":
        run("systemctl", "disable", "--quiet", "--now", AGENT)
        if exists(CTL):
            return {"agent": "installed", "attached": True, "kept": kept}
        clean({})  # attach stopped before the agent's package, or detach after it
        return {"agent": "absent", "attached": True, "kept": kept}
    restore(manifest)
    forget(manifest)
    return {"agent": "kept", "attached": True, "kept": kept}


def restore(manifest: dict[str, Any]) -> None:
    """The configuration that the agent had, and whether it ran."""
    for path in glob.glob(at(AGENT_PARTS) + "/" + _OWN_PARTS + "*"):
        os.unlink(path)
    # What was added or changed since stays; what is gone comes back (releases before 0.3 replaced the configuration).
    for path in glob.glob(at(SAVED) + "/*"):
        if not exists(AGENT_PARTS + "/" + os.path.basename(path)):
            os.makedirs(at(AGENT_PARTS), exist_ok=True)
            shutil.copy2(path, at(AGENT_PARTS))
    run("systemctl", "restart" if manifest["agent_active"] else "stop", AGENT)


def clean(_: dict[str, Any]) -> dict[str, Any]:
    """After the agent's package was removed: what it left, and the record of the attachment."""
    manifest = read_json(MANIFEST)
    if manifest and manifest["agent"] == "absent":
        if exists(CTL):
            fail("the CloudWatch agent is still installed")
        remove(manifest, list(_OF_AGENT))
        for name in accounts():
            if name not in manifest["accounts"]:
                run("userdel", name)
                run("groupdel", name)
        run("systemctl", "daemon-reload")
    forget(manifest)
    return {"attached": False}


def remove(manifest: dict[str, Any], paths: list[str]) -> None:
    for path in paths:
        if path in manifest["before"] or not exists(path):
            continue
        if os.path.isdir(at(path)) and not os.path.islink(at(path)):
            shutil.rmtree(at(path))
        else:
            os.unlink(at(path))


def forget(manifest: dict[str, Any]) -> None:
    """Removes shared folders that are empty now and were not there, and the record."""
    for path in _SHARED:
        if path not in manifest.get("before", []) and os.path.isdir(at(path)) and not os.listdir(at(path)):
            os.rmdir(at(path))
    shutil.rmtree(at(STATE), ignore_errors=True)


VERBS = {"prepare": prepare, "install": install, "status": status, "detach": detach, "clean": clean}

if __name__ == "__main__":
    answer = VERBS[sys.argv[1]](json.loads(sys.argv[2]))
    sys.stdout.write(json.dumps(answer) + "\n")
