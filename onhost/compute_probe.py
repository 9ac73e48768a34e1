"""Computes on every GPU of this machine and checks every result. Python 3.6 or newer and the driver's libcuda.so.1.

    compute_probe.py [--mib 256] [--seconds 100] [--mig UUID,UUID]

On each GPU: a kernel, which the driver compiles from PTX, on --mib MiB (at most an eighth of the free memory); two
patterns on a share of the memory; copies from and to the host. Then copies between each two GPUs, in both directions.
All results are compared on the host. CUDA shows one MIG device to a process, so those of --mig are computed on one
after another. A process of user nobody does the work; if it does not end within --seconds it is killed, and the
machine's line names its last step ("unfinished").

Prints JSON, a line each: first the machine ("kind": "machine"), then each GPU or MIG device ("kind": "gpu") with its
pairs. Exit 0: all that was tried is right; 1: it is not; 2: wrong arguments. SIGTERM kills the working process, and the
driver frees what it had.
"""

import argparse
import array
import contextlib
import ctypes
import functools
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

Record = Dict[str, Any]
SCHEMA = "gpu-ami/compute/1"
MIB = 1 << 20
_NOBODY = 65534
_STAGING = 32 * MIB  # page-locked host memory of a GPU's copies
_PAIR = 64 * MIB  # a copy between two GPUs
_SHARE, _MOST = 50, 1024 * MIB  # patterns: a fiftieth of the memory, at most this
_PERIOD = 4096  # words: the input repeats after so many, and each repetition's results differ by its number
_BLOCK, _STEP = 256, 0x9E3779B1
_ROUNDS = 2
_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BUFFER_BYTES = 5, 6
_LOG_BYTES = 4096

# What an error means on EC2. Names: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html (2026-11-25).
# Causes: 802 gpu-operator#2781 and the fabric manager guide; 999 NVIDIA/pyxis#81, NVIDIA/enroot#106; 46 CUDA's guide,
# "Compute Modes".
_IN_USE = "another process holds the GPU, or its compute mode lets none in: nvidia-smi -q -d COMPUTE,PIDS"
_XID = "the GPU ended this process's work: look for an Xid in the kernel log (gpu-ami-diagnose)"
_MACHINE = {"kind": "machine", "schema": SCHEMA, "error": None, "unfinished": None, "count": 0, "replica": ""}  # type: Record
ERRORS = {
    1: ("CUDA_ERROR_INVALID_VALUE", "the driver does not take an argument of this program"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "other processes use the memory: nvidia-smi --query-compute-apps=pid,used_memory"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", _IN_USE),
    46: ("CUDA_ERROR_DEVICE_UNAVAILABLE", _IN_USE),
    100: (
        "CUDA_ERROR_NO_DEVICE",
        "no GPU that this driver can use: no board, no loaded module, or a node /dev/nvidia* is missing or closed to "
        "this user",
    ),
    101: ("CUDA_ERROR_INVALID_DEVICE", "the GPU went away: look for Xid 79 in the kernel log"),
    209: ("CUDA_ERROR_NO_BINARY_FOR_GPU", "the driver cannot compile for this GPU: it is older than the GPU"),
    214: ("CUDA_ERROR_ECC_UNCORRECTABLE", "an uncorrectable error of the GPU's memory: stop and start the instance"),
    218: ("CUDA_ERROR_INVALID_PTX", "the driver does not compile this program's kernel"),
    220: ("CUDA_ERROR_NVLINK_UNCORRECTABLE", "an uncorrectable error of NVLink: stop and start the instance"),
    221: ("CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "libnvidia-ptxjitcompiler.so.1, a part of the driver, is not installed"),
    222: ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the driver is older than any that is supported here (R384)"),
    304: ("CUDA_ERROR_OPERATING_SYSTEM", "a call of the operating system failed: a limit, or a missing device node"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", _XID),
    702: ("CUDA_ERROR_LAUNCH_TIMEOUT", _XID),
    714: ("CUDA_ERROR_HARDWARE_STACK_ERROR", _XID),
    715: ("CUDA_ERROR_ILLEGAL_INSTRUCTION", _XID),
    719: ("CUDA_ERROR_LAUNCH_FAILED", _XID),
    800: ("CUDA_ERROR_NOT_PERMITTED", "the driver refuses this to the user: module parameters or devices"),
    801: ("CUDA_ERROR_NOT_SUPPORTED", "the driver or the GPU does not support this"),
    802: (
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "the NVLink fabric is not ready: nvidia-fabricmanager does not run or has another version than the driver, or "
        "the fabric's state is not Completed (nvidia-smi -q)",
    ),
    803: ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "the loaded module and libcuda have different versions: reboot"),
    804: ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "libcuda is cuda-compat's, and this GPU or driver refuses it"),
    805: ("CUDA_ERROR_MPS_CONNECTION_FAILED", "the MPS control daemon does not answer: CUDA_MPS_PIPE_DIRECTORY"),
    999: ("CUDA_ERROR_UNKNOWN", "nvidia-uvm is not loaded, or /dev/nvidia-uvm is missing or closed to this user"),
}  # fmt: skip


def _rounds() -> str:
    """Integer, single and double arithmetic on %r6. Explicit rounding: mul and add are then not joined to one fma."""
    one = """
    mul.lo.u32 %r6, %r6, 0x9E3779B1;
    shr.u32 %r7, %r6, 15;
    xor.b32 %r6, %r6, %r7;
    and.b32 %r8, %r6, 0xFFFFFF;
    cvt.rn.f32.u32 %f1, %r8;
    mul.rn.f32 %f2, %f1, 0f3F9D70A4;
    add.rn.f32 %f3, %f2, 0f40490FDB;
    mov.b32 %r9, %f3;
    cvt.rn.f64.u32 %d1, %r6;
    mul.rn.f64 %d2, %d1, 0d3FF3C0CA428C59FB;
    add.rn.f64 %d3, %d2, 0d400921FB54442D18;
    mov.b64 %a6, %d3;
    cvt.u32.u64 %r10, %a6;
    xor.b32 %r6, %r9, %r10;"""
    return one * _ROUNDS


# ISA 6.0 (R384) and sm_30 (Kepler): not newer than any driver and GPU of the facts. NVIDIA's assembler takes it,
# releases 12.4 (sm_50 to sm_90) and 13.5 (sm_75 to sm_120), 2026-11-25.
PTX = (
    """
.version 6.0
.target sm_30
.address_size 64

.visible .entry mix(.param .u64 input, .param .u64 output, .param .u32 seed)
{
    .reg .u32 %r<16>;
    .reg .f32 %f<4>;
    .reg .f64 %d<4>;
    .reg .u64 %a<8>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %a1, %r4, 4;
    ld.param.u64 %a2, [input];
    ld.param.u64 %a3, [output];
    ld.param.u32 %r5, [seed];
    add.u64 %a4, %a2, %a1;
    add.u64 %a5, %a3, %a1;
    ld.global.u32 %r6, [%a4];
    xor.b32 %r6, %r6, %r5;"""
    + _rounds()
    + """
    shr.u32 %r11, %r4, 12;
    mul.lo.u32 %r12, %r11, 0x9E3779B1;
    xor.b32 %r6, %r6, %r12;
    st.global.u32 [%a5], %r6;
    ret;
}
"""
)
_F32 = struct.unpack("<ff", struct.pack("<II", 0x3F9D70A4, 0x40490FDB))
_F64 = struct.unpack("<dd", struct.pack("<QQ", 0x3FF3C0CA428C59FB, 0x400921FB54442D18))


def _single(values: List[float]) -> List[float]:
    """Rounded to single. Double holds a product exactly, and a sum well enough to be rounded twice."""
    return array.array("f", values).tolist()


def results(words: List[int], seed: int) -> List[int]:
    """What the kernel makes of the first `_PERIOD` words, by Python's own arithmetic."""
    values = [word ^ seed for word in words]
    for _ in range(_ROUNDS):
        values = [value * _STEP & 0xFFFFFFFF for value in values]
        values = [value ^ value >> 15 for value in values]
        single = _single([float(value & 0xFFFFFF) * _F32[0] for value in values])
        low = memoryview(array.array("f", [value + _F32[1] for value in single]).tobytes()).cast("I").tolist()
        double = array.array("d", [float(value) * _F64[0] + _F64[1] for value in values])
        high = memoryview(double.tobytes()).cast("I").tolist()[0 if sys.byteorder == "little" else 1 :: 2]
        values = [one ^ other for one, other in zip(low, high)]
    return values


class Expected:
    """The kernel's results: those of the first period, with the number of each further one mixed in."""

    def __init__(self) -> None:
        self.seed = struct.unpack("<I", os.urandom(4))[0]
        self.input = os.urandom(4 * _PERIOD)
        base = results(list(struct.unpack("<%dI" % _PERIOD, self.input)), self.seed)
        self._base = int.from_bytes(struct.pack("<%dI" % _PERIOD, *base), "little")
        self._ones = int.from_bytes(struct.pack("<I", 1) * _PERIOD, "little")

    def part(self, start: int, size: int) -> bytes:
        """Bytes of the results from `start` on; both are multiples of a period."""
        first, count = start // (4 * _PERIOD), size // (4 * _PERIOD)
        return b"".join(self._period(number) for number in range(first, first + count))

    def _period(self, number: int) -> bytes:
        mixed = self._base ^ (self._ones * (number * _STEP & 0xFFFFFFFF))
        return mixed.to_bytes(4 * _PERIOD, "little")


class CudaError(Exception):
    """A call of the driver API failed; what: the part of the work."""

    def __init__(self, call: str, number: int, what: str, log: str = "", name: str = "") -> None:
        known, meaning = ERRORS.get(number, (name or "error %d" % number, "see cuda.h of the driver's CUDA release"))
        super().__init__("%s: %s returned %d %s: %s" % (what, call, number, known, log or meaning))
        self.record = {"call": call, "number": number, "name": known, "meaning": meaning, "what": what, "log": log}


class Cuda:
    """libcuda's functions; `what` names the part of the work in errors, and for the one who waits."""

    def __init__(self, library: Any, tell: Any) -> None:
        self.library, self._tell, self.what = library, tell, "start"

    def step(self, what: str) -> None:
        self.what = what
        self._tell({"kind": "step", "what": what})

    def __call__(self, name: str, *arguments: Any) -> None:
        number = self.error(name, *arguments)
        if number:
            raise CudaError(name, number, self.what, name=self._name(number))

    def error(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*arguments))

    def _name(self, number: int) -> str:
        text = ctypes.c_char_p()
        failed = self.library.cuGetErrorName(number, ctypes.byref(text))
        return "" if failed else (text.value or b"").decode()

    def number(self, name: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        self(name, ctypes.byref(value), *arguments)
        return value.value


class Gpu:
    """One GPU or MIG device with its context, and the buffers of the kernel."""

    def __init__(self, cuda: Cuda, index: int, most: int) -> None:
        self.cuda, self.index, self.most = cuda, index, most
        self.device = cuda.number("cuDeviceGet", index)
        self.record = {"kind": "gpu", "index": index, "error": None, "peers": []}  # type: Record
        self.context = ctypes.c_void_p()
        self.input = self.output = self.size = 0
        self.ready = False

    def describe(self) -> None:
        """Name, UUID (of a MIG device, its own, and the GPU's), address, compute capability, memory."""
        name, uuid, parent = ctypes.create_string_buffer(96), (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
        memory = ctypes.c_size_t()
        self.cuda("cuDeviceGetName", name, 96, self.device)
        self.cuda("cuDeviceGetUuid", parent, self.device)
        newer = hasattr(self.cuda.library, "cuDeviceGetUuid_v2")  # from CUDA 11.4 on
        own = "cuDeviceGetUuid_v2" if newer else "cuDeviceGetUuid"
        self.cuda(own, uuid, self.device)
        self.cuda("cuDeviceTotalMem_v2", ctypes.byref(memory), self.device)
        bus, slot, domain, major, minor = (self._attribute(number) for number in (33, 34, 50, 75, 76))
        self.record.update(
            name=name.value.decode(errors="replace"), uuid=_uuid(parent),
            mig="" if bytes(uuid) == bytes(parent) else _uuid(uuid), pci="%04x:%02x:%02x.0" % (domain, bus, slot),
            capability="%d.%d" % (major, minor), memory_mib=memory.value // MIB,
        )  # fmt: skip

    def _attribute(self, number: int) -> int:
        return self.cuda.number("cuDeviceGetAttribute", number, self.device)

    def open(self) -> None:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda("cuCtxCreate_v2", ctypes.byref(self.context), 0, self.device)
        self.cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        self.record["free_mib"] = free.value // MIB
        self.size = _whole(min(self.most, free.value // 8))
        self.input, self.output = self.allocate(self.size), self.allocate(self.size)
        self.staging = ctypes.c_void_p()
        self.room = min(_STAGING, self.size)
        self.cuda("cuMemAllocHost_v2", ctypes.byref(self.staging), ctypes.c_size_t(self.room))
        self.view = memoryview((ctypes.c_ubyte * self.room).from_address(self.staging.value or 0)).cast("B")

    def use(self) -> None:
        self.cuda("cuCtxSetCurrent", self.context)

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.cuda("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def compute(self, expected: Expected) -> None:
        """Copies the input, runs the kernel on all of it, compares every result."""
        self.cuda.step("GPU %d: copy to the GPU" % self.index)
        self.view[:] = expected.input * (self.room // len(expected.input))
        self.record["h2d_gbps"] = self._timed_copies("cuMemcpyHtoD_v2", self.input)
        self.cuda.step("GPU %d: compile the kernel" % self.index)
        kernel = self._kernel()
        self.cuda.step("GPU %d: run the kernel" % self.index)
        self.cuda("cuMemsetD32_v2", ctypes.c_uint64(self.output), 0, ctypes.c_size_t(self.size // 4))
        self.cuda("cuCtxSynchronize")
        started = time.perf_counter()
        self._launch(kernel, expected.seed)
        self.cuda("cuCtxSynchronize")
        self.record["kernel_s"] = round(time.perf_counter() - started, 6)
        self.cuda.step("GPU %d: copy the results" % self.index)
        self.record["d2h_gbps"] = self._timed_copies("cuMemcpyDtoH_v2", self.output)
        self.record["computed_mib"] = self.size // MIB
        self.record["wrong"] = self.compare(self.output, self.size, expected.part)

    def _timed_copies(self, call: str, address: int) -> float:
        """Copies the whole buffer by way of the staging memory; GB/s of the fastest copy."""
        host, best = ctypes.c_void_p(self.staging.value), float("inf")
        for start in range(0, self.size, self.room):
            device, size = ctypes.c_uint64(address + start), min(self.room, self.size - start)
            started = time.perf_counter()
            self.cuda(call, *((device, host) if call == "cuMemcpyHtoD_v2" else (host, device)), ctypes.c_size_t(size))
            best = min(best, (time.perf_counter() - started) / size)
        return round(1e-9 / best, 3)

    def _kernel(self) -> ctypes.c_void_p:
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BUFFER_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        text = ctypes.c_char_p(PTX.encode())
        error = self.cuda.error("cuModuleLoadDataEx", ctypes.byref(module), text, 2, options, values)
        if error:
            raise CudaError("cuModuleLoadDataEx", error, self.cuda.what, log.value.decode(errors="replace").strip())
        self.cuda("cuModuleGetFunction", ctypes.byref(kernel), module, ctypes.c_char_p(b"mix"))
        return kernel

    def _launch(self, kernel: ctypes.c_void_p, seed: int) -> None:
        arguments = (ctypes.c_uint64(self.input), ctypes.c_uint64(self.output), ctypes.c_uint32(seed))
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(one) for one in arguments))
        blocks = self.size // 4 // _BLOCK
        self.cuda("cuLaunchKernel", kernel, blocks, 1, 1, _BLOCK, 1, 1, 0, None, pointers, None)

    def compare(self, address: int, size: int, part: Any) -> Optional[Record]:
        """The first word that is not as expected; None if all are. part: (start, size) gives the expected bytes."""
        host = ctypes.c_void_p(self.staging.value)
        for start in range(0, size, self.room):
            count = min(self.room, size - start)
            self.cuda("cuMemcpyDtoH_v2", host, ctypes.c_uint64(address + start), ctypes.c_size_t(count))
            for place in range(0, count, MIB):
                got = bytes(self.view[place : min(place + MIB, count)])
                wanted = part(start + place, len(got))
                if got != wanted:
                    return _first(start + place, got, wanted)
        return None

    def patterns(self) -> None:
        """Stores two patterns in a share of the memory, with each part's number in them, and reads all of it back."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda.step("GPU %d: patterns in memory" % self.index)
        self.cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        size = _whole(min(total.value // _SHARE, _MOST, free.value // 4))
        memory, part = self.allocate(size), min(self.room, size)
        for pattern in (0x55555555, 0xAAAAAAAA):
            for start in range(0, size, part):
                count = min(part, size - start)
                word = pattern ^ start // part
                self.cuda("cuMemsetD32_v2", ctypes.c_uint64(memory + start), word, ctypes.c_size_t(count // 4))
            self.cuda("cuCtxSynchronize")
            stored = self.compare(memory, size, _Pattern(pattern, part))
            self.record["pattern_wrong"] = self.record.get("pattern_wrong") or stored
        self.cuda("cuMemFree_v2", ctypes.c_uint64(memory))
        self.record["pattern_mib"] = size // MIB

    def copy_to(self, other: "Gpu", expected: Expected) -> Record:
        """Copies results to another GPU, and compares them there."""
        record = {"index": other.index, "error": None}  # type: Record
        self.cuda.step("GPU %d to GPU %d: copy" % (self.index, other.index))
        record["access"] = bool(self.cuda.number("cuDeviceCanAccessPeer", self.device, other.device))
        size = min(_PAIR, self.size, other.size)
        if record["access"]:
            self.use()
            error = self.cuda.error("cuCtxEnablePeerAccess", other.context, 0)
            if error not in (0, 704):  # 704: it is enabled already
                raise CudaError("cuCtxEnablePeerAccess", error, self.cuda.what)
        other.use()
        self.cuda("cuMemsetD32_v2", ctypes.c_uint64(other.input), self.index, ctypes.c_size_t(size // 4))
        self.cuda("cuCtxSynchronize")
        best = min(self._copy(other, size) for _ in range(2))
        record.update(gbps=round(size / best / 1e9, 3), mib=size // MIB)
        record["wrong"] = other.compare(other.input, size, expected.part)
        return record

    def _copy(self, other: "Gpu", size: int) -> float:
        target, source = ctypes.c_uint64(other.input), ctypes.c_uint64(self.output)
        started = time.perf_counter()
        self.cuda("cuMemcpyPeer", target, other.context, source, self.context, ctypes.c_size_t(size))
        for gpu in (self, other):
            gpu.use()
            self.cuda("cuCtxSynchronize")
        return time.perf_counter() - started


class _Pattern:
    """The expected bytes of a share of memory whose parts hold the pattern with their number."""

    def __init__(self, pattern: int, part: int) -> None:
        self.pattern, self.part = pattern, part

    def __call__(self, start: int, size: int) -> bytes:
        return struct.pack("<I", self.pattern ^ start // self.part) * (size // 4)


def _whole(size: int) -> int:
    """Whole MiB, at least one."""
    return max(size // MIB, 1) * MIB


def _first(start: int, got: bytes, wanted: bytes) -> Record:
    for place in range(0, len(wanted), 4):
        if got[place : place + 4] != wanted[place : place + 4]:
            words = [struct.unpack("<I", data[place : place + 4])[0] for data in (wanted, got)]
            return {"byte": start + place, "expected": "0x%08x" % words[0], "got": "0x%08x" % words[1]}
    return {"byte": start, "expected": "%d bytes" % len(wanted), "got": "%d bytes" % len(got)}


def _replica(library: Any) -> str:
    """What a simulated library says of itself; "" for the original, which has no such name."""
    try:
        text = ctypes.c_char.in_dll(library, "gpu_ami_replica")
    except ValueError:
        return ""
    return ctypes.string_at(ctypes.addressof(text)).decode()


def _error(call: str, name: str, meaning: str, what: str) -> Record:
    return {"call": call, "number": -1, "name": name, "meaning": meaning, "what": what, "log": ""}


def _uuid(data: Any) -> str:
    text = bytes(data).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def work(load: Any, tell: Any, most: int) -> None:
    """All of the work of one process. tell: takes each record."""
    machine = dict(_MACHINE)
    try:
        cuda = Cuda(load("libcuda.so.1"), tell)
        machine["replica"] = _replica(cuda.library)
        cuda.step("cuInit")
        cuda("cuInit", 0)
        machine.update(cuda=cuda.number("cuDriverGetVersion"), count=cuda.number("cuDeviceGetCount"))
    except OSError as error:
        meaning = "the driver's user space is not installed, or not where the loader looks"
        machine["error"] = _error("dlopen", str(error), meaning, "start")
    except AttributeError as error:
        machine["error"] = _error("dlsym", str(error), "libcuda.so.1 is not a driver's", "start")
    except CudaError as error:
        machine["error"] = error.record
    tell(machine)
    if not machine["error"]:
        _work_on_gpus(cuda, int(machine["count"]), tell, most)


def _work_on_gpus(cuda: Cuda, count: int, tell: Any, most: int) -> None:
    gpus, expected = [], Expected()
    for index in range(count):
        gpu = Gpu(cuda, index, most)
        gpus.append(gpu)
        with _recorded(gpu.record):
            cuda.step("GPU %d: open" % index)
            gpu.describe()
            gpu.open()
            gpu.compute(expected)
            gpu.patterns()
            gpu.ready = not gpu.record["wrong"]
        tell(dict(gpu.record))  # known even if a later step hangs
    for gpu in gpus:
        for other in gpus:
            if gpu is not other and gpu.ready and other.ready:
                pair = {"index": other.index, "error": None}  # type: Record
                with _recorded(pair):
                    pair.update(gpu.copy_to(other, expected))
                gpu.record["peers"].append(pair)
        tell(dict(gpu.record))
    for gpu in gpus:
        if gpu.context:
            cuda.error("cuCtxDestroy_v2", gpu.context)
    tell({"kind": "end"})


@contextlib.contextmanager
def _recorded(record: Record) -> Iterator[None]:
    try:
        yield
    except CudaError as error:
        record["error"] = error.record


class Collected:
    """What the working processes have told: the machine, GPUs by place, and what is wrong."""

    def __init__(self) -> None:
        self.machine = dict(_MACHINE)
        self.gpus = {}  # type: Dict[Tuple[str, int], Record]
        self.step = "start"
        self.ended = False

    def take(self, line: bytes, mig: str) -> None:
        record = json.loads(line.decode())
        kind = record["kind"]
        if kind == "step":
            self.step = record["what"]
        elif kind == "end":
            self.ended = True
        elif kind == "machine":
            count, error = self.machine["count"] + record["count"], self.machine["error"] or record["error"]
            self.machine = dict(record, count=count, error=error, unfinished=self.machine["unfinished"])
        else:
            self.gpus[mig, record["index"]] = record

    def end(self, why: str) -> None:
        self.machine["unfinished"] = self.machine["unfinished"] or {"why": why, "step": self.step}

    def wrong(self) -> bool:
        if self.machine["error"] or self.machine["unfinished"] or not self.gpus:
            return True
        pairs = [pair for gpu in self.gpus.values() for pair in gpu["peers"]]
        return any(
            row["error"] or row.get("wrong") or row.get("pattern_wrong") for row in [*self.gpus.values(), *pairs]
        )


def _start(load: Any, most: int, mig: str) -> Tuple[int, int]:
    """Forks the working process: (its id, where it tells)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(reading)
        _unprivileged(mig)
        work(load, lambda record: os.write(writing, json.dumps(record).encode() + b"\n"), most)
        status = 0
    finally:
        os._exit(status)


def _unprivileged(mig: str) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # another user's process loses it
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # no compiled kernel is kept
    if mig:
        os.environ["CUDA_VISIBLE_DEVICES"] = mig


def _collect(child: int, reading: int, deadline: float, found: Collected, mig: str) -> bool:
    """Takes what the process tells until it ends; False after the deadline, with the process killed."""
    rest, ended = b"", False
    found.ended = False
    while not ended:
        left = deadline - time.monotonic()
        if left <= 0 or not readable(reading, left):
            break
        data = os.read(reading, 1 << 16)
        ended = not data
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            found.take(line, mig)
    os.close(reading)
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    for _ in range(20):  # one that hangs in the driver cannot be killed, and is left behind
        with contextlib.suppress(OSError):
            if os.waitpid(child, os.WNOHANG)[0]:
                break
        time.sleep(0.1)
    return ended


def readable(reading: int, seconds: float) -> bool:
    """Whether there is something to read, or the end. By poll: select takes no descriptor from 1024 on."""
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def run(load: Any, most: int, seconds: float, migs: List[str]) -> Collected:
    """Works in one process, or in one for each MIG device."""
    found, deadline = Collected(), time.monotonic() + seconds
    for mig in migs or [""]:
        child, reading = _start(load, most, mig)
        signal.signal(signal.SIGTERM, functools.partial(_terminated, child))
        if not _collect(child, reading, deadline, found, mig):
            found.end("it did not end within %g s" % seconds)
        elif not found.ended and not found.machine.get("error"):
            found.end("its process ended without a result")
    return found


def _terminated(child: int, *_signal: object) -> None:
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    raise SystemExit(128 + signal.SIGTERM)


def main(words: Optional[List[str]] = None, load: Any = ctypes.CDLL, out: Any = sys.stdout) -> int:
    """`load` and `out` can be replaced by tests."""
    options = argparse.ArgumentParser(prog="compute_probe", description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--mib", type=int, default=256, help="MiB that each GPU computes on (default: %(default)s)")
    options.add_argument("--seconds", type=float, default=100.0, help="limit of all of the work (default: %(default)s)")
    options.add_argument("--mig", default="", help="UUIDs of MIG devices, separated by commas")
    args = options.parse_args(words)
    if args.mib < 1 or args.seconds <= 0:
        options.error("--mib and --seconds: expected a number above zero")
    started = time.monotonic()
    found = run(load, args.mib * MIB, args.seconds, [uuid for uuid in args.mig.split(",") if uuid])
    found.machine["seconds"] = round(time.monotonic() - started, 2)
    for record in [found.machine, *found.gpus.values()]:
        out.write(json.dumps(record) + "\n")
    out.flush()
    return 1 if found.wrong() else 0


if __name__ == "__main__":
    raise SystemExit(main())
