"""The promise that each family of nodes makes: what the base AMI brought is as the build recorded it."""

from __future__ import annotations

from typing import Any

Case = tuple[Any, dict[str, Any], str, str]

SUM = "0f343b0931126a20f133d67c2b018a3b0f343b0931126a20f133d67c2b018a3b"
WARNING = "sha256sum: WARNING: 1 computed checksum did NOT match\n"


def unchanged(check: Any, path: str) -> list[Case]:
    """Cases of a check of `<role>.sha256`, with one file on record."""
    recorded = {"cat /usr/share*": f"{SUM}  {path}\n"}
    return [
        (check, recorded | {"env*": ""}, "PASS", ""),
        (check, recorded | {"env*": (1, f"{path}: FAILED\n", WARNING)}, "FAIL", f"differs from the base AMI: {path}"),
        (check, recorded | {"env*": (1, f"{path}: FAILED open or read\n", WARNING)}, "FAIL", path),
        (
            check,
            recorded | {"env*": (1, "", "sha256sum: no properly formatted lines")},
            "FAIL",
            "no properly formatted",
        ),
        (check, {"cat*": (1, "")}, "FAIL", "the build did not record the files of the base AMI"),
    ]
