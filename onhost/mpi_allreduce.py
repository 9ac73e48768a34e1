"""One rank of an Open MPI job: sums a vector over all ranks with MPI_Allreduce. Python 3.6 or newer and a libmpi.

    mpirun … python3 mpi_allreduce.py LIBMPI [--mib 4]

LIBMPI: the library of the mpirun that starts it. Prints one line of JSON a rank: rank, size, host, boot_id, library
version, whether every element of the sum is right, and the bytes. Exit 0: right; 1: not; 2: no such library.
"""

import argparse
import array
import ctypes
import json
import socket
import sys
import time
from typing import Any, Dict

_LINE = 256  # MPI_MAX_LIBRARY_VERSION_STRING of Open MPI


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--mib", type=int, default=4)
    asked = parser.parse_args()
    try:
        # Open MPI's own components need its symbols.
        mpi = ctypes.CDLL(asked.library, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    mpi.MPI_Init(None, None)
    # Handles of Open MPI are pointers to global objects (mpi.h: OMPI_PREDEFINED_GLOBAL).
    world = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))
    long_long = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_long_long_int")))
    add = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_op_sum")))
    rank, size = ctypes.c_int(), ctypes.c_int()
    mpi.MPI_Comm_rank(world, ctypes.byref(rank))
    mpi.MPI_Comm_size(world, ctypes.byref(size))
    count = asked.mib * (1 << 20) // 8
    vector = array.array("q", [(index % 1000) * (rank.value + 1) for index in range(count)])
    total = array.array("q", bytes(8 * count))
    source, target = ctypes.c_void_p(vector.buffer_info()[0]), ctypes.c_void_p(total.buffer_info()[0])
    started = time.time()
    rc = mpi.MPI_Allreduce(source, target, ctypes.c_int(count), long_long, add, world)
    seconds = time.time() - started
    factor = size.value * (size.value + 1) // 2
    right = rc == 0 and total == array.array("q", [(index % 1000) * factor for index in range(count)])
    mpi.MPI_Barrier(world)
    text = "{}\n".format(json.dumps(_result(mpi, rank.value, size.value, right, 8 * count, seconds)))
    sys.stdout.write(text)  # in one piece: mpirun forwards the ranks' lines as they come
    sys.stdout.flush()
    mpi.MPI_Finalize()
    return 0 if right else 1


def _result(mpi: ctypes.CDLL, rank: int, size: int, right: bool, octets: int, seconds: float) -> Dict[str, Any]:
    version, length = ctypes.create_string_buffer(_LINE), ctypes.c_int()
    mpi.MPI_Get_library_version(version, ctypes.byref(length))
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    return {
        "rank": rank,
        "size": size,
        "host": socket.gethostname(),
        "boot_id": boot_id,
        "library": version.value.decode(errors="replace").split(",")[0],
        "right": right,
        "bytes": octets,
        "seconds": round(seconds, 3),
    }


if __name__ == "__main__":
    raise SystemExit(main())
