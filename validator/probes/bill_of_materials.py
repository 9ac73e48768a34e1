"""The image's own bill of materials, which playbooks/image.yml writes, against what is installed."""

from __future__ import annotations

import json
import re
from typing import Any

PATH = "/usr/share/gpu-ami/bom.cdx.json"
INSTALLED = (
    "if test -e /var/lib/dpkg/status && test -e /usr/bin/dpkg-query; then"
    " dpkg-query -W -f='${db:Status-Status}\\t${Package}\\t${Version}\\t${Architecture}\\n'"
    " | grep -vE '^(not-installed|config-files)';"
    " else rpm -qa --qf 'installed\\t%{NAME}\\t%{VERSION}-%{RELEASE}\\t%{ARCH}\\n' | grep -v 'gpg-pubkey'; fi"
)
MODULES = r"find /lib/modules/ -name '*.ko' -o -name '*.ko.gz' -o -name '*.ko.xz' -o -name '*.ko.zst'"
_ARCHITECTURE = re.compile(r"[?&]arch=([^&]+)")


class InvalidBill(ValueError):
    """Not a bill of materials; the message says why."""


def listed(text: str) -> set[str]:
    """Packages (`name version architecture`) and kernel modules (paths) of a CycloneDX document. InvalidBill.

    Files, of which the bill of a certificate has some, are left out.
    """
    try:
        return {_name(component) for component in json.loads(text)["components"] if component["type"] != "file"}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidBill(f"not a bill of materials: {error!r}") from error


def _name(component: dict[str, Any]) -> str:
    if component["type"] == "device-driver":
        properties = {row["name"]: row["value"] for row in component["properties"]}
        return f"module {_without_usr(properties['gpu-ami:path'])}"
    architecture = _ARCHITECTURE.search(component["purl"])
    return f"package {component['name']} {component['version']} {architecture[1] if architecture else ''}"


def installed(packages: str, modules: str) -> set[str]:
    """The same of what the commands INSTALLED and MODULES print."""
    rows = (line.split("\t")[1:] for line in packages.splitlines() if line.count("\t") == 3)
    return {f"package {' '.join(row)}" for row in rows} | {
        f"module {_without_usr(path)}" for path in modules.splitlines() if path
    }


def _without_usr(path: str) -> str:
    return path.removeprefix("/usr") if path.startswith("/usr/lib/") else path


def differences(bill: set[str], system: set[str]) -> list[str]:
    """What one has and the other has not, a line each."""
    return [f"{name}: installed, not in the bill" for name in sorted(system - bill)] + [
        f"{name}: in the bill, not installed" for name in sorted(bill - system)
    ]
