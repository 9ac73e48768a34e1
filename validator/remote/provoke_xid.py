"""Makes one process of its own fault on one GPU. Sent to the host under test, run there by its python3, 3.6 or newer.

    python3 -c PROGRAM 0000:00:1e.0 [work]

Through libcuda.so.1 alone (CUDA's driver API, no toolkit): a kernel stores into memory that this process owns, then to
page zero, where no process without privilege has anything, on the CPU or on a GPU that shares its page table. The GPU's
MMU refuses that, the driver ends this process's channels and prints an Xid. With `work` only the first store is made.
Prints one JSON line: pid, name, pci, the calls with their CUresult, outcome (faulted, worked, no libcuda, refused,
not refused) and message. Exit 0: faulted, or with `work` worked.
"""

import ctypes
import json
import os
import sys
import time

NAME = "gpu-ami-provoke"  # 15 characters: all that a kernel keeps of a process's name
ILLEGAL_ADDRESS = 700  # CUDA_ERROR_ILLEGAL_ADDRESS
_PAGE_ZERO = 16
_VALUE = 0x5A5A1234
_LOG_BYTES = 4096
_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BUFFER_BYTES = 5, 6
# PTX of an old version for an old target: the driver compiles it for whatever GPU is there.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64

.visible .entry store(.param .u64 where, .param .u32 what)
{
    .reg .u64 %where;
    .reg .u32 %what;
    ld.param.u64 %where, [where];
    ld.param.u32 %what, [what];
    st.global.u32 [%where], %what;
    ret;
}
"""


class Refused(Exception):
    """A call to the driver ended with something else than success."""

    def __init__(self, call: str, error: int, message: str) -> None:
        super().__init__(message)
        self.call, self.error = call, error


class Driver:
    """libcuda, every call kept with its CUresult."""

    def __init__(self, library: object) -> None:
        self.library = library
        self.steps = []  # type: list  # type: ignore[type-arg]

    def call(self, name: str, *arguments: object, what: str = "") -> None:
        """Raises Refused with the error's name where the driver does not say CUDA_SUCCESS."""
        function = getattr(self.library, name, None)
        if function is None:
            raise Refused(name, -1, "libcuda.so.1 has no " + name)
        error = int(function(*arguments))
        self.steps.append({"call": name, "what": what, "error": error})
        if error:
            told = name + (" (" + what + ")" if what else "") + " ended with " + str(error) + " " + self._name(error)
            raise Refused(name, error, told.strip())

    def _name(self, error: int) -> str:
        text = ctypes.c_char_p()
        known = self.library.cuGetErrorName(error, ctypes.byref(text)) == 0  # type: ignore[attr-defined]
        return (text.value or b"").decode() if known else ""


def load_kernel(driver: Driver, pci: str) -> ctypes.c_void_p:
    """A context on that GPU, and in it the kernel."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuInit", ctypes.c_uint(0))
    driver.call("cuDeviceGetByPCIBusId", ctypes.byref(device), ctypes.c_char_p(pci.encode()))
    driver.call("cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(0), device)
    log = ctypes.create_string_buffer(_LOG_BYTES)
    options = (ctypes.c_int * 2)(_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BUFFER_BYTES)
    values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
    try:
        text = ctypes.c_char_p(PTX)
        driver.call("cuModuleLoadDataEx", ctypes.byref(module), text, ctypes.c_uint(2), options, values)
    except Refused as refused:
        said = log.value.decode(errors="replace").strip()
        raise Refused(refused.call, refused.error, str(refused) + (": " + said if said else "")) from None
    driver.call("cuModuleGetFunction", ctypes.byref(kernel), module, ctypes.c_char_p(b"store"))
    return kernel


def store(driver: Driver, kernel: ctypes.c_void_p, address: int, what: str) -> None:
    """One thread stores the value at an address of the GPU; returns when it has."""
    where, value, one = ctypes.c_uint64(address), ctypes.c_uint32(_VALUE), ctypes.c_uint(1)
    parameters = (ctypes.c_void_p * 2)(ctypes.addressof(where), ctypes.addressof(value))
    none = ctypes.c_void_p(None)
    size = (one, one, one, one, one, one, ctypes.c_uint(0))
    driver.call("cuLaunchKernel", kernel, *size, none, parameters, none, what=what)
    driver.call("cuCtxSynchronize", what=what)


def work(driver: Driver, kernel: ctypes.c_void_p) -> None:
    """Stores into memory of its own, and reads it back: this GPU takes work."""
    memory, back = ctypes.c_uint64(), ctypes.c_uint32()
    driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4))
    store(driver, kernel, memory.value, "its own memory")
    driver.call("cuMemcpyDtoH_v2", ctypes.byref(back), memory, ctypes.c_size_t(4))
    if back.value != _VALUE:
        told = "the GPU was to store " + hex(_VALUE) + ", its memory holds " + hex(back.value)
        raise Refused("cuMemcpyDtoH_v2", 0, told)


def provoke(driver: Driver, pci: str, only_work: bool, said: dict) -> None:  # type: ignore[type-arg]
    """Fills in outcome and message."""
    kernel = load_kernel(driver, pci)
    work(driver, kernel)
    if only_work:
        said["outcome"] = "worked"
        return
    said["stored"] = time.time()
    try:
        store(driver, kernel, _PAGE_ZERO, "page zero")
    except Refused as refused:
        if refused.error != ILLEGAL_ADDRESS or refused.call != "cuCtxSynchronize":
            raise
        said["outcome"], said["message"] = "faulted", str(refused)
        return
    said["outcome"], said["message"] = "not refused", "the store to page zero was not refused: cuCtxSynchronize gave 0"


def main(words: list, load: object = ctypes.CDLL, out: object = sys.stdout) -> int:  # type: ignore[type-arg]
    """`load` and `out` are there for tests."""
    pci, only_work = words[0], words[1:] == ["work"]
    said = {"pid": os.getpid(), "name": _take_name(), "pci": pci, "uid": os.geteuid(), "outcome": "refused"}
    said["message"] = ""
    driver = None
    try:
        driver = Driver(load("libcuda.so.1"))  # type: ignore[operator]
        provoke(driver, pci, only_work, said)
    except OSError as error:
        said["outcome"], said["message"] = "no libcuda", str(error)
    except Refused as refused:
        said["message"] = str(refused)
    said["calls"] = driver.steps if driver else []
    out.write(json.dumps(said) + "\n")  # type: ignore[attr-defined]
    return 0 if said["outcome"] == ("worked" if only_work else "faulted") else 1


def _take_name() -> str:
    """The driver prints the name that the process has when it opens the GPU; this one cannot be taken for another."""
    try:
        with open("/proc/self/comm", "w") as file:  # noqa: PTH123
            file.write(NAME)
    except OSError:
        pass
    with open("/proc/self/comm") as file:  # noqa: PTH123
        return file.read().strip()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
