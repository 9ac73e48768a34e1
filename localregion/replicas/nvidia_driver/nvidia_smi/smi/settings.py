"""Settings: persistence mode, application and locked clocks, power limit, MIG. It lasts until the next boot.

Answers and exit codes are those of the original, as its manual and public logs have them: what a board does not support
is a warning, and the exit code is 0 all the same.
"""

from __future__ import annotations

import os

from .driver import Failure

TYPE_CHECKING = False  # importing typing alone is a tenth of the start-up
if TYPE_CHECKING:
    from .driver import Gpu

_OPTIONS = {
    "-pm": "persistence", "--persistence-mode": "persistence",
    "-ac": "clocks", "--applications-clocks": "clocks",
    "-rac": "reset_clocks", "--reset-applications-clocks": "reset_clocks",
    "-lgc": "lock", "--lock-gpu-clocks": "lock",
    "-rgc": "unlock", "--reset-gpu-clocks": "unlock",
    "-pl": "power", "--power-limit": "power",
    "-mig": "mig", "--multi-instance-gpu": "mig",
    "-r": "reset", "--gpu-reset": "reset",
}  # fmt: skip
_WITHOUT_VALUE = ("reset_clocks", "unlock", "reset")
_WARNING = "Treating as warning and moving on.\n"
# GPUs that can be divided; A100 and A30 take the mode only by a reset.
_DIVISIBLE = ("8.0", "9.0", "10.0", "10.3")
_AFTER_RESET = ("8.0",)
SLICES = 7


def read_setting(words: list[str]) -> tuple[str, str, str | None, list[str]] | None:
    """(what, value, value of -i, other words) if the command line sets something; Failure 1 for a missing value."""
    chosen, value, target, others = "", "", None, []
    rest = list(words)
    while rest:
        word, equals, option_value = rest.pop(0).partition("=")
        if word in ("-i", "--id"):
            target = option_value if equals else (rest.pop(0) if rest else "")
        elif word in _OPTIONS:
            chosen = _OPTIONS[word]
            if chosen not in _WITHOUT_VALUE:
                if not equals and not rest:
                    raise Failure('Option "' + word + '" requires a value.\n', 1)
                value = option_value if equals else rest.pop(0)
        else:
            others.append(word)
    return (chosen, value, target, others) if chosen else None


def _folder(gpu: Gpu) -> str:
    return gpu.root + "/run/nvidia-smi"


def state(gpu: Gpu) -> dict[str, object]:
    """The settings of a GPU since the boot: persistence, clocks [memory, graphics], power (W), mig, instances …"""
    try:
        with open(_folder(gpu) + "/" + gpu.uuid, encoding="ascii") as file:
            text = file.read()
    except OSError:
        return {}
    import json  # only where something was set: it would be a fifth of every start-up

    settings: dict[str, object] = json.loads(text)
    return settings


def _keep(gpu: Gpu, settings: dict[str, object]) -> None:
    import json

    try:
        os.makedirs(_folder(gpu), exist_ok=True)
        path = _folder(gpu) + "/" + gpu.uuid
        with open(path + ".new", "w", encoding="ascii") as file:
            json.dump(settings, file)
        os.replace(path + ".new", path)
    except PermissionError:
        text = "Unable to change the setting for GPU " + gpu.bus_id + ": Insufficient Permissions\n"
        raise Failure(text, 4) from None


def persistence(gpu: Gpu) -> bool:
    """Whether the mode was set; else whether the persistence daemon runs with it."""
    mode = state(gpu).get("persistence")
    if mode is not None:
        return bool(mode)
    return os.path.exists(gpu.root + "/run/nvidia-persistenced/mode")


def power_limit(gpu: Gpu) -> float | None:
    """In watts; the board's own unless another was set."""
    watts = state(gpu).get("power")
    return watts if isinstance(watts, float) else gpu.number("power_limit_w")


def mig_enabled(gpu: Gpu) -> bool:
    return bool(state(gpu).get("mig"))


def divisible(gpu: Gpu) -> bool:
    return gpu.values.get("compute_capability") in _DIVISIBLE


def application_clocks(gpu: Gpu) -> tuple[int | None, int | None]:
    """Memory and graphics clocks in MHz; the board's highest unless others were set."""
    clocks = state(gpu).get("clocks")
    if isinstance(clocks, list):
        return clocks[0], clocks[1]
    return gpu.number("clock_memory_mhz"), gpu.number("clock_graphics_mhz")


def apply(what: str, value: str, gpus: list[Gpu]) -> str:
    """Changes a setting on each GPU; returns the output of the real nvidia-smi."""
    change = {
        "persistence": _set_persistence, "clocks": _set_clocks, "reset_clocks": _reset_clocks, "lock": _lock,
        "unlock": _unlock, "power": _set_power, "mig": _set_mig, "reset": _reset,
    }[what]  # fmt: skip
    return "".join(change(gpu, value) for gpu in gpus) + "All done.\n"


def _numbers(value: str, count: int) -> list[int]:
    parts = value.split(",")
    if len(parts) != count or not all(part.strip().isdigit() for part in parts):
        raise Failure('"' + value + '" is not a valid value.\n', 2)
    return [int(part) for part in parts]


def _switch(value: str) -> bool:
    known = {"0": False, "DISABLED": False, "1": True, "ENABLED": True}
    if value.upper() not in known:
        raise Failure('"' + value + '" is not a valid mode.\n', 2)
    return known[value.upper()]


def _set_persistence(gpu: Gpu, value: str) -> str:
    mode = _switch(value)
    _keep(gpu, {**state(gpu), "persistence": mode})
    return ("Enabled" if mode else "Disabled") + " persistence mode for GPU " + gpu.bus_id + ".\n"


def _set_clocks(gpu: Gpu, value: str) -> str:
    memory, graphics = _numbers(value, 2)
    named = '"(MEM %d, SM %d)"' % (memory, graphics)
    highest = (gpu.number("clock_memory_mhz") or 0, gpu.number("clock_graphics_mhz") or 0)
    if abs(memory - highest[0]) > 1 or graphics > highest[1] + 1:  # vendors round: 6250 is taken for 6251
        return (
            "Specified clock combination " + named + " is not supported for GPU " + gpu.bus_id + ". Run 'nvidia-smi "
            "-q -d SUPPORTED_CLOCKS' to see list of supported clock combinations\n" + _WARNING
        )
    _keep(gpu, {**state(gpu), "clocks": [highest[0], min(graphics, highest[1])]})
    return "Applications clocks set to " + named + " for GPU " + gpu.bus_id + "\n"


def _reset_clocks(gpu: Gpu, _value: str) -> str:
    _keep(gpu, {key: value for key, value in state(gpu).items() if key != "clocks"})
    return "Applications clocks reset for GPU " + gpu.bus_id + "\n"


def _lock(gpu: Gpu, value: str) -> str:
    low, high = _numbers(value if "," in value else value + "," + value, 2)
    _keep(gpu, {**state(gpu), "locked": [low, high]})
    return 'GPU clocks set to "(gpuClkMin %d, gpuClkMax %d)" for GPU %s\n' % (low, high, gpu.bus_id)


def _unlock(gpu: Gpu, _value: str) -> str:
    _keep(gpu, {key: value for key, value in state(gpu).items() if key != "locked"})
    return "GPU clocks reset for GPU " + gpu.bus_id + "\n"


def _set_power(gpu: Gpu, value: str) -> str:
    whole = gpu.number("power_limit_w")
    if whole is None:
        text = "Changing power management limit is not supported for GPU: " + gpu.bus_id + ".\n"
        return text + _WARNING
    try:
        watts = float(value)
    except ValueError:
        raise Failure('"' + value + '" is not a valid value.\n', 2) from None
    if not whole / 3 <= watts <= whole:
        text = "Provided power limit %.2f W is not a valid power limit which should be between %.2f W and %.2f W"
        raise Failure(text % (watts, whole / 3, whole) + " for GPU " + gpu.bus_id + "\n", 2)
    before = power_limit(gpu) or whole
    _keep(gpu, {**state(gpu), "power": watts})
    return "Power limit for GPU %s was set to %.2f W from %.2f W.\n" % (gpu.bus_id, watts, before)


def _set_mig(gpu: Gpu, value: str) -> str:
    mode = _switch(value)
    word = "Enabled" if mode else "Disabled"
    if not divisible(gpu):
        verb = "enable" if mode else "disable"
        return "Unable to " + verb + " MIG Mode for GPU " + gpu.bus_id + ": Not Supported\n" + _WARNING
    settings = {**state(gpu), "pending_mig": mode}
    if gpu.values.get("compute_capability") not in _AFTER_RESET:
        settings.update(mig=mode, instances=[])
    _keep(gpu, settings)
    if bool(settings.get("mig")) != mode:
        verb = "enable" if mode else "disable"
        return (
            "Warning: MIG mode is in pending " + verb + " state for GPU " + gpu.bus_id + ":In use by another client\n"
        )
    return word + " MIG Mode for GPU " + gpu.bus_id + "\n"


def _reset(gpu: Gpu, _value: str) -> str:
    mode = bool(state(gpu).get("pending_mig"))
    _keep(gpu, {"mig": mode, "pending_mig": mode, "instances": []})
    return "GPU " + gpu.bus_id + " was successfully reset.\n"


def mig(words: list[str], gpus: list[Gpu]) -> str:
    """`nvidia-smi mig …`: -lgi, -cgi PROFILES [-C], -dgi."""
    enabled = [gpu for gpu in gpus if state(gpu).get("mig")]
    if not enabled:
        raise Failure("No MIG-enabled devices found.", 6)
    if words[:1] in (["-lgi"], ["--list-gpu-instances"]):
        return _listed(enabled)
    if words[:1] in (["-dgi"], ["--destroy-gpu-instance"]):
        for gpu in enabled:
            _keep(gpu, {**state(gpu), "instances": []})
        return "".join("Successfully destroyed GPU instances from GPU  %d\n" % gpu.index for gpu in enabled)
    if words[:1] in (["-cgi"], ["--create-gpu-instance"]) and len(words) > 1:
        computes = any(word in ("-C", "--default-compute-instance") for word in words[2:])
        return "".join(_divide(gpu, words[1].split(","), computes) for gpu in enabled)
    raise Failure("Invalid combination of input arguments. Please run 'nvidia-smi mig -h' for help.\n", 1)


def instances(gpu: Gpu) -> list[str]:
    """Profiles of the GPU instances that hold a compute instance."""
    names = state(gpu).get("instances")
    return [str(name) for name in names] if isinstance(names, list) else []


def _listed(gpus: list[Gpu]) -> str:
    rows = ["GPU %d %s GPU instance ID %d\n" % (gpu.index, name, number + 1)
            for gpu in gpus for number, name in enumerate(instances(gpu))]  # fmt: skip
    if not rows:
        raise Failure("No GPU instances found: Not Found", 6)
    return "".join(rows)


def _divide(gpu: Gpu, profiles: list[str], computes: bool) -> str:
    names = [profile.strip() for profile in profiles]
    slices = [int(name.split("g.")[0]) if name.split("g.")[0].isdigit() else 0 for name in names]
    if 0 in slices:
        raise Failure("Unable to create a GPU instance: unknown profile in " + ",".join(profiles), 2)
    existing = instances(gpu)
    if sum(slices) + sum(int(name.split("g.")[0]) for name in existing) > SLICES:
        raise Failure("Failed to create GPU instances: Insufficient Resources", 19)
    _keep(gpu, {**state(gpu), "instances": existing + names})
    output = ""
    for number, name in enumerate(names, len(existing) + 1):
        text = "Successfully created GPU instance ID %2d on GPU %2d using profile MIG %s\n"
        output += text % (number, gpu.index, name)
        if computes:
            where = "Successfully created compute instance ID  0 on GPU %2d GPU instance ID %2d" % (gpu.index, number)
            output += where + " using profile MIG " + name + "\n"
    return output
