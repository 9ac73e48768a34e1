"""Errors that programs of the stack write into their own logs, and errors of the driver's installation. Pure functions.

NVIDIA's fabric manager (`/var/log/fabricmanager.log`, journal): `[Jul 09 2024 18:14:07] [ERROR] [tid 12727] detected NVSwitch
non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61` (gpud, fabric-manager component); what
systemd says of its unit. The Neuron runtime (`TDRV:function (FATAL-RT-UNDEFINED-STATE) [ND 0][NC 0] message`; Neuron Runtime
troubleshooting guide 2.33.0). They are read in logs that a person names, never from the live kernel log. The driver's own lines are
kernel records: versions that differ (`NVRM: API mismatch`), a dma-buf that it refuses, unified memory that no process gets any more,
NVLinks whose state it cannot read (open-gpu-kernel-modules nv.c, nv-dmabuf.c, nv_gpu_ops.c, kernel_nvlink.c).
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional, Tuple, Union

from .neuron import NeuronError
from .pci import PCI

FABRIC_MANAGER, NEURON_RUNTIME, SYSTEMD = "fabric manager", "Neuron runtime", "systemd"
VERSION_MISMATCH, DMABUF, FABRIC_MANAGER_FAILED = "DRIVER_VERSION_MISMATCH", "DMABUF_TOPOLOGY", "FABRIC_MANAGER_FAILED"
UVM_FATAL, NVLINK_STATE = "UVM_FATAL_ERROR", "NVLINK_STATE_UNREADABLE"
_NVRM = r"(?:NVRM:\s*)+"
_LINE_FEED = r"(?:\\x0a|\s){1,20}(?:NVRM:\s{0,20}){0,3}"  # of searches: bounded, or a line of tags alone is read for each of them
_VERSION = r"\d{3}\.\d{1,3}(?:\.\d{1,3})?"
_MISMATCH = re.compile(_NVRM + r"API mismatch: the client\b")
_CLIENT = re.compile(r"the client(?: '(?P<process>[^'\n]{0,40})'(?: \(pid (?P<pid>\d{1,10})\))?)?")
_CLIENT_VERSION = re.compile(
    r"(?:client|NVRM:)(?: '[^']*'(?: \(pid \d+\))?)?(?:"
    + _LINE_FEED
    + r"|\s)has the version (?P<version>"
    + _VERSION
    + ")"
)
_MODULE_VERSION = re.compile(
    r"this kernel module has(?:" + _LINE_FEED + r"|\s)the version (?P<version>" + _VERSION + r")|"
    r"NVRM:\s{0,20}the version (?P<alone>" + _VERSION + r")\."
)  # fmt: skip
# Later lines of the record, where it was printed as several.
_MISMATCH_LATER = re.compile(
    _NVRM
    + r"(?:(?:but )?this kernel module has the version |has the version "
    + _VERSION
    + r", but this|the version "
    + _VERSION
    + r"\.|"
    r"make sure that this kernel module|kernel module and all NVIDIA driver|components have the same|have the same version)"
)
_DMABUF = re.compile(_NVRM + r"dma-buf attach failed: (?:PCI )?topology not supported\b")
_UVM_FATAL = re.compile(
    _NVRM + r"(?:nvGpuOpsReportFatalError: )?uvm encountered global fatal error(?: (?P<status>0x[0-9a-fA-F]{1,8}))?\b"
)
# knvlinkDiscoverPostRxDetLinks_GH100 and others, until the next boot (kernel_nvlink.c).
_NVLINK_STATE = re.compile(
    _NVRM
    + r"(?:GPU\d{1,3} )?knvlink(?:DiscoverPostRxDetLinks|UpdatePostRxDetectLinkMask)_\w{1,20}: (?:Getting peer(?P<peer>\d{1,3})(?:'s)? postRxDetLinkMask|"
    r"Failed to update Rx Detect Link mask)"
)

# `0:` in front of a message keeps it apart from the kernel's text: no record of the kernel begins so.
_TAG = {FABRIC_MANAGER: "nv-fabricmanager: ", NEURON_RUNTIME: "neuron-runtime: ", SYSTEMD: "systemd: "}
_SWITCH = re.compile(
    r"detected NVSwitch (?P<word>fatal|non-fatal) error (?P<code>\d{5})\b(?: on (?:fid|NodeId|node id) \d{1,4})?"
    r"(?: on NVSwitch (?:pci|PCI) bus id (?P<pci>"
    + PCI
    + r"))?(?: physical id (?P<physical>\d{1,4}))?(?: port (?P<port>\d{1,4}))?",
    re.ASCII,
)
# What the fabric manager says when it cannot work → the code. The first that fits. Bounded: each place is searched once.
_FABRIC_MANAGER = tuple(
    (code, re.compile(pattern))
    for code, pattern in (
        ("FABRIC_MANAGER_VERSION", r"driver interface version (?P<fabric_manager>[\d.]+?)\.? (?:don't|doesn't|does not|do not) match with"
                                   r" driver version (?P<driver>[\d.]+\d)"),
        ("FABRIC_MANAGER_NO_NVSWITCH", r"NV_WARN_NOTHING_TO_DO|(?:no|unable to find|failed to find)(?: any)? (?:supported )?NVSwitch(?:es)?\b|"
                                       r"query NVSwitch device information .{0,400}failed"),
        ("FABRIC_MANAGER_TOPOLOGY", r"don't match with any supported (?:system )?topology|(?:not|un)supported (?:system )?topology"),
        ("FABRIC_MANAGER_CONFIG", r"config(?:uration)? file item: \S+ has an invalid value|(?:unable|failed) to (?:open|read|parse) .{0,400}config"),
        (FABRIC_MANAGER_FAILED, r"nv-fabricmanager\b.{0,400}\bfailed! Exit code|aborting fabric manager|fabric manager .{0,400}\b(?:exiting|aborted)\b|"
                                r"(?:NVLink|NVSwitch|GPU).{0,400}(?:initiali[sz]ation|training|configur\w{1,20}) (?:has )?failed|"
                                r"failed to (?:initiali[sz]e|configure|train) .{0,400}(?:NVLink|NVSwitch|GPU|fabric)"),
    )
)  # fmt: skip
_UNIT = re.compile(
    r"systemd\[\d+\]: (?P<message>nvidia-fabricmanager\.service: (?:Failed with result|(?:Main|Control) process exited, code=(?:exited, "
    r"status=[1-9]|killed|dumped)|[Ss]tart operation timed out|Start request repeated too quickly)|"
    r"(?:nvidia-fabricmanager\.service: )?Failed to start (?:nvidia-fabricmanager\.service|NVIDIA fabric manager)).*"
)
_OF_FABRIC_MANAGER = re.compile(
    r"(?:^|[\s\]|:])(?:nv-fabricmanager|nvidia-fabricmanager(?:-start\.sh)?)(?:\[\d+\])?: (?P<message>.*)|"
    r"\[(?:ERROR|WARNING|CRITICAL|FATAL)\] \[tid \d+\]:? (?P<logged>.*)"
)
_BARE_FABRIC_MANAGER = re.compile(
    r"^(?:\S+ ){0,3}?(?P<message>(?:detected NVSwitch (?:non-)?fatal error \d{5}|fabric manager config file item).*)"
)
_OF_RUNTIME = re.compile(
    r"(?:\b(?:ERROR|FATAL|CRIT(?:ICAL)?)\s+(?P<module>[A-Z]{2,8}):(?P<function>\w+)\s+(?P<message>\S.*))|(?P<bare>\(FATAL-RT-UNDEFINED-STATE\).*)"
)
_RUNTIME = tuple(
    (code, re.compile(pattern))
    for code, pattern in (
        ("HBM_REPAIRABLE_UNCORRECTABLE_ERROR",
         r"[Uu]ncorrectable HBM memory error.*(?:reload the neuron driver|reboot)|NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE"),
        ("HBM_UNCORRECTABLE_ERROR", r"[Uu]ncorrectable HBM (?:memory )?error|NRT_EXEC_HW_ERR_HBM_UE"),
        ("SRAM_UNCORRECTABLE_ERROR", r"[Uu]ncorrectable SRAM (?:memory )?error"),
        ("NC_UNCORRECTABLE_ERROR", r"[Uu]ncorrectable memory error|NRT_EXEC_HW_ERR_NC_UE"),
        ("DMA_ERROR", r"DMA (?:TX |RX )?engine \d+ is in an abort state|NRT_EXEC_HW_ERR_DMA_ABORT"),
        ("HANG_ON_COLLECTIVES", r"hang in collectives|missing collectives status|NRT_EXEC_HW_ERR_COLLECTIVES"),
        ("HANG_ON_COMPUTE", r"(?:execution|inference) timeout"),
        ("RUNTIME_FATAL", r"^\(FATAL-RT-UNDEFINED-STATE\)"),
    )
)  # fmt: skip
_DEVICE = re.compile(
    r"\[(?:ND|MLA) (?P<device>\d{1,3})\]|\bNeuron Device (?P<named>\d{1,3})\b|\bnd(?P<short>\d{1,3})\b"
)
_CORE = re.compile(r"\bNC (?P<core>\d{1,3})\b")
# Other programs of the stack that write of failures into their own logs.
_OTHERS = re.compile(
    r"\b(?:nv-hostengine|nvidia-persistenced|nvidia-imex|nvlsm|nvidia-powerd|nvidia-gridd|dcgm-exporter|neuron-monitor)\b",
    re.ASCII,
)
# A return code of the runtime, as exceptions of frameworks quote it.
_RUNTIME_CODE = re.compile(r"\bNRT_EXEC_HW_ERR_\w{1,40}", re.ASCII)
_FAILS = re.compile(r"(?i)\b(?:error|fail(?:s|ed|ure)?|fatal|cannot|unable|aborted)\b|\b(?:ERR|CRIT)\b")


_MAY_HOLD = re.compile(
    rb"fabric|NVSwitch|\[tid |TDRV:|RT-UNDEFINED|NRT|NMGR:|nv-hostengine|nvidia-|nvlsm|dcgm|neuron-monitor"
).search


class StackError(NamedTuple):
    """An error of the installation or of a program, not of one GPU. `code`: a row of stack.csv. `part`: 2 a later line of a record."""

    code: str
    details: Dict[str, str]
    message: str
    part: int = 0


class ProgramSxid(NamedTuple):
    """An SXid as the fabric manager reports it. `word`: as the driver prints it. `pci`: "" where the line names none."""

    code: int
    word: str
    pci: str
    message: str


ProgramFact = Union[StackError, ProgramSxid, NeuronError]


def may_hold(raw: bytes) -> bool:
    """A fast test for lines of programs."""
    return _MAY_HOLD(raw) is not None


def find_program(text: str) -> Tuple[str, str]:
    """(the text with the program's tag, the program) of a line that reports an event; ("", "") for others."""
    match = _UNIT.search(text)
    if match:
        return _TAG[SYSTEMD] + match.group("message"), SYSTEMD
    match = _OF_FABRIC_MANAGER.search(text) or _BARE_FABRIC_MANAGER.match(text)
    if match:
        message = next(group for group in match.groups() if group)
        if _SWITCH.match(message) or any(pattern.search(message) for _, pattern in _FABRIC_MANAGER):
            return _TAG[FABRIC_MANAGER] + message, FABRIC_MANAGER
        return "", ""
    match = _OF_RUNTIME.search(text)
    if match:
        message = match.group("message") or match.group("bare")
        if any(pattern.search(message) for _, pattern in _RUNTIME):
            return _TAG[NEURON_RUNTIME] + message, NEURON_RUNTIME
    return "", ""


def reports_failure(text: str) -> bool:
    """Whether a program of the stack reports a failure that is no event."""
    match = _OF_FABRIC_MANAGER.search(text)
    if match:
        return match.group("logged") is not None or _FAILS.search(match.group("message")) is not None
    if _OF_RUNTIME.search(text) or _RUNTIME_CODE.search(text):
        return True
    return _OTHERS.search(text) is not None and _FAILS.search(text) is not None


def parse_program(text: str) -> Optional[ProgramFact]:
    """The fact of a tagged line of `find_program`; None for any other text."""
    if text.startswith(_TAG[FABRIC_MANAGER]):
        return _of_fabric_manager(text[len(_TAG[FABRIC_MANAGER]) :])
    if text.startswith(_TAG[SYSTEMD]):
        return StackError(FABRIC_MANAGER_FAILED, {}, text[len(_TAG[SYSTEMD]) :])
    if text.startswith(_TAG[NEURON_RUNTIME]):
        return _of_runtime(text[len(_TAG[NEURON_RUNTIME]) :])
    return None


def parse_installation(text: str) -> Optional[StackError]:
    """What the driver says of its installation, in a kernel record that begins with NVRM."""
    if _DMABUF.match(text):
        return StackError(DMABUF, {}, _body(text))
    match = _UVM_FATAL.match(text)
    if match:
        return StackError(UVM_FATAL, {key: value for key, value in match.groupdict().items() if value}, _body(text))
    match = _NVLINK_STATE.match(text)
    if match:
        return StackError(NVLINK_STATE, {key: value for key, value in match.groupdict().items() if value}, _body(text))
    is_first = _MISMATCH.match(text) is not None
    if not is_first and not _MISMATCH_LATER.match(text):
        return None
    details = {}  # type: Dict[str, str]
    client, module, who = _CLIENT_VERSION.search(text), _MODULE_VERSION.search(text), _CLIENT.search(text)
    if client:
        details["client"] = client.group("version")
    if module:
        details["module"] = module.group("version") or module.group("alone")
    if who and who.group("process"):
        details["process"] = who.group("process")
    return StackError(VERSION_MISMATCH, details, _body(text), 0 if is_first else 2)


def _of_fabric_manager(message: str) -> Optional[ProgramFact]:
    match = _SWITCH.match(message)
    if match:
        word = "Fatal" if match.group("word") == "fatal" else "Non-fatal"
        port = ", Link %s" % match.group("port") if match.group("port") else ""
        return ProgramSxid(
            int(match.group("code")), word, match.group("pci") or "", word + port + " (" + message.strip() + ")"
        )
    for code, pattern in _FABRIC_MANAGER:
        found = pattern.search(message)
        if found:
            return StackError(code, {key: value for key, value in found.groupdict().items() if value}, message.strip())
    return None


def _of_runtime(message: str) -> Optional[NeuronError]:
    for code, pattern in _RUNTIME:
        if pattern.search(message):
            device, core = _DEVICE.search(message), _CORE.search(message)
            number = next((group for group in device.groups() if group), "") if device else ""
            details = {"nc_id": core.group("core")} if core else {}
            return NeuronError(code, "neuron%d" % int(number) if number else "", details, "", message.strip())
    return None


def _body(text: str) -> str:
    return re.sub(r"^(?:NVRM:\s*)+", "", text).strip()
