"""The table of a survey."""

from gpu_ami.sources.survey import Finding, ReadIndex, Survey
from gpu_ami.sources.table import as_table

FINGERPRINT = "A" * 24 + "0123456789ABCDEF"
FINDINGS = [
    Finding("cuda", "cuda-toolkit-13-0", "13.0.2-1", "there", "https://v/", (), (), ("13.0.4-1",), FINGERPRINT, 31),
    Finding("dcgm", "dcgm", "1:4.6.1-1", "missing", "https://v/", (), ("dcgm 1:4.5-1",), (), FINGERPRINT, None),
    Finding("efa", "index", "", "unreachable", "https://w/", ("https://w/: HTTP 503",)),
    Finding("gdrcopy", "gdrcopy.git", "v2.5", "there", signature="commit 0123456789ab"),
    Finding("container_toolkit", "docker.io", "", "unasked", details=("the operating system's own archive",)),
]


def test_table() -> None:
    survey = Survey("test", "sha256:1", "2026-11-22T00:00:00Z", FINDINGS, [ReadIndex("https://v/", "", "", "")], 1.25)
    assert as_table(survey).splitlines() == [
        "test",
        "component  item               planned    state        newer     signed by            key days",
        "cuda       cuda-toolkit-13-0  13.0.2-1   there        13.0.4-1  0123456789ABCDEF     31",
        "dcgm       dcgm               1:4.6.1-1  missing                0123456789ABCDEF     no end",
        "    not in https://v/",
        "    nearest: dcgm 1:4.5-1",
        "efa        index                         unreachable",
        "    https://w/: HTTP 503",
        "gdrcopy    gdrcopy.git        v2.5       there                  commit 0123456789ab",
        "",
        "not asked (the operating system's own archive): container_toolkit docker.io",
        "2 there, 1 missing, 1 unreachable; 1 indexes read; 1.2 s",
    ]
    assert survey.exit_code == 2
