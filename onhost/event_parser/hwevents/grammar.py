"""What the NVIDIA drivers print: the text of one kernel record in, one fact out. Pure functions. Neuron: neuron.py.

Xid: `NVRM: Xid (<device>): <code>[, [pid=<pid>, ][name=<process>, ]<message>]` with `<device>` = `[PCI:]dddd:bb:dd[.f]
[ GPU-I:nn[ GPU-CI:nn]]` (open-gpu-kernel-modules, kernel_rc.c; R304 to R615; before R304 `bbbb:dd` or no device).
SXid: `nvidia-nvswitch<n>: SXid (PCI:dddd:bb:dd.f): <nnnnn>, <message>` (common_nvswitch.h).
The text must *start* with it; anything else quotes it.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Tuple, Union

from . import cuts
from .initialisation import InitFailure, parse_initialisation
from .neuron import NeuronError, parse_neuron
from .pci import PCI, normalise_pci
from .pcie import PcieFact, parse_pcie
from .programs import ProgramSxid, StackError, parse_installation, parse_program

# Before R304 the driver printed bus and device only, as `0001:00`.
_OLD_PCI = r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}"
_CODE = r"(?P<code>\d{1,10})(?![0-9A-Za-z_])\s*,?\s*(?P<rest>.*)"

_XID = re.compile(
    r"(?:NVRM:\s*)+Xid\s*\(\s*(?P<raw>(?:PCI:)?(?P<pci>" + PCI + r"|" + _OLD_PCI + r"))"
    r"(?:\s+GPU-I:\s*(?P<gi>\d{1,4}))?(?:\s+GPU-CI:\s*(?P<ci>\d{1,4}))?\s*\)\s*:\s*" + _CODE,
    re.DOTALL | re.ASCII,
)
# An address that whoever pasted the line took out: `PCI:...`, `PCI:xxxx:xx:xx`, `<bdf>`.
_XID_HIDDEN = re.compile(
    r"(?:NVRM:\s*)+Xid\s*\(\s*(?P<raw>(?:PCI:)?(?:\.{2,4}|\u2026|[Xx?*]{1,8}(?::[Xx?*]{1,4}){0,2}(?:\.[0-7Xx?*])?|<[\w :.-]{1,30}>|"
    r"\[[\w :.-]{1,30}\]|[A-Z_]{3,20}))\s*\)\s*:\s*" + _CODE,
    re.DOTALL | re.ASCII,
)
_XID_WITHOUT_DEVICE = re.compile(r"(?:NVRM:\s*)+Xid:\s+(?P<code>\d{1,10}),\s*(?P<rest>\S.*)", re.DOTALL | re.ASCII)
_SXID = re.compile(
    r"(?:nvidia-)?(?P<switch>nvswitch\d{1,4}):\s*SXid\s*\(\s*(?P<raw>(?:PCI:)?(?P<pci>"
    + PCI
    + r"))\s*\)\s*:\s*"
    + _CODE,
    re.DOTALL | re.ASCII,
)
# error_nvswitch.c prints these after the first line of an event; ctrl_dev_nvswitch.h: severity 0 non-fatal, 1 fatal.
_FOLLOW_UP = re.compile(r"(?:Severity\s+(?P<severity>\d+)\s+Engine instance|Data\s*\{)")
_FOLLOW_UP_WORDS = {"0": "Non-fatal", "1": "Fatal"}
_SXID_WORD = re.compile(r"(?P<word>Fatal|Non-fatal|Correctable)\b")
_LOST = re.compile(
    r"(?:NVRM:\s*)+GPU\s+(?:at\s+)?(?P<raw>(?:PCI:)?(?P<pci>" + PCI + r")):?\s+(?:GPU\s+)?has fallen off the bus\b"
)
# One printk of three lines: /dev/kmsg shows its line feeds as \\x0a, dmesg and journalctl break the line.
_LINE_FEED = r"(?:\\x0a|\s)+(?:NVRM:\s*)*"
_LOST_WHOLE = re.compile(
    r"(?:NVRM:\s*)+The NVIDIA GPU\s+(?P<raw>(?:PCI:)?(?P<pci>" + PCI + r"))" + _LINE_FEED + r"\(PCI ID: "
    r"[0-9a-fA-F]{4}:[0-9a-fA-F]{4}\) installed in this system has"
    + _LINE_FEED
    + r"fallen off the bus and is not responding to commands\b"
)
_LOST_FIRST = re.compile(r"(?:NVRM:\s*)+The NVIDIA GPU\s+(?P<raw>(?:PCI:)?(?P<pci>" + PCI + r"))\s*$")
_LOST_MIDDLE = re.compile(r"(?:NVRM:\s*)+\(PCI ID: [0-9a-fA-F]{4}:[0-9a-fA-F]{4}\) installed in this system has\s*$")
_LOST_LAST = re.compile(r"(?:NVRM:\s*)+fallen off the bus and is not responding to commands\.?\s*$")
_UUID = re.compile(
    r"(?:NVRM:\s*)+GPU at (?P<raw>(?:PCI:)?(?P<pci>" + PCI + r")):\s+(?P<uuid>GPU-[0-9a-fA-F-]{8,64})\s*$"
)
_BOARD_SERIAL = re.compile(r"(?:NVRM:\s*)+GPU Board Serial Number:\s*(?P<serial>[0-9A-Za-z]{1,40})\s*$")
_GPU_SERIAL = re.compile(
    r"(?:NVRM:\s*)+GPU (?P<raw>(?:PCI:)?(?P<pci>"
    + PCI
    + r")):\s+GPU serial number is (?P<serial>[0-9A-Za-z]{1,40})\.?\s*$"
)
_DRIVER = re.compile(r"(?:NVRM:\s*)+loading NVIDIA UNIX\b.*?\s(?P<version>\d{3}\.\d{1,3}(?:\.\d{1,3})?)(?:\s|$)")
_RATE_LIMIT = re.compile(
    r"(?:NVRM:\s*)+Rate limiting GSP RPC error prints for GPU at (?P<raw>(?:PCI:)?(?P<pci>" + PCI + r"))"
    r"(?: \(printing 1 of every (?P<every>\d{1,6})\))?"
)
_PID = re.compile(r"pid=(?P<pid>\d{1,10}|'?<[^<>,]{1,40}>'?|'[^',]{0,40}'|(?=,))\s*(?:,\s*|$)", re.ASCII)
_NO_NAME = ("", "<unknown>", "'<unknown>'")
_CAUSED_BY = re.compile(r" caused by previous Xid (?P<cause>\d{1,10})\s*$", re.ASCII)
# How the drivers' messages begin. A process name may hold ", " and is not escaped: where several places to cut exist,
# the one before a known beginning is right.
_BEGINNING = re.compile(
    r"Ch(?:annel)? |channel |Graphics |GPU |NVLink|Link |Row Remapper|Dynamic Page|DRAM |SRAM |An uncorrectable|High single|"
    r"Contained|Uncontained|Timeout |GSP |Error status|errorString|MMU Fault|Reset|RC watchdog|Class Error|Illegal Class|"
    r"FAULT_|ESR |[A-Z][A-Z0-9_/]+(?: +[A-Z_]+| degraded)? +(?:Fatal|Nonfatal) |[0-9a-f]{4,8}[ (]"
)
# The kernel puts the name of a process at the begin of some records, and a process may call itself `NVRM: Xid: 79,a`
# (prctl(2), PR_SET_NAME: 15 bytes; the rest is the kernel's): `%s[%d]: segfault at …` (arch/x86/mm/fault.c), `%s[%d]: unhandled
# exception` (arch/arm64), `%s/%d: potentially unexpected fatal signal` (kernel/signal.c), `%s invoked oom-killer` (mm/oom_kill.c),
# `%s: page allocation failure` (mm/page_alloc.c), `%s (%d) used greatest stack depth` (kernel/exit.c), `%s (%d): drop_caches`.
_FORGED = ("NVRM:", "NEURON_HW_ERR=")
_OF_A_PROCESS = re.compile(
    r"(?:\\x[0-9a-f]{2}|.){5,15}?(?:\[\d{1,10}\][:\s]|\s?\(\d{1,10}\)[:\s]|/\d{1,10}: |\sinvoked oom-killer: |"
    r": page allocation (?:failure|stalls)|: attempt to access beyond end)",
    re.DOTALL | re.ASCII,
)
_FEEDS = re.compile(r"(?:\\x0a)+$")  # some of the driver's messages end in a line feed of their own
MESSAGE_LIMIT = 4096
_NAME_LIMIT = 256  # the driver prints at most some 100 characters of a process name


class Xid(NamedTuple):
    """One Xid line. `pid` and `process` are None where the driver printed none, or `<unknown>`. `pci`: "" before R304."""

    code: int
    pci: str
    pci_raw: str
    mig_gi: Optional[int]
    mig_ci: Optional[int]
    pid: Optional[int]
    process: Optional[str]
    message: str
    caused_by: Optional[int]
    cut: str = ""  # what the line lacks, where it was cut


class Sxid(NamedTuple):
    """One NVSwitch line. A follow-up line repeats the code of the first line and adds data. `word`: Fatal, Non-fatal or ""."""

    code: int
    pci: str
    pci_raw: str
    switch: str
    message: str
    follow_up: bool
    word: str
    cut: str = ""


class Lost(NamedTuple):
    """A GPU that fell off the bus, reported without an Xid. `part`: 0 complete, else 1, 2 or 3 of the three-line form."""

    pci: str
    pci_raw: str
    message: str
    part: int


class Identity(NamedTuple):
    """UUID or serial number of a GPU; `pci` None: of the GPU named last."""

    pci: Optional[str]
    uuid: Optional[str]
    serial: Optional[str]


class Driver(NamedTuple):
    version: str


class RateLimit(NamedTuple):
    """The driver's notice that from now on it prints only one of `every` RPC timeouts (Xid 119) of this GPU."""

    pci: str
    every: int


class Broken(NamedTuple):
    """Starts like an Xid or SXid line but is not one: truncated, or an unknown format. `cut`: where, "" for the latter."""

    text: str
    cut: str = ""


Fact = Union[Xid, Sxid, Lost, Identity, Driver, RateLimit, Broken, NeuronError, InitFailure, PcieFact, StackError]


def split_process(text: str) -> Tuple[Optional[str], str]:
    """(process, message) of what follows `name=`: cut before a known beginning, else at the first `, ` with text after it."""
    chosen = None
    for cut in re.finditer(", ", text[:_NAME_LIMIT]):
        message = text[cut.end() :]
        if _BEGINNING.match(message):
            chosen = cut
            break
        if chosen is None and message.strip():
            chosen = cut
    if chosen is None:
        name, message = text.rstrip().rstrip(","), ""
    else:
        name, message = text[: chosen.start()], text[chosen.end() :]
    name = name.strip()
    return (None if name in _NO_NAME else name), message


def _split_rest(rest: str) -> Tuple[Optional[int], Optional[str], str]:
    """(pid, process, message) of what follows the code; either of the first two may be missing."""
    pid = None
    match = _PID.match(rest)
    if match:
        digits = match.group("pid").strip("'")
        pid = int(digits) if digits.isdigit() and len(digits) <= 10 else None
        rest = rest[match.end() :]
    if not rest.startswith("name="):
        return pid, None, rest
    process, message = split_process(rest[len("name=") :])
    return pid, process, message


def _xid(match: "re.Match[str]", paged: bool) -> Union[Xid, Broken]:
    fields = match.groupdict()
    if paged and cuts.ends_in_number(match):
        return Broken(match.string[:200], cuts.NUMBER)
    pid, process, message = _split_rest(fields["rest"])
    message = _FEEDS.sub("", message.strip())
    cause = _CAUSED_BY.search(" " + message)
    gi, ci = fields.get("gi"), fields.get("ci")
    return Xid(
        code=int(fields["code"]),
        pci=normalise_pci(fields["pci"]) if fields.get("pci") else "",
        pci_raw=fields.get("raw") or "",
        mig_gi=int(gi) if gi else None,
        mig_ci=int(ci) if ci else None,
        pid=pid,
        process=process,
        message=message,
        caused_by=int(cause.group("cause")) if cause else None,
        cut=cuts.missing_of_xid(match, message, paged),
    )


def _sxid(match: "re.Match[str]", paged: bool) -> Union[Sxid, Broken]:
    if len(match.group("code")) < cuts.SXID_DIGITS and cuts.ends_in_number(match):
        return Broken(match.string[:200], cuts.NUMBER)
    message = match.group("rest").strip()
    follow_up, word = _FOLLOW_UP.match(message), _SXID_WORD.match(message)
    return Sxid(
        code=int(match.group("code")),
        pci=normalise_pci(match.group("pci")),
        pci_raw=match.group("raw"),
        switch=match.group("switch"),
        message=message,
        follow_up=follow_up is not None or cuts.is_cut_follow_up(message),
        word=word.group("word")
        if word
        else _FOLLOW_UP_WORDS.get(follow_up.group("severity") or "", "")
        if follow_up
        else "",
        cut=cuts.missing_of_sxid(message, paged),
    )


def is_of_driver(text: str) -> bool:
    """Whether the driver printed this record with its tag: it begins with it, and it is not the name of a process."""
    return text.startswith("NVRM:") and _OF_A_PROCESS.match(text) is None


def parse(text: str) -> Optional[Fact]:
    """The fact that this record states; None for most lines, for every quotation and for names of processes."""
    if text.startswith(_FORGED) and _OF_A_PROCESS.match(text):
        return None
    if text.startswith("NVRM:"):
        return _parse_nvrm(text.replace("#012", "\\x0a") if "#012" in text else text)  # so rsyslog writes a line feed
    if "SXid" in text or text.startswith(("nvswitch", "nvidia-nvswitch")):
        return _parse_switch(text)
    program = parse_program(text)
    if isinstance(program, ProgramSxid):
        pci = normalise_pci(program.pci) if program.pci else ""
        return Sxid(program.code, pci, program.pci, "", program.message, False, program.word)
    return program or parse_neuron(text) or parse_initialisation(text) or parse_pcie(text)


def _parse_switch(text: str) -> Optional[Fact]:
    whole, paged = cuts.without_mark(text)
    match = _SXID.match(whole)
    if match:
        return _sxid(match, paged)
    if re.match(r"(?:nvidia-)?nvswitch\d+:\s*SXid\b", whole):
        return Broken(text[:200], cuts.place(whole))
    return None


def _parse_nvrm(text: str) -> Optional[Fact]:
    whole, paged = cuts.without_mark(text)
    match = _XID.match(whole) or _XID_WITHOUT_DEVICE.match(whole)
    if match:
        return _xid(match, paged)
    if re.match(r"(?:NVRM:\s*)+Xid\b", whole):
        return Broken(text[:200], cuts.place(whole))
    return _parse_loss(text) or parse_initialisation(text) or parse_installation(text) or _parse_banner(text)


def parse_hidden(text: str) -> Optional[Xid]:
    """An Xid whose address was taken out, in a line that somebody pasted; never one of the kernel."""
    match = _XID_HIDDEN.match(text)
    fact = _xid(match, False) if match else None
    return fact._replace(cut=fact.cut or "the address") if isinstance(fact, Xid) else None


def _parse_loss(text: str) -> Optional[Fact]:
    for part, pattern, message in (
        (0, _LOST, "GPU has fallen off the bus."),
        (0, _LOST_WHOLE, "fallen off the bus and is not responding to commands."),
        (1, _LOST_FIRST, ""),
    ):
        match = pattern.match(text)
        if match:
            return Lost(normalise_pci(match.group("pci")), match.group("raw"), message, part)
    if _LOST_MIDDLE.match(text):
        return Lost("", "", "", 2)
    if _LOST_LAST.match(text):
        return Lost("", "", "fallen off the bus and is not responding to commands.", 3)
    return None


def _parse_banner(text: str) -> Optional[Fact]:
    match = _UUID.match(text)
    if match:
        return Identity(normalise_pci(match.group("pci")), match.group("uuid"), None)
    match = _GPU_SERIAL.match(text)
    if match:
        return Identity(normalise_pci(match.group("pci")), None, match.group("serial"))
    match = _BOARD_SERIAL.match(text)
    if match:
        return Identity(None, None, match.group("serial"))
    match = _RATE_LIMIT.match(text)
    if match:
        return RateLimit(normalise_pci(match.group("pci")), int(match.group("every") or 30))
    match = _DRIVER.match(text)
    return Driver(match.group("version")) if match else None
