"""Minor numbers that the replica's kernel module lists: its file compiled with a seq_file that prints."""

from __future__ import annotations

from pathlib import Path

from gpu_ami.process import run
from localregion.mirror.table import REPLICAS

SOURCE = REPLICAS / "nvidia_driver/module/nv-minors.c"
_SEQ_FILE = """
#include <stdio.h>
struct seq_file { FILE *file; };
#define seq_printf(out, ...) fprintf((out)->file, __VA_ARGS__)
"""
_MAIN = """
#include "%s"
#include <string.h>
int main(int argc, char **argv)
{
    struct seq_file out = { stdout };
    if (!strcmp(argv[1], "mig-minors")) return nv_mig_minors_show(&out, NULL);
    if (!strcmp(argv[1], "nvlink-minors")) return nv_nvlink_minors_show(&out, NULL);
    return strcmp(argv[1], "sys-minors") ? 2 : nv_sys_minors_show(&out, NULL);
}
"""


def listed(folder: Path, name: str) -> str:
    """The text of /proc/driver/nvidia-caps/NAME. folder: an empty one."""
    (folder / "linux").mkdir()
    (folder / "linux/seq_file.h").write_text(_SEQ_FILE, encoding="utf-8")
    (folder / "main.c").write_text(_MAIN % SOURCE, encoding="utf-8")
    run(["gcc", "-Wall", "-Werror", f"-I{folder}", "-o", folder / "minors", folder / "main.c"], timeout=60)
    return run([folder / "minors", name], timeout=10).stdout
