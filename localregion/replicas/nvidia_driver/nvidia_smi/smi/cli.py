"""The command line: queries, output formats, and the exit codes of the original."""

from __future__ import annotations

import sys
import time

from . import driver

TYPE_CHECKING = False  # importing typing alone is a tenth of the start-up
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from .driver import Gpu
    from .report import Tree

HELP = """NVIDIA System Management Interface -- v{version} (gpu-ami replica)

nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...

    <no arguments>              Show a summary of GPUs.
    -h, --help                  Print usage information and exit.
    --version                   Print version information and exit.
    -L, --list-gpus             Display a list of GPUs.
    -q, --query                 Display GPU info.
    -x, --xml-format            With -q: as XML.
    -d, --display=              With -q: MEMORY, UTILIZATION, ECC, TEMPERATURE, POWER, CLOCK, COMPUTE, PIDS,
                                PERFORMANCE, ROW_REMAPPER, ENCODER_STATS, FABRIC; several with commas.
    -i, --id=                   Target a GPU: index, UUID or PCI bus id; several with commas.
    -f, --filename=             Write to a file instead of standard output.
    -l, --loop=                 Print again every so many seconds until Ctrl-C.
    --query-gpu=FIELDS          With --format=csv[,noheader][,nounits].
    --query-remapped-rows=FIELDS
    --query-compute-apps=FIELDS
    -pm, -ac, -rac, -lgc, -rgc, -pl, -mig, --gpu-reset
                                Persistence mode, application clocks, locked clocks, MIG mode, reset.
    mig -lgi | -cgi PROFILES [-C] | -dgi
                                GPU instances.
    topo -m                     How GPUs and NUMA nodes are connected.
    nvlink -s | -e | -c         NVLink status, error counters, capabilities.
"""
_LONG = {
    "--help": "-h",
    "--list-gpus": "-L",
    "--query": "-q",
    "--xml-format": "-x",
    "--display": "-d",
    "--id": "-i",
    "--filename": "-f",
    "--loop": "-l",
}
# Options that set something, and the command that divides GPUs: settings.py.
SETTINGS = (
    "mig", "-pm", "--persistence-mode", "-ac", "--applications-clocks", "-rac", "--reset-applications-clocks", "-lgc",
    "--lock-gpu-clocks", "-rgc", "--reset-gpu-clocks", "-pl", "--power-limit",
    "-mig", "--multi-instance-gpu", "-r", "--gpu-reset",
)  # fmt: skip
_WITH_VALUE = ("-d", "-i", "-f", "-l", "--format", "--query-gpu", "--query-remapped-rows", "--query-compute-apps")
_PLAIN = ("-h", "-L", "-q", "-x", "--version")


def _parse(words: list[str]) -> dict[str, str]:
    """{option: value, or "" for one without}; Failure 1 for an option that is not one."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        word = _LONG.get(word, word)
        if word in _PLAIN and not equals:
            options[word] = ""
        elif word in _WITH_VALUE:
            if not equals:
                if not rest:
                    raise driver.Failure('Option "' + word + '" requires a value.\n', 1)
                value = rest.pop(0)
            options[word] = value
        else:
            raise driver.Failure("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 1)
    return options


def own_version() -> str:
    with open(__file__.rpartition("/smi/")[0] + "/VERSION", encoding="ascii") as file:
        return file.read().strip()


def main(
    words: list[str],
    root: str = "",
    now: Callable[[], float] = time.time,
    out: TextIO | None = None,
    own: str | None = None,
) -> int:
    """Runs one command; its exit code. `root`, `now`, `out` and `own` (version) are there for tests."""
    out = out or sys.stdout
    try:
        own = own or own_version()
        if words and words[0] in ("nvlink", "topo"):
            out.write(_links(words, root, own))
            return 0
        if words and any(word.partition("=")[0] in SETTINGS for word in words):
            out.write(_settings(words, root, own))
            return 0
        options = _parse(words)
        while True:
            _emit(options, _answer(options, root, now(), own), out)
            if "-l" not in options:
                return 0
            time.sleep(max(1.0, float(options["-l"])))
    except driver.Failure as failure:
        out.write(failure.message + "\n")
        return failure.code
    except (KeyboardInterrupt, BrokenPipeError):
        return 0


def _emit(options: dict[str, str], text: str, out: TextIO) -> None:
    if "-f" in options:
        with open(options["-f"], "w", encoding="utf-8") as file:
            file.write(text)
    else:
        out.write(text)
        out.flush()


def _answer(options: dict[str, str], root: str, seconds: float, own: str) -> str:
    if "-h" in options:
        return HELP.format(version=own)
    if "--version" in options:
        return _versions(root, own)
    queries = [name for name in options if name.startswith("--query-")]
    if len(queries) > 1 or (queries and "--format" not in options):
        raise driver.Failure('Missing "--format=" switch.\n' if queries[1:] == [] else "Only one query at a time.\n", 2)
    version = driver.check_versions(root, own)
    everything = driver.gpus(root)
    gpus = driver.select(everything, options.get("-i"))
    if "-L" in options:
        return "".join(_line(gpu) for gpu in gpus)
    if queries:
        return _csv(queries[0], options, gpus, version, len(everything), seconds)
    return _report(options, gpus, version, len(everything), seconds)


def _line(gpu: Gpu) -> str:
    from . import settings

    text = "GPU %d: %s (UUID: %s)\n" % (gpu.index, gpu.name, gpu.uuid)
    for number, name in enumerate(settings.instances(gpu)):
        # Another than the board's, whatever its last digit is; libcuda and nvidia-ctk make the same.
        uuid = "MIG-%x%s%x" % (int(gpu.uuid[4], 16) ^ 8, gpu.uuid[5:-1], number)
        text += "  %s Device %2d: (UUID: %s)\n" % (("MIG " + name).ljust(15), number, uuid)
    return text


def _versions(root: str, own: str) -> str:
    driver.check_library(root)
    loaded = driver.loaded_version(root)
    library = own.rsplit(".", 1)[0] if own.count(".") == 2 else own
    rows = [("NVIDIA-SMI version", own), ("NVML version", library)]
    if driver.branch(own) < 610:
        rows += [("DRIVER version", loaded), ("CUDA Version", driver.cuda_version(own))]
    else:  # a capture of 610.57.04
        rows += [
            ("DRIVER version", 'Deprecated, see "KMD version" instead'),
            ("CUDA version", 'Deprecated, see "CUDA UMD version" instead'),
            ("KMD version", loaded),
            ("CUDA UMD version", driver.cuda_version(own)),
        ]
    return "".join(title.ljust(20) + ": " + value + "\n" for title, value in rows)


def _csv(name: str, options: dict[str, str], gpus: list[Gpu], version: str, count: int, seconds: float) -> str:
    from . import query
    from .readings import Readings

    names = [field.strip() for field in options[name].split(",")]
    form = [word.strip() for word in options["--format"].split(",")]
    if name == "--query-remapped-rows":
        rows = [query.remapped_rows(gpu) for gpu in gpus]
        return query.csv(names, rows[0], rows, form, {})
    if name == "--query-compute-apps":
        return query.csv(names, query.COMPUTE_APPS, [], form, query.COMPUTE_ALIASES)
    stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(seconds)) + ".%03d" % (seconds % 1 * 1000)
    rows = [query.fields(gpu, Readings(gpu, seconds), version, count, stamp) for gpu in gpus]
    return query.csv(names, rows[0], rows, form, query.ALIASES)


def _report(options: dict[str, str], gpus: list[Gpu], version: str, count: int, seconds: float) -> str:
    from . import report
    from .readings import Readings

    timestamp = time.asctime(time.localtime(seconds))
    readings = [Readings(gpu, seconds) for gpu in gpus]
    if "-q" not in options:
        if options.keys() - {"-i", "-f", "-l"}:
            raise driver.Failure("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 1)
        from .summary import summary

        return summary(gpus, readings, version, driver.cuda_version(version), timestamp)
    trees = [report.gpu_tree(gpu, reading, version, timestamp) for gpu, reading in zip(gpus, readings)]
    if "-d" in options:
        trees = [_sections(tree, options["-d"], report.SECTIONS) for tree in trees]
    if "-x" in options:
        return report.xml(gpus, trees, version, driver.cuda_version(version), timestamp)
    return report.text(gpus, trees, version, driver.cuda_version(version), timestamp, count)


def _sections(tree: Tree, words: str, sections: dict[str, tuple[str, ...]]) -> Tree:
    kept: tuple[str, ...] = ()
    for word in words.split(","):
        if word.strip().upper() not in sections:
            raise driver.Failure('Invalid display type: "' + word + '".\n', 2)
        kept += sections[word.strip().upper()]
    return [row for row in tree if row[1] in kept]


def _settings(words: list[str], root: str, own: str) -> str:
    from . import query, settings

    driver.check_versions(root, own)
    gpus = driver.gpus(root)
    if words[0] == "mig":
        return settings.mig(words[1:], gpus)
    asked = settings.read_setting(words)
    if asked is None or asked[3]:
        raise driver.Failure("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 1)
    chosen = driver.select(gpus, asked[2])
    if asked[0] in ("clocks", "reset_clocks") and driver.branch(own) >= query.NO_APPLICATION_CLOCKS:
        # As a board without them answers (sasha0552/nvidia-pstated#6); the words of such a driver are not established.
        lines = ["Setting applications clocks is not supported for GPU " + gpu.bus_id + ".\n" for gpu in chosen]
        return "".join(line + "Treating as warning and moving on.\n" for line in lines) + "All done.\n"
    return settings.apply(asked[0], asked[1], chosen)


def _links(words: list[str], root: str, own: str) -> str:
    version = driver.check_versions(root, own)
    gpus = driver.gpus(root)
    from . import links

    if words[0] == "topo":
        if words[1:] not in (["-m"], ["--matrix"]):
            raise driver.Failure(
                "Invalid combination of input arguments. Please run 'nvidia-smi topo -h' for help.\n", 1
            )
        return links.topology(gpus)
    what = {"-s": "-s", "--status": "-s", "-e": "-e", "--errorcounters": "-e", "-c": "-c", "--capabilities": "-c"}
    if not words[1:] or words[1] not in what:
        raise driver.Failure("Invalid combination of input arguments. Please run 'nvidia-smi nvlink -h' for help.\n", 1)
    if words[2:]:
        if words[2] not in ("-i", "--id") or len(words) != 4:
            raise driver.Failure(
                "Invalid combination of input arguments. Please run 'nvidia-smi nvlink -h' for help.\n", 1
            )
        gpus = driver.select(gpus, words[3])
    return links.nvlink(gpus, what[words[1]], driver.branch(version))
