"""The expected files: every role is declared, and no pattern covers a whole directory of settings."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from validator.probes import footprints

ROLES = sorted(path.name for path in (Path(__file__).parents[3] / "roles").iterdir() if path.is_dir())


def test_every_role_is_declared() -> None:
    assert set(footprints._ROLES) | footprints._WITHOUT_FILES == set(ROLES)
    assert footprints.undeclared([*ROLES, "acme_agent"]) == ["acme_agent"]


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/build-helper", "/usr/local/bin/step", "/etc/systemd/system/build.service", "/etc/sudoers.d/build",
        "/etc/ssh/sshd_config.d/99-build.conf", "/etc/profile.d/build.sh", "/etc/ld.so.conf.d/00-build.conf",
        "/etc/sysctl.d/99-build.conf", "/etc/modprobe.d/build.conf", "/etc/udev/rules.d/99-build.rules",
        "/etc/cron.d/build", "/etc/cloud/cloud.cfg.d/99-build.cfg", "/etc/apt/sources.list.d/build.list",
        "/etc/apt/apt.conf.d/99proxy", "/usr/local/share/ca-certificates/build.crt", "/etc/pam.d/build",
    ],
)  # fmt: skip
def test_leftovers_of_the_build_are_never_expected(path: str) -> None:
    assert [pattern for pattern in footprints.expected(ROLES) if fnmatchcase(path, pattern)] == []


def test_known_programs_are_basenames() -> None:
    for names in (footprints.SETUID, footprints.CAPABLE, footprints.LISTENERS):
        assert names and not [name for name in names if "/" in name]
    assert not [name for name in footprints.LISTENERS if len(name) > 15]
