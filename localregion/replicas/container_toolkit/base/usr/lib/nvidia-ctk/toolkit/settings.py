"""/etc/nvidia-container-runtime/config.toml, over the toolkit's own defaults."""

import tomllib

from .log import Failure

PATH = "/etc/nvidia-container-runtime/config.toml"


class Settings:
    def __init__(self, path: str = PATH) -> None:
        try:
            with open(path, "rb") as file:
                table = tomllib.load(file)
        except FileNotFoundError:
            table = {}
        except tomllib.TOMLDecodeError as error:
            raise Failure("failed to load config: %s: %s" % (path, error)) from error
        runtime = table.get("nvidia-container-runtime", {})
        cdi = runtime.get("modes", {}).get("cdi", {})
        self.mode = runtime.get("mode", "auto")
        self.runtimes = runtime.get("runtimes", ["runc", "crun"])
        self.kind = cdi.get("default-kind", "nvidia.com/gpu")
        self.folders = cdi.get("spec-dirs", ["/etc/cdi", "/var/run/cdi"])
        self.prefixes = cdi.get("annotation-prefixes", ["cdi.k8s.io/"])
