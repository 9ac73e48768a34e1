"""The runtimes' own configuration: Docker's daemon.json; containerd's drop-in file with the whole section of CRI.

Like the original's since 1.18: where two files of containerd name a plug-in, the later one replaces the whole section
(up to 2.0), so the drop-in repeats what it finds there. `--config-source=file`, the default, finds what the file says
alone, without containerd's defaults; the runtime runc is lost if the file does not name it.
"""

import json
import os
import subprocess
from argparse import Namespace

import tomllib

from .log import Failure, log
from .specification import Table, read
from .toml import text_of

RUNTIME = "/usr/bin/nvidia-container-runtime"
CONTAINERD = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
DOCKER = "/etc/docker/daemon.json"


def write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    log("info", "Wrote updated config to " + path)


def configure_docker(options: Namespace) -> None:
    path = options.config or DOCKER
    text = read(path)
    if text == "":
        raise Failure("unable to load config for runtime docker: EOF")
    try:
        settings = json.loads(text or "{}")
    except ValueError as error:
        raise Failure("unable to load config for runtime docker: %s" % error) from error
    settings.setdefault("runtimes", {})["nvidia"] = {"args": [], "path": os.path.basename(RUNTIME)}
    if options.cdi_enabled:
        settings.setdefault("features", {})["cdi"] = True
    if options.set_as_default:
        settings["default-runtime"] = "nvidia"
    write(path, json.dumps(settings, indent=4, sort_keys=True))


def configure_containerd(options: Namespace) -> None:
    path = options.config or CONTAINERD
    source = dumped_config() if options.config_source == "command" else _parsed(read(path) or "", path)
    version = source.get("version", 1 if source else 2)
    if version == 1:
        raise Failure("unable to load config for runtime containerd: this replica knows versions 2 and 3")
    name = "io.containerd.grpc.v1.cri" if version == 2 else "io.containerd.cri.v1.runtime"
    plugin = source.get("plugins", {}).get(name, {})
    runtimes = plugin.setdefault("containerd", {}).setdefault("runtimes", {})
    base = runtimes.get("runc") or runtimes.get("crun")
    if base is None:
        log("warning", "Could not infer options from runtimes [runc crun]")
        base = {"privileged_without_host_devices": False, "runtime_engine": "", "runtime_root": ""}
        base["runtime_type"] = "io.containerd.runc.v2"
    runtimes["nvidia"] = json.loads(json.dumps(base))
    runtimes["nvidia"].setdefault("options", {})["BinaryName"] = RUNTIME
    if options.cdi_enabled:
        plugin["enable_cdi"] = True
    if options.set_as_default:
        plugin["containerd"]["default_runtime_name"] = "nvidia"
    drop_in = options.drop_in_config or DROP_IN
    write(drop_in, text_of({"version": version, "plugins": {name: plugin}}))
    _import(path, os.path.dirname(drop_in), version)


def dumped_config() -> Table:
    """Return the configuration that containerd runs with."""
    done = subprocess.run(["containerd", "config", "dump"], capture_output=True, text=True)
    if done.returncode != 0:
        reason = "failed to run command containerd [config dump]: exit status %d" % done.returncode
        raise Failure("unable to load config for runtime containerd: failed to load config: " + reason)
    return _parsed(done.stdout, "containerd config dump")


def _parsed(text: str, name: str) -> Table:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Failure("unable to load config for runtime containerd: %s: %s" % (name, error)) from error


def _import(path: str, folder: str, version: int) -> None:
    """The top-level file imports the drop-in; what else it says stays."""
    text = read(path) or ""
    row = 'imports = ["%s/*.toml"]' % folder
    if row in text:
        return
    kept = [line for line in text.splitlines() if not line.startswith("imports = ")]
    head = [] if any(line.startswith("version = ") for line in kept) else ["version = %d" % version]
    write(path, "\n".join([row, *head, *kept]) + "\n")
