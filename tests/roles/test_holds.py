"""What roles hold, and that they wait for a package lock: their own tasks run here, with other package managers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.process import Completed
from tests.roles.test_roles_refuse import play

pytestmark = pytest.mark.slow  # starts ansible-playbook
VENDOR = {"url": "https://vendor.example/repo/", "suite": "./", "key_fingerprint": "0123"}
ID = "vendor.example-repo"
LOCKED = "dpkg: error: dpkg frontend lock was locked by another process with pid 7"
DPKG = """\
hold installed planned 1.0-1
install installed came-along 1.0-1
install installed of-the-system 2.0-1
install installed also-there 3.0-1
install installed dkms 3.0.10-8
install installed linux-modules-extra-6.8.0-1 6.8.0-1
deinstall config-files gone 1.0-1
"""
MAINTAINERS = {
    "planned": "Driver Team <team@example.org>",
    "came-along": "Driver Team <team@example.org>",
    "of-the-system": "Base Team <base@example.org>",
    "also-there": "Driver Team (old) <team@example.org>",
}
# of `also-there` another version is installed than the vendor's
MADISON = """\
   planned |      1.0-1 | https://vendor.example/repo ./ Packages
came-along |      1.1-1 | https://vendor.example/repo ./ Packages
came-along |      1.0-1 | https://vendor.example/repo ./ Packages
of-the-system | 2.0-1 | https://deb.example/debian bookworm/main amd64 Packages
also-there |      3.1-1 | https://vendor.example/repo ./ Packages
"""
RPM = """\
kmod kmod-3:580.1-1.amzn2023.*
kmod-common kmod-common-3:580.1-1.amzn2023.*
bash bash-0:5.2-1.*
dkms dkms-0:3.2.1-1.amzn2023.*
kernel6.12-modules-extra kernel6.12-modules-extra-0:6.12.1-1.*
"""


@pytest.fixture
def programs(tmp_path: Path) -> Any:
    """Adds programs of these texts before the system's; the answer is a PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def add(**texts: str) -> str:
        for name, text in texts.items():
            program = folder / name.replace("_", "-")
            program.write_text(f"#!/bin/sh\n{text}")
            program.chmod(0o755)
        return f"{folder}:{os.defpath}"

    return add


def hold(tmp_path: Path, system: str, path: str, **variables: Any) -> Completed:
    given = {
        "ansible_facts": {"os_family": "Debian" if system == "debian" else "RedHat"},
        "ansible_python_interpreter": sys.executable,
        "__vendor_packages_lock_delay": 0,
    }
    return play(tmp_path, "vendor_packages", f"{system}_hold", path, **given | variables)


def test_dpkg_holds_what_came_along_and_what_builds_the_modules(tmp_path: Path, programs: Any) -> None:
    """It waits while another program has the lock. What is held is not held again; the system's packages are free."""
    path = programs(
        dpkg_query=f"cat <<'EOF'\n{DPKG}EOF\n",
        apt_cache=f"cat <<'EOF'\n{MADISON}EOF\n",
        dpkg=f"""
        echo run >> {tmp_path}/runs
        [ "$(wc -l < {tmp_path}/runs)" -gt 2 ] || {{ echo '{LOCKED}' >&2; exit 2; }}
        cat > {tmp_path}/selections
        """,
    )
    asked = {"vendor_packages_exact": {"planned": "1.0-1"}, "vendor_packages_repository": VENDOR}
    done = hold(tmp_path, "debian", path, **asked)
    assert done.returncode == 0, done.stdout
    held = (tmp_path / "selections").read_text().splitlines()
    assert sorted(held) == ["came-along hold", "dkms hold", "linux-modules-extra-6.8.0-1 hold"]
    assert (tmp_path / "runs").read_text().count("run") == 3


@pytest.mark.parametrize(
    ("base", "held"),
    [
        ("Base Team <base@example.org>", ["came-along hold", "dkms hold", "linux-modules-extra-6.8.0-1 hold"]),
        # Of Ubuntu's packages, drivers and the base system have one maintainer.
        ("Driver Team <team@example.org>", ["dkms hold", "linux-modules-extra-6.8.0-1 hold"]),
    ],
)
def test_from_the_system_s_archive_what_came_along_has_the_maintainer_of_the_planned(
    tmp_path: Path, programs: Any, base: str, held: list[str]
) -> None:
    rows = [f"{row} {MAINTAINERS.get(row.split()[2], 'Other <other@example.org>')}" for row in DPKG.splitlines()]
    rows += [f"install installed {name} 1.0-1 {base}" for name in ("apt", "bash", "dpkg", "libc6")]
    listed = "\n".join(rows)
    path = programs(dpkg_query=f"cat <<'EOF'\n{listed}\nEOF\n", dpkg=f"cat > {tmp_path}/selections", apt_cache="exit 9")
    repository = VENDOR | {"keyring": "/usr/share/keyrings/debian-archive-keyring.gpg"}
    asked = {"vendor_packages_exact": {"planned": "1.0-1"}, "vendor_packages_repository": repository}
    done = hold(tmp_path, "debian", path, **asked)
    assert done.returncode == 0, done.stdout
    assert sorted((tmp_path / "selections").read_text().splitlines()) == held


def test_other_errors_of_dpkg_end_at_once(tmp_path: Path, programs: Any) -> None:
    path = programs(dpkg_query=f"cat <<'EOF'\n{DPKG}EOF\n", dpkg=f"echo run >> {tmp_path}/runs; echo no >&2; exit 2")
    done = hold(tmp_path, "debian", path, vendor_packages_exact={"planned": "1"})
    assert done.returncode == 2 and (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize("system", ["debian", "redhat"])
def test_package_that_is_not_installed_cannot_be_held(tmp_path: Path, programs: Any, system: str) -> None:
    path = programs(dpkg_query=f"cat <<'EOF'\n{DPKG}EOF\n", rpm=f"cat <<'EOF'\n{RPM}EOF\n", dpkg="exit 9")
    asked = {"__vendor_packages_lock_plugin": str(tmp_path), "__vendor_packages_locks": str(tmp_path / "locks")}
    done = hold(tmp_path, system, path, vendor_packages_exact={"gone": "1.0-1"}, **asked)
    assert done.returncode == 2 and not (tmp_path / "locks").exists()


def test_dnf_locks_what_came_along_and_what_builds_the_modules(tmp_path: Path, programs: Any) -> None:
    """A former version of what is locked here is no longer locked; other locks stay."""
    locks = tmp_path / "locks"
    locks.write_text("kmod-3:570.1-1.amzn2023.*\nkmod-other-0:1-1.*\n")
    origins = f"{ID} kmod\n{ID} kmod-common\namazonlinux dkms\n{ID}-other bash\n"
    path = programs(rpm=f"cat <<'EOF'\n{RPM}EOF\n", dnf=f"cat <<'EOF'\n{origins}EOF\n")
    asked = {
        "vendor_packages_exact": {"kmod": "3:580.1-1.amzn2023"},
        "vendor_packages_repository": VENDOR,
        "__vendor_packages_lock_plugin": str(tmp_path),
        "__vendor_packages_locks": str(locks),
        "ansible_remote_tmp": str(tmp_path),
    }
    done = hold(tmp_path, "redhat", path, **asked)
    assert done.returncode == 0, done.stdout
    assert locks.read_text().splitlines() == [
        "dkms-0:3.2.1-1.amzn2023.*",
        "kernel6.12-modules-extra-0:6.12.1-1.*",
        "kmod-3:580.1-1.amzn2023.*",
        "kmod-common-3:580.1-1.amzn2023.*",
        "kmod-other-0:1-1.*",
    ]
    again = hold(tmp_path, "redhat", path, **asked)
    assert "changed=0" in again.stdout


@pytest.mark.parametrize(
    "said",
    [
        "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)",
        LOCKED,
        "error: can't create transaction lock on /var/lib/rpm/.rpm.lock (Resource temporarily unavailable)",
    ],
)
def test_efa_installer_waits_for_the_lock(tmp_path: Path, programs: Any, said: str) -> None:
    """Its apt-get is told to wait by a file, and it is run again where what it runs beside does not."""
    installer = tmp_path / "work" / "aws-efa-installer" / "efa_installer.sh"
    installer.parent.mkdir(parents=True)
    record = tmp_path / "record"
    installer.write_text(
        f"""#!/bin/sh
        echo run >> {tmp_path}/runs
        grep -q 'DPkg::Lock::Timeout "120"' "$APT_CONFIG" || exit 3
        [ "$(wc -l < {tmp_path}/runs)" -gt 1 ] || {{ cat <<'EOF'
{said}
EOF
        exit 1; }}
        printf '# EFA installer version: 1.50.0\\n# Packages installed:\\nlibfabric-1.deb\\n' > {record}
        """
    )
    installer.chmod(0o755)
    given = {
        "ansible_facts": {"os_family": "Debian"},
        "ansible_python_interpreter": sys.executable,
        "efa_version": "1.50.0",
        "efa_mode": "full",
        "__efa_work": str(tmp_path / "work"),
        "__efa_record": str(record),
        "__efa_lock_delay": 0,
    }
    done = play(tmp_path, "efa", "run", programs(dpkg_query="echo installed x"), **given)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "runs").read_text().count("run") == 2
