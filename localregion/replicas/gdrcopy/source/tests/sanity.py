#!/usr/bin/python3 -IS
# gpu-ami replica of gdrcopy_sanity: that library, module, device and a GPU are there and fit; no memory is mapped.
import ctypes
import glob
import sys

SONAME = "libgdrapi.so.2"


def fits(library: ctypes.CDLL) -> bool:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.gdr_runtime_get_version(ctypes.byref(major), ctypes.byref(minor))
    with open("/sys/module/gdrdrv/version") as file:
        return file.read().strip() == "%d.%d" % (major.value, minor.value)


def opens(library: ctypes.CDLL) -> bool:
    library.gdr_open.restype = ctypes.c_void_p
    handle = library.gdr_open()
    return bool(handle) and bool(library.gdr_close(ctypes.c_void_p(handle)) == 0)


def has_gpu(_library: ctypes.CDLL) -> bool:
    return bool(glob.glob("/dev/nvidia[0-9]*"))


def main() -> int:
    library = ctypes.CDLL(SONAME)
    failed = []
    checks = (("version_fits_driver", fits), ("open_close", opens), ("gpu_there", has_gpu))
    for name, check in checks:
        try:
            passed = check(library)
        except OSError as error:
            print("%s: %s" % (name, error), file=sys.stderr)
            passed = False
        if not passed:
            failed.append(name)
    print("Total: %d, Passed: %d, Failed: %d, Waived: 0" % (len(checks), len(checks) - len(failed), len(failed)))
    if failed:
        print("\nList of failed tests:\n%s" % "\n".join("    " + name for name in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit("gdrcopy_sanity: %s" % error)
