"""Machines without QEMU whose ECS agent is the region's own replica; their Docker and nvidia-smi follow a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.localregion.managed_machines import MetadataService

_REPLICA = Path(__file__).resolve().parents[2] / "localregion" / "replicas" / "ecs_ami" / "rootfs"
PROGRAM = _REPLICA / "usr" / "libexec" / "amazon-ecs-init"
GPUS = ("GPU-11111111-0000-0000-0000-000000000001", "GPU-11111111-0000-0000-0000-000000000002")
# `create` keeps its words; `wait` answers once the file `ended` is there, as a container that ends. Where the file
# `result.json` is there, a container writes it into its volume, and ends.
_DOCKER = """\
#!/bin/sh
echo "$*" >> {root}/docker.log
case "$1" in
  version) echo 25.0.13 ;;
  pull) echo 'connection refused' >&2; exit 1 ;;
  image) [ -e {root}/image ] ;;
  start)
    [ ! -e {root}/result.json ] || {{
      folder=$(sed -n 's|^create.* --volume \\([^:]*\\):/result .*|\\1|p' {root}/docker.log | tail -n 1)
      cp {root}/result.json "$folder/" && echo 0 > {root}/ended
    }} ;;
  stop) echo 137 > {root}/ended ;;
  wait) while [ ! -e {root}/ended ]; do sleep 0.02; done; cat {root}/ended ;;
esac
"""
_NVIDIA_SMI = """\
#!/bin/sh
case "$*" in *driver_version*) before='580.1, ' ;; *) before= ;; esac
for uuid in {uuids}; do echo "$before$uuid"; done
"""


class ContainerMachine:
    """One instance's machine: its files under `root`, its agent while it is started."""

    def __init__(self, endpoint: str, instance_id: str, root: Path, cluster: str, gpus: tuple[str, ...] = GPUS) -> None:
        self.instance_id, self.root = instance_id, root
        for folder in ("bin", "dev", "etc/ecs", "var/lib/ecs"):
            (root / folder).mkdir(parents=True)
        for index in range(len(gpus)):
            (root / "dev" / f"nvidia{index}").touch()
        self.program("docker", _DOCKER.format(root=root))
        self.program("nvidia-smi", _NVIDIA_SMI.format(uuids=" ".join(gpus)))
        (root / "image").touch()
        (root / "var/lib/ecs/ecs.config").write_text("ECS_ENABLE_GPU_SUPPORT=true\n")
        self.configure(ECS_CLUSTER=cluster, ECS_INSTANCE_ATTRIBUTES='{"gpu-ami.run": "20261125-000000-abcdef"}')
        self._metadata = MetadataService(instance_id, "gpu-ami-local")
        self.environment = {
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}", "GPU_AMI_ROOT": str(root), "GPU_AMI_API": endpoint,
            "GPU_AMI_METADATA": self._metadata.url,
        }  # fmt: skip
        self.agent: subprocess.Popen[bytes] | None = None

    def program(self, name: str, text: str) -> None:
        path = self.root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def configure(self, **settings: str) -> None:
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.root / "etc/ecs/ecs.config").write_text(text)

    def read(self, name: str) -> str:
        path = self.root / name
        return path.read_text() if path.exists() else ""

    def ecs_init(self, verb: str) -> int:
        words = [sys.executable, "-IS", str(PROGRAM), verb]
        return subprocess.run(words, env=self.environment, timeout=60, check=False).returncode

    def start(self, *, without: str = "") -> None:
        """As ecs.service: pre-start, then start. without: a GPU that is missing from the file of them in between."""
        assert self.ecs_init("pre-start") == 0, self.read("var/log/ecs/ecs-init.log")
        if without:
            info = self.root / "var/lib/ecs/gpu/nvidia-gpu-info.json"
            info.write_text(info.read_text().replace(f', "{without}"', ""))
        words = [sys.executable, "-IS", str(PROGRAM), "start"]
        self.agent = subprocess.Popen(words, env=self.environment, start_new_session=True)

    def stop(self) -> None:
        if self.agent:
            self.agent.terminate()
            self.agent.wait(30)
            self.agent = None

    def close(self) -> None:
        (self.root / "ended").write_text("0\n")  # for a container that still runs
        self.stop()
        self._metadata.close()
