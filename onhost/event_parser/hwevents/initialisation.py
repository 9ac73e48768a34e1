"""A GPU that cannot be initialised: the lines of the driver and of the PCI core. The text of one record in, one fact out.

`NVRM: GPU <device>: RmInitAdapter failed! (<stage>:<status>:<line>)`, then `rm_init_adapter failed, device minor number <n>`
(open-gpu-kernel-modules, osinit.c and nv.c; older drivers print no device); `nvidia: probe of <device> failed with error <n>`
(Linux, drivers/base/dd.c; from 6.7 on `nvidia <device>: probe with driver nvidia failed with error <n>`), and before it
`BAR1 is 0M @ 0x0 (PCI:<device>)` of a GPU whose memory nobody mapped (nv-pci.c); GSP firmware that does not boot
(kernel_gsp.c and its callers, named by an index and not by an address); GPUs that the driver does not support: the other module, another branch, GRID's for a part of a GPU (osapi.c); GPUs that another driver holds (nv-pci.c).
No Xid follows. Public reports: open-gpu-kernel-modules#789, #829, #1058, #1151, #1230, gpu-operator#649, #1146.
"""

from __future__ import annotations

import re
from typing import Any, Dict, NamedTuple, Optional

from .pci import PCI, normalise_pci

RM_INIT, GSP_BOOT, PROBE = "RM_INIT_FAILED", "GSP_BOOT_FAILED", "PROBE_FAILED"
LOST, UNSUPPORTED, BOUND = "ALREADY_LOST", "NOT_SUPPORTED_BY_DRIVER", "BOUND_TO_ANOTHER_DRIVER"
_NVRM = r"(?:NVRM:\s*)+"
_DEVICE = r"(?:GPU[ -]\s*(?:at\s+)?(?P<raw>(?:PCI:)?(?P<pci>" + PCI + r")):?\s+)?(?:GPU\d{1,3}:?\s+)?"
_ADAPTER = re.compile(
    _NVRM
    + _DEVICE
    + r"RmInitAdapter failed!(?:\s*\((?P<status>(?P<stage>0x[0-9a-fA-F]{1,8}):0x[0-9a-fA-F]{1,8}:(?:0x)?\d{1,6})\))?"
)
_MINOR = re.compile(
    _NVRM + _DEVICE + r"rm_init_adapter(?:\((?P<older>\d{1,4})\))? failed\b(?:.*?\bminor number (?P<minor>\d{1,4}))?"
)
_ALREADY_LOST = re.compile(
    _NVRM + r"GPU\s+(?:at\s+)?(?P<raw>(?:PCI:)?(?P<pci>" + PCI + r")):?\s+(?:GPU\s+)?is already lost\b"
)
# vfio-pci and pci-stub keep a GPU for a virtual machine: somebody wanted that.
_BOUND = re.compile(
    _NVRM
    + r"GPU\s+(?P<raw>(?:PCI:)?(?P<pci>"
    + PCI
    + r"))\s+is already bound to (?!vfio|pci-stub)(?P<driver>[\w-]{1,40})"
)
_PROBE = re.compile(
    r"nvidia(?:: probe of (?P<pci>"
    + PCI
    + r")| (?P<newer>"
    + PCI
    + r"): probe with driver nvidia) failed with error (?P<error>-?\d{1,5})"
)
# One printk of two lines (nv-pci.c, nv_pci_validate_bars); the probe fails. `dmesg | grep NVRM` has not the PCI core's line that follows.
_BAR = re.compile(
    _NVRM + r"(?:This PCI I/O region assigned to your NVIDIA device is invalid:(?:\\x0a|\s){1,40}(?:NVRM:\s{0,4})?)?"
    r"BAR(?P<bar>\d{1,2}) is (?P<size>\d{1,12}M @ 0x[0-9a-fA-F]{1,16}) \((?P<raw>(?:PCI:)?(?P<pci>" + PCI + r"))\)"
)
# Each is printed once an attempt; the driver says by index which GPU it is. RmInitAdapter's own line follows at once.
_GSP = re.compile(
    _NVRM
    + r"(?:GPU(?P<index>\d{1,3}):?\s+)?(?:RmInitAdapter: Cannot initialize GSP firmware RM|_kgspBootGspRm: unexpected WPR2 already up|"
    r"kgspInitRm_IMPL: cannot bootstrap riscv/gsp|kgspBootstrap\w*: (?:.*\b(?:failed|timed out|timeout)|GSP.* halted)|"
    r"(?:kgspWaitForGfwBootOk|gpuWaitForGfwBootComplete)\w*: failed to wait for GFW|"
    r"k(?:fsp|sec2)\w*: .*(?:secure boot|[Bb]oot).*(?:timed out|failed))"
)
# One printk of several lines: /dev/kmsg shows its line feeds as \\x0a, dmesg and journalctl break the line where it does.
_UNFIT = r"(?:is not supported by|requires? use of (?:the )?NVIDIA open)"
_UNFIT_WHOLE = re.compile(
    _NVRM
    + r"The NVIDIA v?GPU\s+(?P<raw>(?:PCI:)?(?P<pci>"
    + PCI
    + r"))(?:\\x0a|\s)(?:NVRM:|\\x0a|[^\\]){1,120}?"
    + _UNFIT
)
_UNFIT_FIRST = re.compile(
    _NVRM
    + r"The NVIDIA v?GPU\s+(?P<raw>(?:PCI:)?(?P<pci>"
    + PCI
    + r"))\s+\(PCI ID: [0-9a-fA-F]{4}:[0-9a-fA-F]{4}\)(?:\s+installed)?\s*$"
)
_NEEDS_OPEN = re.compile(
    r"requires? use of (?:the )?NVIDIA open|not supported by the (?:NVIDIA )?(?:proprietary|closed)"
)
_NEEDS_PROPRIETARY = re.compile(r"not supported by (?:the )?(?:NVIDIA )?open\b")
_UNFIT_LAST = re.compile(_NVRM + r"(?:installed\s+)?in this (?:vGPU host )?system " + _UNFIT)
# The driver names the model, and no address; it goes on to the next GPU.
_LEGACY = re.compile(
    _NVRM + r"(?:The NVIDIA [^\\\n]{1,80} GPU installed in this system is(?:\\x0a|\s){1,4}(?:NVRM:\s{0,4})?)?"
    r"supported through the NVIDIA (?P<branch>[\dx.-]{1,12}) Legacy drivers"
)
_STAGES = {"1": "system", "2": "gpu", "3": "vbios", "4": "resource manager", "6": "firmware"}


class InitFailure(NamedTuple):
    """`code`: a row of gpu_init.csv. `pci`: "" where the line names none. `part`: 1 first line of several, 2 a later one.

    `action`: where the line says more than the code; of a first line, what holds for the later ones.
    """

    code: str
    pci: str
    pci_raw: str
    details: Dict[str, Any]
    message: str
    part: int = 0
    action: str = ""


def may_hold(raw: bytes) -> bool:
    """A fast test for the lines without NVRM."""
    return b" failed with error " in raw and b"nvidia" in raw


def parse_initialisation(text: str) -> Optional[InitFailure]:
    """The failure that this record states; None for most lines and for every quotation."""
    if text.startswith("nvidia"):
        return _of_pci_core(text)
    if not text.startswith("NVRM:"):
        return None
    match = _ADAPTER.match(text)
    if match:
        return _adapter(match, text)
    match = _MINOR.match(text)
    if match:
        minor = match.group("minor") or match.group("older")
        return _fact(RM_INIT, match, text, {"minor": int(minor)} if minor else {})
    match = _ALREADY_LOST.match(text)
    if match:
        return _fact(LOST, match, text, {})
    match = _BOUND.match(text)
    if match:
        return _fact(BOUND, match, text, {"driver": match.group("driver")})
    match = _BAR.match(text)
    if match:
        return _fact(PROBE, match, text, {"bar": int(match.group("bar")), "region": match.group("size")})
    match = _GSP.match(text)
    if match:
        index = match.group("index")
        return InitFailure(GSP_BOOT, "", "", {"gpu_index": int(index)} if index else {}, _body(text))
    return _unfit(text)


def _adapter(match: "re.Match[str]", text: str) -> InitFailure:
    """osinit.c: the first number is the stage; those from 0x60 on are the firmware's."""
    details = {}  # type: Dict[str, Any]
    if match.group("status"):
        details["status"] = match.group("status")
        stage = match.group("stage")[2:]
        details["stage"] = _STAGES.get(stage[0], "unknown") if len(stage) == 2 else "unknown"
    return _fact(GSP_BOOT if details.get("stage") == "firmware" else RM_INIT, match, text, details)


def _of_pci_core(text: str) -> Optional[InitFailure]:
    match = _PROBE.match(text)
    if match is None:
        return None
    device = match.group("pci") or match.group("newer")
    return InitFailure(PROBE, normalise_pci(device), device, {"error": int(match.group("error"))}, text.strip())


def _unfit(text: str) -> Optional[InitFailure]:
    match = _UNFIT_WHOLE.match(text)
    if match:
        return _fact(UNSUPPORTED, match, text, {})._replace(action=_module_needed(text))
    match = _UNFIT_FIRST.match(text)
    if match:
        return _fact(UNSUPPORTED, match, text, {})._replace(
            part=1, action="USE_GRID_DRIVER" if "NVIDIA vGPU" in text else ""
        )
    match = _LEGACY.match(text)
    if match:
        return InitFailure(UNSUPPORTED, "", "", match.groupdict(), _body(text), action="USE_NAMED_BRANCH")
    if _UNFIT_LAST.match(text):
        return InitFailure(UNSUPPORTED, "", "", {}, _body(text), 2, _module_needed(text))
    return None


def _module_needed(text: str) -> str:
    """Which kernel module the GPU needs; "" where another version is needed."""
    if "The NVIDIA vGPU" in text:
        return "USE_GRID_DRIVER"
    if _NEEDS_OPEN.search(text):
        return "USE_OPEN_MODULE"
    return "USE_PROPRIETARY_MODULE" if _NEEDS_PROPRIETARY.search(text) else ""


def _fact(code: str, match: "re.Match[str]", text: str, details: Dict[str, Any]) -> InitFailure:
    pci, raw = match.groupdict().get("pci"), match.groupdict().get("raw")
    return InitFailure(code, normalise_pci(pci) if pci else "", raw or "", details, _body(text))


def _body(text: str) -> str:
    """Without the driver's tag."""
    return re.sub(r"^(?:NVRM:\s*)+", "", text).strip()
