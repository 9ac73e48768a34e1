"""nvidia-ctk: CDI specifications of the GPUs that the driver shows, and its part of the runtimes' configuration."""

import argparse
import os
import sys
from typing import NoReturn

from . import engines, log, registry, specification
from .settings import PATH, Settings

DEFAULTS = "/usr/lib/nvidia-ctk/config.toml"


def generate(options: argparse.Namespace) -> int:
    if not specification.driver_version():
        reason = "failed to construct device spec generators: failed to initialize NVML: ERROR_DRIVER_NOT_LOADED"
        raise log.Failure("failed to generate CDI spec: failed to create device CDI specs: " + reason)
    found = specification.gpus()
    if not found:
        raise log.Failure(
            'failed to write spec: invalid CDI Spec: failed add device "all": invalid device, empty device edits'
        )
    document = specification.specify(found, options.version)
    text = specification.text_of(document)
    path = options.output or os.environ.get("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH")
    if path:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path + ".tmp", 0o644)
        os.replace(path + ".tmp", path)
    else:
        sys.stdout.write(text)
    log.log("info", "Generated CDI spec with version " + document["cdiVersion"])
    return 0


def list_devices(_options: argparse.Namespace) -> int:
    names = registry.names(Settings().folders)
    log.log("info", "Found %d CDI devices" % len(names))
    sys.stdout.write("".join(name + "\n" for name in names))
    return 0


def configure(options: argparse.Namespace) -> int:
    known = {"docker": engines.configure_docker, "containerd": engines.configure_containerd}
    if options.runtime not in known:
        raise log.Failure("unrecognized runtime '%s'" % options.runtime)
    known[options.runtime](options)
    log.log("info", "It is recommended that %s daemon be restarted." % options.runtime)
    return 0


def first_config(options: argparse.Namespace) -> int:
    """The packages' first configuration, where there is none."""
    if not os.path.exists(options.config_file):
        with open(DEFAULTS, encoding="utf-8") as file:
            text = file.read()
        os.makedirs(os.path.dirname(options.config_file), exist_ok=True)
        with open(options.config_file, "w", encoding="utf-8") as file:
            file.write(text)
    return 0


class _Parser(argparse.ArgumentParser):
    """The original ends with 1 where it cannot read its command line, and prints its help where no command is given."""

    def error(self, message: str) -> NoReturn:
        raise log.Failure(message)


def parser() -> argparse.ArgumentParser:
    whole = _Parser(prog="nvidia-ctk")
    whole.add_argument("--quiet", action="store_true")

    def print_help(_: argparse.Namespace) -> int:
        whole.print_help()
        return 0

    whole.set_defaults(run=print_help)
    commands = whole.add_subparsers(dest="command")
    cdi = commands.add_parser("cdi").add_subparsers(dest="subcommand")
    making = cdi.add_parser("generate")
    making.add_argument("--output")
    making.set_defaults(run=generate)
    cdi.add_parser("list").set_defaults(run=list_devices)
    first = commands.add_parser("config")
    first.add_argument("--config-file", default=PATH)
    first.add_argument("--in-place", action="store_true")
    first.set_defaults(run=first_config)
    setting = commands.add_parser("runtime").add_subparsers(dest="subcommand").add_parser("configure")
    setting.add_argument("--runtime", default="docker")
    setting.add_argument("--config")
    setting.add_argument("--config-source", choices=["file", "command"], default="file")
    setting.add_argument("--drop-in-config")
    setting.add_argument("--cdi.enabled", dest="cdi_enabled", action="store_true")
    setting.add_argument("--set-as-default", "--nvidia-set-as-default", dest="set_as_default", action="store_true")
    setting.set_defaults(run=configure)
    return whole


def main(words: list[str], version: str) -> int:
    chosen = parser().parse_args(words)
    chosen.version = specification.release(version)
    log.quiet = chosen.quiet
    return int(chosen.run(chosen))
