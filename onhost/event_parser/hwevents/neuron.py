"""What Neuron's driver and runtime write into the kernel log: the text of one record in, one fact out. Pure functions.

The runtime writes a line for each hardware error through the driver (aws-neuron-driver 2.24.7.0, neuron_cdev.c, ncdev_printk):
`NEURON_HW_ERR=<error> instance-id=<id> hostname=<name> nd-id=<device> nc-id=<core> serial-num=<hex> action=<action>` (Neuron
Runtime troubleshooting guide; error names: rules of the Neuron node problem detector). A time may stand before it: those rules
expect text there. The driver's own lines begin with `neuron:<function>: ` (neuron_dma.c, neuron_reset.c).
The text must *start* with it; anything else quotes it.
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional

_TIME = r"(?:\[?\d{4}[-/]\w{2,3}[-/]\d\d[T ]\d\d:\d\d:\d\d[\d.,:+-]*Z?\]?\s+)?"
_HARDWARE = re.compile(_TIME + r"NEURON_HW_ERR=(?P<code>[A-Z][A-Z0-9_]{0,63})(?P<rest>\s.*)?$", re.DOTALL | re.ASCII)
_MEMBER = re.compile(r"(?<!\S)(?P<name>nd-id|nc-id|serial-num|action|instance-id)=(?P<value>[\w-]{1,64})(?!\S)", re.ASCII)
_DMA = re.compile(
    r"neuron:\w+: DMA completion timeout (?:on nd(?P<device>\d{1,3}) )?for (?P<engine>\S{1,40}) q(?P<queue>\d{1,4})\b", re.ASCII
)
_RESET = re.compile(
    r"neuron:nr_reset_thread_fn: nd(?P<device>\d{1,3}): reset request \d+ "
    r"(?P<how>was initiated, but failed to complete|failed)\s*$",
    re.ASCII,
)


class NeuronError(NamedTuple):
    """One line. `code`: the error's name. `device`: "neuron0", "" where the line names none. `asked`: the runtime's action."""

    code: str
    device: str
    details: Dict[str, str]
    asked: str
    message: str


def may_hold(raw: bytes) -> bool:
    """A fast test whether a record can hold an event of Neuron."""
    return b"NEURON_HW_ERR=" in raw or (b"neuron:" in raw and (b"timeout" in raw or b"failed" in raw))


def parse_neuron(text: str) -> Optional[NeuronError]:
    """The error that this record states; None for most lines and for every quotation."""
    match = _HARDWARE.match(text)
    if match:
        members = {found.group("name"): found.group("value") for found in _MEMBER.finditer(match.group("rest") or "")}
        number = members.pop("nd-id", "")
        asked = members.pop("action", "")
        details = {name.replace("-", "_"): value for name, value in members.items()}
        return NeuronError(match.group("code"), _device(number), details, asked, text[match.start("code") - 14 :].strip())
    match = _DMA.match(text)
    if match:
        details = {"engine": match.group("engine"), "queue": match.group("queue")}
        return NeuronError("DMA_COMPLETION_TIMEOUT", _device(match.group("device")), details, "", text.strip())
    match = _RESET.match(text)
    if match:
        code = "RESET_FAILED" if match.group("how") == "failed" else "RESET_INCOMPLETE"
        return NeuronError(code, _device(match.group("device")), {}, "", text.strip())
    return None


def _device(number: Optional[str]) -> str:
    return "neuron%d" % int(number) if number and number.isdigit() and len(number) < 4 else ""
