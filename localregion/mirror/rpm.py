"""rpm packages made of replicas, and the repositories that hold them (dnf).

The same content as in the .deb. Maintainer scripts are written for Debian's arguments; an rpm's scriptlets set those
before the script's own lines.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_ami.errors import CloudError
from gpu_ami.process import find_tool, run
from localregion.mirror import staging
from localregion.mirror.signing import Gpg
from localregion.mirror.table import SOURCE_DATE_EPOCH, Package

VENDOR = "gpu-ami replica"
_MACROS = {
    "debug_package": "%{nil}",
    "__os_install_post": "%{nil}",
    "__brp_mangle_shebangs": "%{nil}",
    "_build_id_links": "none",
    "_binary_payload": "w1.gzdio",
    "_buildhost": "localhost",
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
    "source_date_epoch_from_changelog": "0",
    "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
}
# rpm passes the number of versions that remain; Debian's scripts expect the name of the action.
_SCRIPTLETS = {
    "preinst": ("pre", 'if [ "$1" -gt 1 ]; then set -- upgrade; else set -- install; fi'),
    "postinst": ("post", 'if [ "$1" -gt 1 ]; then set -- configure previous; else set -- configure; fi'),
    "prerm": ("preun", 'if [ "$1" -gt 0 ]; then set -- upgrade; else set -- remove; fi'),
    "postrm": ("postun", 'if [ "$1" -gt 0 ]; then set -- upgrade; else set -- remove; fi'),
}
_RELATIONS: Mapping[str, staging.Relation] = {"Requires": "depends", "Provides": "provides", "Conflicts": "conflicts"}
# Folders of the system; a package owns all its other folders, and they are removed with it.
_SYSTEM = """
etc etc/bash_completion.d etc/default etc/dnf etc/dnf/dnf.conf.d etc/ld.so.conf.d etc/logrotate.d etc/modprobe.d
etc/modules-load.d etc/profile.d etc/security etc/security/limits.d etc/sudoers.d etc/sysctl.d etc/systemd
etc/systemd/system etc/udev etc/udev/rules.d etc/yum.repos.d lib lib/modules opt run srv usr usr/bin usr/include usr/lib
usr/lib/dracut usr/lib/dracut/dracut.conf.d usr/lib/modprobe.d usr/lib/modules usr/lib/modules-load.d usr/lib/pkgconfig
usr/lib/systemd usr/lib/systemd/system usr/lib/systemd/system-preset usr/lib/sysctl.d usr/lib/tmpfiles.d usr/lib/udev
usr/lib/udev/rules.d usr/lib64 usr/lib64/pkgconfig usr/libexec usr/local usr/local/bin usr/local/include usr/local/lib
usr/local/sbin usr/sbin usr/share usr/share/doc usr/share/licenses usr/share/man usr/share/man/man1 usr/share/man/man8
usr/src var var/cache var/lib var/log var/run
"""
_SYSTEM_FOLDERS = frozenset(_SYSTEM.split())


def build(package: Package, into: Path, downloads: Path | None = None) -> Path:
    """Builds one package with rpmbuild, unsigned; the .rpm's path."""
    rpm = into / package.file_name
    with tempfile.TemporaryDirectory(dir=into, prefix="rpm-") as name:
        work = Path(name).absolute()
        tree = work / "tree"
        tree.mkdir()
        staging.stage(package.row, package.values, tree, package.architecture, downloads)
        spec = work / "replica.spec"
        spec.write_text(_spec(package, tree), encoding="utf-8")
        macros = _MACROS | {"_topdir": str(work / "top"), "_rpmdir": str(work / "out"), "_dbpath": str(work / "db")}
        defined = [word for key, value in macros.items() for word in ("--define", f"{key} {value}")]
        rpmbuild = [find_tool("rpmbuild", package="rpm"), "-bb", "--quiet", "--target", package.machine]
        environment = {"SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH), "HOME": str(work)}
        run([*rpmbuild, *defined, spec], timeout=staging.PACKING_SECONDS, env=environment, error=CloudError)
        (work / "out" / package.file_name).rename(rpm)
    return rpm


def _spec(package: Package, tree: Path) -> str:
    summary, lines = staging.description(package)
    head = {
        "Name": package.name,
        "Epoch": package.epoch,
        "Version": package.version,
        "Release": package.release,
        "Summary": summary,
        "License": "Apache-2.0",
        "Vendor": VENDOR,
        "URL": package.row.documentation.partition(" ")[0],
        "AutoReqProv": "no",
    }
    rows = [f"{key}: {_escaped(value)}" for key, value in head.items() if value]
    for tag, key in _RELATIONS.items():
        rows += [f"{tag}: {_escaped(item)}" for item in staging.relations(package, key)]
    rows += ["%description", *map(_escaped, lines)]
    rows += ["%install", "mkdir -p %{buildroot}", f"cp -a {tree}/. %{{buildroot}}/"]
    rows += _scriptlets(package)
    return "\n".join([*rows, "%files", "%defattr(-,root,root,-)", *_files(package, tree), ""])


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _scriptlets(package: Package) -> list[str]:
    texts = staging.scripts(package)
    libraries = bool(package.row.entry.get("libraries"))
    rows = []
    for script, (scriptlet, arguments) in _SCRIPTLETS.items():
        body = [arguments, texts[script]] if script in texts else []
        # rpm has no ldconfig trigger outside glibc's own file list.
        first = ["/sbin/ldconfig"] if libraries and scriptlet in ("post", "postun") else []
        if first or body:
            rows += [f"%{scriptlet}", *map(_escaped, [*first, *body])]
    return rows


def _files(package: Package, tree: Path) -> list[str]:
    kept = {package.fill(path) for path in package.row.entry.get("conffiles", ())}
    rows = []
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree).as_posix()
        if path.is_symlink() or path.is_file():
            rows.append(f'{"%config(noreplace) " if name in kept else ""}"/{_escaped(name)}"')
        elif name not in _SYSTEM_FOLDERS:
            rows.append(f'%dir "/{_escaped(name)}"')
    return rows


def sign(rpms: Sequence[Path], gpg: Gpg) -> None:
    """Signs packages in place (header and payload), all with one call."""
    if not rpms:
        return
    macros = {"_gpg_name": gpg.fingerprint, "_gpg_path": str(gpg.home), "__gpg": gpg.command[0]}
    defined = [word for key, value in macros.items() for word in ("--define", f"{key} {value}")]
    rpmsign = find_tool("rpmsign", package="rpm")
    run([rpmsign, "--addsign", *defined, *rpms], timeout=300, env={"GNUPGHOME": str(gpg.home)}, error=CloudError)


def write_repository(folder: Path, gpg: Gpg) -> None:
    """Index and signature for the .rpms in `folder`: repodata/repomd.xml and repomd.xml.asc."""
    createrepo = find_tool("createrepo_c", package="createrepo-c")
    stamp = ["--revision", str(SOURCE_DATE_EPOCH), "--set-timestamp-to-revision"]
    form = ["--no-database", "--simple-md-filenames", "--general-compress-type=gz", "--workers=2"]
    run([createrepo, "--quiet", *stamp, *form, folder], timeout=staging.PACKING_SECONDS, error=CloudError)
    index = folder / "repodata" / "repomd.xml"
    gpg.sign(index, index.with_name("repomd.xml.asc"), armor=True)
