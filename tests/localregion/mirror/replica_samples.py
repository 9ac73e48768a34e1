"""Plans and tables of replicas for the tests of the mirror: small ones, so that they build in no time."""

from __future__ import annotations

import copy
import http.client
from pathlib import Path
from typing import Any

HOST = "https://vendor.example"
KEY = {"key_url": f"{HOST}/keys/vendor.pub", "key_fingerprint": "A" * 40}
FLAT = {"url": f"{HOST}/flat/x86_64/", "suite": "./", "components": [], **KEY}
SUITE = {"url": f"{HOST}/suite/", "suite": "jammy", "components": ["main"], **KEY}
PLAN: dict[str, Any] = {
    "os": {"id": "debian", "version": "12", "codename": "bookworm", "family": "debian"},
    "architecture": "x86_64",
    "roles": ["tool", "agent", "installer", "source", "hygiene"],
    "tool": {
        "version": "1.2.3",
        "package": "tool-1",
        "package_version": "1.2.3-1+x2",
        "packages": {"libtool": "2:4.5-1"},
        "repository": FLAT,
    },
    "agent": {"version": "7.8", "url": f"{HOST}/a/agent.deb", "signature_url": f"{HOST}/a/agent.deb.sig", **KEY},
    "installer": {
        "version": "0.9",
        "url": f"{HOST}/i/installer-0.9.tar.gz",
        "signature_url": f"{HOST}/i/installer-0.9.tar.gz.sig",
        "contents": {"inner": "3.1"},
        **KEY,
    },
    "source": {"version": "1.0", "url": f"{HOST}/git/source.git", "tag": "v1.0", "commit": "c" * 40},
    "hygiene": {},
    "left_out": {"version": "1", "packages": {"nobody-has-this": "1"}, "repository": FLAT},
}
TABLE = """
documentation: https://vendor.example/documentation
system: {deb: ["agent=0.1-1", libtool=1.9-2], rpm: ["agent=0.1-1.amzn2023"]}
packages:
  - name: tool-(?P<branch>\\d+)
    summary: A tool of branch {branch}
    does: says its version
    depends: {deb: ["python3 (>= 3.9)", "libtool (= {full_version})"], rpm: [python3 >= 3.9]}
    provides: {deb: [tool], rpm: ["tool = {version}"]}
    brings: ["tool-data", "tool-extra={version}-9"]
    also: ["1.2.2", "2.0.0"]
    trees: {tree: opt/tool}
    templates: ["opt/tool/bin/*"]
    files: {"etc/tool-{branch}.conf": "version={version} of {minor} in ${version}\\n"}
    links: {usr/bin/tool: /opt/tool/bin/tool}
    directories: [var/lib/tool]
    conffiles: ["etc/tool-{branch}.conf"]
    scripts: scripts
  - name: tool-(data|extra)
    summary: Data
    does: nothing
  - name: libtool
    summary: A library
    does: has a soname
    libraries: {"{libdir}/libtool.so.{version}": {source: lib/tool.c, soname: "libtool.so.{major}"}}
    links: {"{libdir}/libtool.so.{major}": "libtool.so.{version}"}
  - name: agent
    summary: An agent
    does: nothing
    revision: "5"
    files: {etc/agent: "{full_version}\\n"}
archives:
  - name: installer-(?P<installer>[\\d.]+)\\.tar\\.gz
    summary: An installer
    does: holds packages
    trees: {tree: installer}
    templates: ["installer/bin/tool"]
    defaults: {inner: "1.0", other: "2.0"}
    distributions: {deb: [ONE, TWO]}
    list: installer/list.txt
    holds:
      deb: {"installer/{distribution}/{arch}": ["agent={inner}-1", "tool-data={other}", "tool-extra={extra}"]}
      rpm: {installer/RPM: ["agent={inner}-1"]}
git:
  - name: source
    summary: A source
    does: nothing
    trees: {tree: ""}
    templates: [bin/tool]
"""
SCRIPTS = {
    "postinst": '#!/bin/sh\nset -e\n[ "$1" != configure ] || echo "50% of @NAME@ @VERSION@ $2" >>/tmp/said\n',
    "prerm": '#!/bin/sh\nset -e\necho "prerm $1" >>/tmp/said\n',
}


def plan(**changes: Any) -> dict[str, Any]:
    """PLAN with other sections or keys."""
    return copy.deepcopy(PLAN) | changes


def write_table(folder: Path, table: str = TABLE) -> Path:
    """A folder as localregion/replicas, with one family, "family", of that table."""
    family = folder / "family"
    (family / "tree" / "bin").mkdir(parents=True)
    (family / "tree" / "bin" / "tool").write_text("#!/bin/sh\necho @FULL_VERSION@ @NAME@ @UNKNOWN@\n")
    (family / "tree" / "bin" / "tool").chmod(0o755)
    (family / "tree" / "__pycache__").mkdir()
    (family / "tree" / "__pycache__" / "tool.pyc").write_bytes(b"\0")
    (family / "lib").mkdir()
    (family / "lib" / "tool.c").write_text("const char *tool_version(void) { return VERSION; }\n")
    (family / "scripts").mkdir()
    for name, text in SCRIPTS.items():
        (family / "scripts" / name).write_text(text)
    (family / "packages.yml").write_text(table)
    return folder


def get(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def stanzas(index: Path) -> list[dict[str, str]]:
    return [
        dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and not line.startswith(" "))
        for stanza in index.read_text().split("\n\n")
        if stanza.strip()
    ]
