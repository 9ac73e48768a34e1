"""What the NVIDIA drivers print, as a grammar: one record's text in, one fact out. Pure; no input or output.

Xid lines: `NVRM: Xid (<device>): <code>[, [pid=<p>, [name=<comm>, ]]<message>]` with `<device>` = `[PCI:]dddd:bb:dd[.f]
[ GPU-I:nn[ GPU-CI:nn]]` (open-gpu-kernel-modules, kernel_rc.c; R304 to R610). SXid lines: `nvidia-nvswitch<i>: SXid
(PCI:dddd:bb:dd.f): <nnnnn>, <message>` (common_nvswitch.h). The text must *start* with it: anything else is a quotation.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Tuple, Union

_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"

_XID = re.compile(
    r"(?:NVRM:\s+)+Xid\s+\(\s*(?P<raw>(?:PCI:)?(?P<pci>" + _PCI + r"))"
    r"(?:\s+GPU-I:\s*(?P<gi>\d{1,4}))?(?:\s+GPU-CI:\s*(?P<ci>\d{1,4}))?\s*\)\s*:\s*"
    r"(?P<code>\d{1,10})(?![0-9A-Za-z_])\s*,?\s*(?P<rest>.*)",
    re.DOTALL | re.ASCII,
)
_SXID = re.compile(
    r"(?:nvidia-)?(?P<switch>nvswitch\d{1,4}):\s+SXid\s+\(\s*(?P<raw>(?:PCI:)?(?P<pci>" + _PCI + r"))\s*\)\s*:\s*"
    r"(?P<code>\d{1,10})(?![0-9A-Za-z_])\s*,?\s*(?P<rest>.*)",
    re.DOTALL | re.ASCII,
)
_FOLLOW_UP = re.compile(r"(?:Severity\s+\d+\s+Engine instance|Data\s*\{)")
_LOST = re.compile(r"(?:NVRM:\s+)+GPU\s+(?:at\s+)?(?P<raw>(?:PCI:)?(?P<pci>" + _PCI + r")):\s+GPU has fallen off the bus\b")
# One printk of three lines: /dev/kmsg shows its line feeds as \\x0a, dmesg and journalctl break the line.
_LOST_WHOLE = re.compile(
    r"(?:NVRM:\s+)+The NVIDIA GPU\s+(?P<raw>(?:PCI:)?(?P<pci>" + _PCI + r"))\s*(?:\\x0a|\n)\s*(?:NVRM:\s+)*\(PCI ID: "
    r"[0-9a-fA-F]{4}:[0-9a-fA-F]{4}\) installed in this system has\s*(?:\\x0a|\n)\s*(?:NVRM:\s+)*"
    r"fallen off the bus and is not responding to commands\b"
)
_LOST_FIRST = re.compile(r"(?:NVRM:\s+)+The NVIDIA GPU\s+(?P<raw>(?:PCI:)?(?P<pci>" + _PCI + r"))\s*$")
_LOST_MIDDLE = re.compile(r"(?:NVRM:\s+)+\(PCI ID: [0-9a-fA-F]{4}:[0-9a-fA-F]{4}\) installed in this system has\s*$")
_LOST_LAST = re.compile(r"(?:NVRM:\s+)+fallen off the bus and is not responding to commands\.?\s*$")
_UUID = re.compile(r"(?:NVRM:\s+)+GPU at (?P<raw>(?:PCI:)?(?P<pci>" + _PCI + r")):\s+(?P<uuid>GPU-[0-9a-fA-F-]{8,64})\s*$")
_BOARD_SERIAL = re.compile(r"(?:NVRM:\s+)+GPU Board Serial Number:\s*(?P<serial>[0-9A-Za-z]{1,40})\s*$")
_GPU_SERIAL = re.compile(
    r"(?:NVRM:\s+)+GPU (?P<raw>(?:PCI:)?(?P<pci>" + _PCI + r")):\s+GPU serial number is (?P<serial>[0-9A-Za-z]{1,40})\.?\s*$"
)
_DRIVER = re.compile(r"(?:NVRM:\s+)+loading NVIDIA UNIX\b.*?\s(?P<version>\d{3}\.\d{1,3}(?:\.\d{1,3})?)(?:\s|$)")
_RATE_LIMIT = re.compile(
    r"(?:NVRM:\s+)+Rate limiting GSP RPC error prints for GPU at (?P<raw>(?:PCI:)?(?P<pci>" + _PCI + r"))"
    r"(?: \(printing 1 of every (?P<every>\d{1,6})\))?"
)
_PID = re.compile(r"pid=(?P<pid>\d{1,10}|'?<unknown>'?|'\d{1,10}')\s*(?:,\s*|$)", re.ASCII)
_CAUSED_BY = re.compile(r" caused by previous Xid (?P<cause>\d{1,10})\s*$", re.ASCII)
# How the drivers' messages begin. A comm may hold ", " and is not escaped: of several places to cut, the one before
# a known beginning is the right one.
_BEGINNING = re.compile(
    r"Ch(?:annel)? |channel |Graphics |GPU |NVLink|Link |Row Remapper|Dynamic Page|DRAM |SRAM |An uncorrectable|High single|"
    r"Contained|Uncontained|Timeout |GSP |Error status|errorString|MMU Fault|Reset|RC watchdog|"
    r"FAULT_|ESR |Class Error|[A-Z_]+(?: +[A-Z_]+)? +(?:Fatal|Nonfatal) |[0-9a-f]{4,8}[ (]"
)
MESSAGE_LIMIT = 4096
_NAME_LIMIT = 256  # the driver prints at most some 100 characters of a process name


class Xid(NamedTuple):
    """One Xid line. `pid` and `process` are None where the driver printed none, or `<unknown>`."""

    code: int
    pci: str
    pci_raw: str
    mig_gi: Optional[int]
    mig_ci: Optional[int]
    pid: Optional[int]
    process: Optional[str]
    message: str
    caused_by: Optional[int]


class Sxid(NamedTuple):
    """One NVSwitch line; a follow-up repeats the head's code and only adds data to it."""

    code: int
    pci: str
    pci_raw: str
    switch: str
    message: str
    follow_up: bool


class Lost(NamedTuple):
    """A GPU that fell off the bus, said without an Xid. `part`: 0 whole, else 1, 2, 3 of the three-line form."""

    pci: str
    pci_raw: str
    message: str
    part: int


class Identity(NamedTuple):
    """What a banner line tells of a GPU; `pci` None: of the GPU named last."""

    pci: Optional[str]
    uuid: Optional[str]
    serial: Optional[str]


class Driver(NamedTuple):
    version: str


class RateLimit(NamedTuple):
    """The driver's notice that from now on it prints only one of `every` RPC time-outs (Xid 119) of this GPU."""

    pci: str
    every: int


class Broken(NamedTuple):
    """Begins like an Xid or SXid line and is none: cut off, or a format that nobody has seen."""

    text: str


Fact = Union[Xid, Sxid, Lost, Identity, Driver, RateLimit, Broken]


def normalise_pci(device: str) -> str:
    """`dddd:bb:dd.f` in lower case: 8-digit domains cut to 4 where that loses nothing, function 0 where none is given."""
    address, _, function = device.lower().partition(".")
    domain, bus, slot = address.split(":")
    return "%04x:%s:%s.%s" % (int(domain, 16), bus, slot, function or "0")


def split_process(text: str) -> Tuple[Optional[str], str]:
    """(process, message) of what follows `name=`: cut before a known beginning, else at the first `, ` with text after."""
    cuts = [match.start() for match in re.finditer(", ", text[:_NAME_LIMIT])]
    chosen = None
    for cut in cuts:
        message = text[cut + 2 :]
        if _BEGINNING.match(message):
            chosen = cut
            break
        if chosen is None and message.strip():
            chosen = cut
    name, message = (text.rstrip().rstrip(","), "") if chosen is None else (text[:chosen], text[chosen + 2 :])
    name = name.strip()
    return (None if name in ("", "<unknown>", "'<unknown>'") else name), message


def _split_rest(rest: str) -> Tuple[Optional[int], Optional[str], str]:
    found = _PID.match(rest)
    if found is None:
        return None, None, rest
    digits = found.group("pid").strip("'")
    pid = int(digits) if digits.isdigit() else None
    rest = rest[found.end() :]
    if not rest.startswith("name="):
        return pid, None, rest
    process, message = split_process(rest[len("name=") :])
    return pid, process, message


def _xid(found: "re.Match[str]") -> Xid:
    pid, process, message = _split_rest(found.group("rest"))
    message = message.strip()
    caused = _CAUSED_BY.search(" " + message)
    gi, ci = found.group("gi"), found.group("ci")
    return Xid(
        code=int(found.group("code")),
        pci=normalise_pci(found.group("pci")),
        pci_raw=found.group("raw"),
        mig_gi=int(gi) if gi else None,
        mig_ci=int(ci) if ci else None,
        pid=pid,
        process=process,
        message=message,
        caused_by=int(caused.group("cause")) if caused else None,
    )


def _sxid(found: "re.Match[str]") -> Sxid:
    message = found.group("rest").strip()
    return Sxid(
        code=int(found.group("code")),
        pci=normalise_pci(found.group("pci")),
        pci_raw=found.group("raw"),
        switch=found.group("switch"),
        message=message,
        follow_up=_FOLLOW_UP.match(message) is not None,
    )


def parse(text: str) -> Optional[Fact]:
    """The fact that this record's text states, or None: most lines, and every quotation."""
    if text.startswith("NVRM:"):
        return _parse_nvrm(text)
    found = _SXID.match(text)
    if found:
        return _sxid(found)
    return Broken(text[:200]) if re.match(r"(?:nvidia-)?nvswitch\d+:\s+SXid \(", text) else None


def _parse_nvrm(text: str) -> Optional[Fact]:
    found = _XID.match(text)
    if found:
        return _xid(found)
    if re.match(r"(?:NVRM:\s+)+Xid\b", text):
        return Broken(text[:200])
    return _parse_loss(text) or _parse_banner(text)


def _parse_loss(text: str) -> Optional[Fact]:
    for part, pattern, message in (
        (0, _LOST, "GPU has fallen off the bus."),
        (0, _LOST_WHOLE, "fallen off the bus and is not responding to commands."),
        (1, _LOST_FIRST, ""),
    ):
        found = pattern.match(text)
        if found:
            return Lost(normalise_pci(found.group("pci")), found.group("raw"), message, part)
    if _LOST_MIDDLE.match(text):
        return Lost("", "", "", 2)
    if _LOST_LAST.match(text):
        return Lost("", "", "fallen off the bus and is not responding to commands.", 3)
    return None


def _parse_banner(text: str) -> Optional[Fact]:
    found = _UUID.match(text)
    if found:
        return Identity(normalise_pci(found.group("pci")), found.group("uuid"), None)
    found = _GPU_SERIAL.match(text)
    if found:
        return Identity(normalise_pci(found.group("pci")), None, found.group("serial"))
    found = _BOARD_SERIAL.match(text)
    if found:
        return Identity(None, None, found.group("serial"))
    found = _RATE_LIMIT.match(text)
    if found:
        return RateLimit(normalise_pci(found.group("pci")), int(found.group("every") or 30))
    found = _DRIVER.match(text)
    return Driver(found.group("version")) if found else None
