"""Xids that a proof injects, and their way to CloudWatch Logs."""

from __future__ import annotations

from typing import Any

from validator.observe import Observe
from validator.probes import pci_address
from validator.probes.agent.injected_lines import InjectedLines, Injection, nonce

_CODE = 31  # an application's MMU fault: common, and no GPU needs a repair after it
_PID, _PROCESS = 4242, "gpu-ami-proof"


class Xids(InjectedLines):
    """Injects Xids on a host and follows them."""

    what = "an Xid"

    def kernel_files(self) -> list[str]:
        """Files through which the simulated driver prints an Xid; none on a real GPU."""
        return sorted(self.host.run("ls -1 /proc/driver/nvidia/gpus/*/xid 2>/dev/null").stdout.split())

    def from_kernel(self, file: str, observe: Observe) -> Injection:
        unique = nonce()
        return self.inject(file, _body(unique), unique, pci_address(file.split("/")[-2]), observe)

    def from_userland(self, pci: str, observe: Observe) -> Injection:
        unique = nonce()
        return self.inject_drill(f"NVRM: Xid (PCI:{pci[:-2]}): {_body(unique)}", unique, pci, observe)


def _body(unique: str) -> str:
    return f"{_CODE}, pid={_PID}, name={_PROCESS}, Ch 00000010, intr 00000000. MMU Fault: {unique}"


def fields(sent: Injection, origin: str) -> dict[str, Any]:
    """What the event of an injected Xid must have."""
    expected = {"kind": "xid", "code": _CODE, "pci": sent.device, "pid": _PID, "process": _PROCESS}
    return expected | {"origin": origin}


def line_start(sent: Injection) -> str:
    """How the driver's line of an injected Xid starts."""
    return f"NVRM: Xid (PCI:{sent.device[:-2]}): {_CODE}, "
