"""Causes a fault of its own process on one GPU. Sent to the host under test and run by its python3, 3.6 or newer.

    python3 -c PROGRAM 0000:00:1e.0 [work]

Uses only libcuda.so.1 (CUDA's driver API, no toolkit): a kernel stores into memory of this process, then to page zero,
which no unprivileged process can map, on the CPU or on a GPU that shares its page table. The GPU's MMU refuses that,
the driver ends this process's channels and prints an Xid. With `work` only the first store is made.
Prints one JSON line: pid, name, pci, the calls with their CUresult, outcome (faulted, worked, no libcuda, refused,
not refused) and message. Exit 0: faulted, or with `work` worked.
"""

import ctypes
import json
import os
import sys
import time

NAME = "gpu-ami-provoke"  # 15 characters, the longest process name in the kernel
ILLEGAL_ADDRESS = 700  # CUDA_ERROR_ILLEGAL_ADDRESS
_PAGE_ZERO = 16
_VALUE = 0x5A5A1234
_LOG_BYTES = 4096
_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BUFFER_BYTES = 5, 6
# PTX of an old version for an old target, so that the driver can compile it for any GPU.
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
    """A call of the driver API failed."""

    def __init__(self, call: str, error: int, message: str) -> None:
        super().__init__(message)
        self.call, self.error = call, error


class Driver:
    """libcuda; records every call with its CUresult."""

    def __init__(self, library: object) -> None:
        self.library = library
        self.steps = []  # type: list  # type: ignore[type-arg]

    def call(self, name: str, *arguments: object, what: str = "") -> None:
        """Raises Refused with the name of the error unless the result is CUDA_SUCCESS."""
        function = getattr(self.library, name, None)
        if function is None:
            raise Refused(name, -1, "libcuda.so.1 has no " + name)
        error = int(function(*arguments))
        self.steps.append({"call": name, "what": what, "error": error})
        if error:
            message = name + (" (" + what + ")" if what else "") + " returned " + str(error) + " " + self._name(error)
            raise Refused(name, error, message.strip())

    def _name(self, error: int) -> str:
        text = ctypes.c_char_p()
        known = self.library.cuGetErrorName(error, ctypes.byref(text)) == 0  # type: ignore[attr-defined]
        return (text.value or b"").decode() if known else ""


def load_kernel(driver: Driver, pci: str) -> ctypes.c_void_p:
    """Creates a context on the GPU and loads the kernel into it."""
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
        errors = log.value.decode(errors="replace").strip()
        raise Refused(refused.call, refused.error, str(refused) + (": " + errors if errors else "")) from None
    driver.call("cuModuleGetFunction", ctypes.byref(kernel), module, ctypes.c_char_p(b"store"))
    return kernel


def store(driver: Driver, kernel: ctypes.c_void_p, address: int, what: str) -> None:
    """Stores the value at an address with one GPU thread, and waits for it."""
    where, value, single = ctypes.c_uint64(address), ctypes.c_uint32(_VALUE), ctypes.c_uint(1)
    parameters = (ctypes.c_void_p * 2)(ctypes.addressof(where), ctypes.addressof(value))
    none = ctypes.c_void_p(None)
    size = (single, single, single, single, single, single, ctypes.c_uint(0))
    driver.call("cuLaunchKernel", kernel, *size, none, parameters, none, what=what)
    driver.call("cuCtxSynchronize", what=what)


def work(driver: Driver, kernel: ctypes.c_void_p) -> None:
    """Stores into its own memory and reads it back, to show that the GPU is usable."""
    memory, back = ctypes.c_uint64(), ctypes.c_uint32()
    driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4))
    store(driver, kernel, memory.value, "its own memory")
    driver.call("cuMemcpyDtoH_v2", ctypes.byref(back), memory, ctypes.c_size_t(4))
    if back.value != _VALUE:
        raise Refused("cuMemcpyDtoH_v2", 0, "GPU memory: expected " + hex(_VALUE) + ", got " + hex(back.value))


def provoke(driver: Driver, pci: str, only_work: bool, result: dict) -> None:  # type: ignore[type-arg]
    """Causes the fault; sets outcome, message and stored in `result`."""
    kernel = load_kernel(driver, pci)
    work(driver, kernel)
    if only_work:
        result["outcome"] = "worked"
        return
    result["stored"] = time.time()
    try:
        store(driver, kernel, _PAGE_ZERO, "page zero")
    except Refused as refused:
        if refused.error != ILLEGAL_ADDRESS or refused.call != "cuCtxSynchronize":
            raise
        result["outcome"], result["message"] = "faulted", str(refused)
        return
    result["outcome"], result["message"] = (
        "not refused",
        "the store to page zero was not refused: cuCtxSynchronize returned 0",
    )


def main(words: list, load: object = ctypes.CDLL, out: object = sys.stdout) -> int:  # type: ignore[type-arg]
    """`load` and `out` can be replaced by tests."""
    pci, only_work = words[0], words[1:] == ["work"]
    result = {"pid": os.getpid(), "name": take_name(), "pci": pci, "uid": os.geteuid(), "outcome": "refused"}
    result["message"] = ""
    driver = None
    try:
        driver = Driver(load("libcuda.so.1"))  # type: ignore[operator]
        provoke(driver, pci, only_work, result)
    except OSError as error:
        result["outcome"], result["message"] = "no libcuda", str(error)
    except Refused as refused:
        result["message"] = str(refused)
    result["calls"] = driver.steps if driver else []
    out.write(json.dumps(result) + "\n")  # type: ignore[attr-defined]
    return 0 if result["outcome"] == ("worked" if only_work else "faulted") else 1


def take_name() -> str:
    """Sets an unmistakable process name: the driver prints the name that a process has when it opens the GPU."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(NAME)
    except OSError:
        pass
    with open("/proc/self/comm") as file:
        return file.read().strip()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
