"""The former system's parser, written for the benchmark from a description of it: `tail -F` and a substring test.

python bench/old_way.py SOURCE LOG
"""

import subprocess
import sys


def main(source: str, log: str) -> None:
    tail = subprocess.Popen(["tail", "-F", "-n", "1000", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert tail.stdout is not None
    while True:
        line = tail.stdout.readline()
        if not line:
            return  # the original spins here
        if "NVRM:" in str(line):
            with open(log, "a") as file:  # noqa: PTH123
                file.write(line.decode("utf8").strip())
                file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
