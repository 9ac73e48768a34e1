"""The table that `nvidia-smi` prints without arguments."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .driver import Gpu
    from .readings import Readings

_RULE = "+-----------------------------------------+------------------------+----------------------+"


def summary(gpus: list[Gpu], readings: list[Readings], version: str, cuda: str, timestamp: str) -> str:
    lines = [
        timestamp,
        "+" + "-" * (len(_RULE) - 2) + "+",
        "| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |" % (version, version, cuda),
        _RULE,
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        _RULE.replace("-", "="),
    ]
    for gpu, now in zip(gpus, readings):
        usage = "%sMiB / %sMiB" % (_or_na(now.memory_used), _or_na(now.memory_total))
        power = "%sW / %sW" % (_whole(now.power_draw), _whole(now.power_limit))
        lines.append("| %3d  %-30s Off |   %s Off | %20s |" % (gpu.index, gpu.name[:30], gpu.bus_id, "0"))
        lines.append(
            "| N/A  %3dC    P0 %23s | %22s | %7d%%      Default |"
            % (now.temperature_gpu, power, usage, now.utilization_gpu)
        )
        lines.append(_RULE)
    lines += [
        "",
        "+" + "-" * 89 + "+",
        "| %-87s |" % "Processes:",
        "|" + "=" * 89 + "|",
        "| %-87s |" % " No running processes found",
        "+" + "-" * 89 + "+",
    ]
    return "\n".join(lines) + "\n"


def _or_na(value: int | None) -> str:
    return "N/A" if value is None else str(value)


def _whole(value: float | None) -> str:
    return "N/A" if value is None else str(round(value))
