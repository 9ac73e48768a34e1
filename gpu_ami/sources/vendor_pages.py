"""Changelogs, listings and pages of vendors: what they say that the facts do not.

Each reader is of one row of `variables/facts/sources.yml`, which has its address (`url`) and the newest release that
was looked at (`seen`). Whatever has another form than is expected is an error, and then nothing of that source counts:
a login page, an empty listing, a page that was moved and rewritten.
"""

from __future__ import annotations

import contextlib
import datetime
import html
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

from gpu_ami.recipes import Facts
from gpu_ami.recipes.facts import tables
from gpu_ami.sources.http import Client, SourceError
from gpu_ami.sources.releases import read_tags

_LIMIT = 16 << 20
_SEVERITIES = ("LOW", "MEDIUM", "HIGH", "CRITICAL")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


@dataclass(frozen=True)
class News:
    """text: for a person. With a table: the row below `path`, or, with a key, the key of that row, gets the value.

    seen: the newest release that the source has, for its row in sources.yml.
    """

    text: str
    table: str = ""
    path: tuple[str, ...] = ()
    value: Mapping[str, Any] | str = ""
    key: str = ""
    by_hand: bool = False
    seen: str = ""


@dataclass(frozen=True)
class Asked:
    """What a reader needs: the row of sources.yml, and the facts. today: ISO date of new rows."""

    client: Client
    facts: Facts
    row: Mapping[str, Any]
    today: str

    def page(self, url: str = "") -> str:
        """A page, changelog or listing, as text."""
        address = url or str(self.row["url"])
        data = self.client.get(address, limit=_LIMIT, page=True)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(f"{address}: expected text in UTF-8: {error}") from error
        if not text.strip():
            raise SourceError(f"{address}: expected a page, got an empty one")
        return re.sub(r"(?![0-9])\d", "\N{REPLACEMENT CHARACTER}", text)  # other scripts' digits are in no version

    def sourced(self, row: Mapping[str, Any], source: str) -> dict[str, Any]:
        """A row with its source and date."""
        return {**row, "source": source, "date": self.today}

    def is_new(self, release: str) -> bool:
        """Whether a release is newer than the newest that was looked at."""
        return tables.parts(release) > tables.parts(str(self.row["seen"]))


def unexpected(url: str, expected: str, text: str) -> SourceError:
    """The page is another one; its title says which."""
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    shown = " ".join(html.unescape(title[1]).split()) if title else ""
    got = f"a page with the title {shown!r}" if shown else repr(text.strip()[:60])
    return SourceError(f"{url}: expected {expected}, got {got}; was it moved, or is a login page in between?")


class _Rows(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._is_cell = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        self._is_cell = self._is_cell or tag in ("td", "th")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "table"):
            self._is_cell = False

    def handle_data(self, data: str) -> None:
        if self._is_cell and self.rows and self.rows[-1]:
            self.rows[-1][-1] = " ".join(f"{self.rows[-1][-1]} {data}".split())


def table_rows(text: str) -> list[list[str]]:
    """The cells of every row of the tables of an HTML page, or of a Markdown page."""
    parser = _Rows()
    parser.feed(text)
    marked = [line.strip().strip("|").split("|") for line in text.splitlines() if line.lstrip().startswith("|")]
    cells = [[cell.strip().replace("\\", "") for cell in row] for row in marked]
    return [row for row in [*parser.rows, *cells] if row]


def eks_amis(asked: Asked) -> Iterator[News]:
    """The newest release of EKS's AMIs in their changelog: Kubernetes versions and kernels."""
    url, text = str(asked.row["url"]), asked.page()
    parts = re.split(r"^# AMI Release (v\d{8})\s*$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if not sections:
        raise unexpected(url, "a changelog with `# AMI Release v…`", text)
    release = max(sections, key=tables.parts)
    kernels = _eks_kernels(sections[release])
    if not kernels:
        raise SourceError(f"{url}: expected the source AMIs of {release} with their Kubernetes versions")
    source = f"{url} ({release})"
    family = asked.facts.node_families["eks"]
    for version, kernel in sorted(kernels.items(), key=lambda item: tables.parts(item[0])):
        known = family["versions"].get(version)
        if known is None and version not in family.get("ended_versions", {}):
            row = asked.sourced({"kernel": kernel}, source)
            yield News(f"EKS {version}: kernel {kernel}", "node_families", ("eks", "versions", version), row)
        elif known is not None and known["kernel"] != kernel:
            yield News(f"EKS {version}: the AMIs boot kernel {kernel}, and the facts have {known['kernel']}: {source}")
    for version, row in family["versions"].items():
        if version not in kernels and str(row.get("ended", "9999")) > asked.today:
            yield News(f"EKS {version}: release {release} has no AMI of it: {source}")
    if asked.is_new(release):
        yield News(f"EKS AMI release {release}, newer than {asked.row['seen']}: {url}", seen=release)


def _eks_kernels(section: str) -> dict[str, str]:
    """Kubernetes version → kernel series of the standard AMIs, by the table of source AMIs."""
    rows = table_rows(section)
    head = next((row for row in rows if any("K8s" in cell for cell in row)), [])
    standard = next((row for row in rows if row[0].endswith("x86_64_STANDARD") and len(row) == len(head)), [])
    kernels: dict[str, str] = {}
    for title, image in zip(head[1:], standard[1:], strict=False):  # no row of the AMIs: the caller says so
        minors = [int(minor) for minor in re.findall(r"1\.(\d+)", title)]
        kernel = re.search(r"kernel-(\d+\.\d+)", image)
        if minors and kernel:
            kernels |= {f"1.{minor}": kernel[1] for minor in range(min(minors), max(minors) + 1)}
    return kernels


def ecs_amis(asked: Asked) -> Iterator[News]:
    """The newest release of ECS's AMIs in their changelog."""
    url, text = str(asked.row["url"]), asked.page()
    parts = re.split(r"^## (20\d{6})\s*$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if not sections:
        raise unexpected(url, "a changelog with `## YYYYMMDD`", text)
    release = max(sections)
    if asked.is_new(release):
        lines = [line.strip("- ") for line in sections[release].splitlines() if line.startswith("- ")]
        told = "; ".join(line for line in lines if not line.startswith("source al2"))
        yield News(f"ECS AMI release {release}, newer than {asked.row['seen']} ({told}): {url}", seen=release)


def parallelcluster(asked: Asked) -> Iterator[News]:
    """Releases of ParallelCluster that have a tag; driver and EFA by the changelog, of it or of a release before it."""
    url, family = str(asked.row["url"]), asked.facts.node_families["parallelcluster"]
    tagged = read_tags(asked.client, str(asked.row["tags"]))
    known = {*family["versions"], *family.get("released", {})}
    found = {tag.removeprefix("v") for tag in tagged if re.fullmatch(r"v\d+\.\d+\.\d+", tag)}
    if not found:
        raise SourceError(f"{asked.row['tags']}: expected tags like v3.16.3")
    newest = max(known, key=tables.parts)
    for version in sorted(known - found, key=tables.parts):
        yield News(f"ParallelCluster {version}: withdrawn, no tag v{version}: {asked.row['tags']}")
    new = sorted((one for one in found if tables.parts(one) > tables.parts(newest)), key=tables.parts)
    if not new:
        return
    text = asked.page()
    parts = re.split(r"^(\d+\.\d+\.\d+)\n-+\s*$", text, flags=re.MULTILINE)
    sections: dict[str, str] = {}
    for number, section in zip(parts[1::2], parts[2::2], strict=True):
        sections[number] = sections.get(number, "") + section
    if not sections:
        raise unexpected(url, "ParallelCluster's changelog", text)
    for version in new:
        older = [one for one in sections if tables.parts(one) <= tables.parts(version)]
        order = sorted(older, key=tables.parts, reverse=True)
        driver = _first(r"NVIDIA driver to (?:version )?`?(\d+\.\d+\.\d+)", (sections[one] for one in order))
        efa = _first(r"EFA installer to (?:version )?`?(\d+\.\d+\.\d+)", (sections[one] for one in order))
        source = f"{url} ({version})"
        lacking = [
            f"{name} {value or 'not named'}"
            for name, value in (("nvidia_driver", driver), ("efa", efa))
            if value not in asked.facts.releases(name)
        ]
        if version not in sections or lacking:
            reason = f"not in the facts: {', '.join(lacking)}" if lacking else "the changelog does not have it"
            yield News(f"ParallelCluster {version}: what its AMIs have: {reason}: {source}", by_hand=True)
            continue
        provides = {"nvidia_driver": driver, "fabric_manager": driver, "imex": driver, "efa": efa}
        path = ("parallelcluster", "versions", version)
        row = asked.sourced({"provides": provides}, source)
        yield News(f"ParallelCluster {version}", "node_families", path, row)


def _first(pattern: str, texts: Iterable[str]) -> str:
    return next((found[1] for text in texts if (found := re.search(pattern, text))), "")


_DLAMI_PAGE = re.compile(r"aws-deep-learning-ami-gpubaseoss(?:arm64)?-(?:al2023|ul\d{4})-20\d\d-\d\d-\d\d")
_DLAMI_KEYS = {
    "nvidia_driver": "nvidia_driver",
    "default_cuda": "cuda",
    "efa_version": "efa",
    "ofi_nccl_version": "ofi_nccl",
    "dcgm_version": "dcgm",
    "nvidia_container_toolkit_version": "container_toolkit",
}


def dlami(asked: Asked) -> Iterator[News]:
    """Release notes of the Base OSS AMIs that are newer than the known ones: what each release has."""
    url, text = str(asked.row["url"]), asked.page()
    names = {*_DLAMI_PAGE.findall(text)}
    below = {*re.findall(r"""href=["'](?:\./)?(aws-deep-learning-[\w-]*base[\w-]*)\.html""", text)} if not names else ()
    for page in sorted(below):
        names |= {*_DLAMI_PAGE.findall(asked.page(_beside(url, f"{page}.html")))}
    if not names:
        raise unexpected(url, "a list of release notes (aws-deep-learning-ami-gpubaseoss…-YYYY-MM-DD)", text)
    known = asked.facts.node_families["dlami"]["versions"]
    newest = max(known)
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name in sorted(names):
        if name[-10:].replace("-", "") >= newest:
            release, provides = _dlami_page(asked, _beside(url, f"{name}.html"))
            found.setdefault(release, {})[name] = provides
    for release in sorted(release for release in found if release > newest):
        pages = found[release]
        provides = next(iter(pages.values()))
        source = f"release notes of Deep Learning AMIs ({', '.join(sorted(pages))})"
        lacking = [
            f"{name} {value}" for name, value in provides.items() if value not in asked.facts.releases(name)
        ]  # fmt: skip
        if len({tuple(sorted(one.items())) for one in pages.values()}) > 1:
            yield News(f"DLAMI {release}: its systems have different versions: {source}", by_hand=True)
        elif lacking or len(provides) < len(_DLAMI_KEYS):
            absent = sorted({*_DLAMI_KEYS.values()} - {*provides})
            reason = f"not in the facts: {', '.join(lacking)}" if lacking else f"not named: {', '.join(absent)}"
            yield News(f"DLAMI {release}: {reason}: {source}", by_hand=True)
        else:
            row = asked.sourced({"provides": provides}, source)
            yield News(f"DLAMI {release}", "node_families", ("dlami", "versions", release), row)


def _dlami_page(asked: Asked, url: str) -> tuple[str, dict[str, str]]:
    """The release in the title of the AMI, and versions of its components."""
    text = asked.page(url)
    rows = {row[0]: row[1] for row in table_rows(text) if len(row) >= 2}
    release = re.search(r"AMI \([^)]*\) (20\d{6})", " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split()))
    if not release or "nvidia_driver" not in rows:
        raise unexpected(url, "release notes with nvidia_driver and a date", text)
    versions = {name: re.search(r"\d+(?:\.\d+)+", rows[key]) for key, name in _DLAMI_KEYS.items() if key in rows}
    return release[1], {name: version[0] for name, version in versions.items() if version}


def _beside(url: str, name: str) -> str:
    return f"{url.rpartition('/')[0]}/{name}"


def kubernetes_support(asked: Asked) -> Iterator[News]:
    """Ends of extended support of EKS's Kubernetes versions."""
    url, text = str(asked.row["url"]), asked.page()
    ends = {}
    for row in table_rows(text):
        version, dates = re.fullmatch(r"1\.\d+", row[0].strip("` ")), [_date(cell) for cell in row[1:]]
        if version and len(dates) >= 4 and dates[-1]:
            ends[version[0]] = dates[-1]
    if not ends:
        raise unexpected(url, "the calendar of Kubernetes releases", text)
    for version, row in asked.facts.node_families["eks"]["versions"].items():
        end = ends.get(version)
        if end and end != row.get("ended"):
            path = ("eks", "versions", version)
            yield News(f"EKS {version}: extended support until {end}: {url}", "node_families", path, end, "ended")
        if end and end < asked.today:
            yield News(f"EKS {version}: extended support ended on {end}: {url}")


def _date(text: str) -> str:
    """`July 29, 2027` as ISO; "" where it is no date."""
    found = re.fullmatch(r"([A-Z][a-z]+) (\d{1,2}), (20\d\d)", text.strip())
    if not found or found[1] not in _MONTHS:
        return ""
    with contextlib.suppress(ValueError):  # 30 February
        return datetime.date(int(found[3]), _MONTHS.index(found[1]) + 1, int(found[2])).isoformat()
    return ""


def grid_drivers(asked: Asked) -> Iterator[News]:
    """The bucket's anonymous listing: installers and their folders."""
    url, facts = str(asked.row["url"]), asked.facts.grid_drivers
    pattern = re.escape(str(facts["file"])).replace(re.escape("{version}"), f"({_DRIVER.pattern})")
    folders: dict[str, list[str]] = {}
    for key in _listed(asked, url):
        folder, _, name = key.rpartition("/")
        if found := re.fullmatch(pattern, name):
            folders.setdefault(found[1], []).append(folder)
    if not folders:
        raise SourceError(f"{url}: expected installers like {facts['file']}, got none")
    oldest = min(facts["releases"], key=tables.parts)
    for version in sorted(folders, key=tables.parts):
        dated = [folder for folder in folders[version] if re.fullmatch(r"grid-\d+\.\d+", folder)]
        if version in facts["releases"] or tables.parts(version) < tables.parts(oldest):
            continue
        if not dated:
            where = ", ".join(folders[version])
            yield News(f"GRID {version}: in {where} alone, which moves: {url}", by_hand=True)
            continue
        folder = max(dated, key=tables.parts)
        row = asked.sourced({"vgpu": folder.removeprefix("grid-"), "folder": folder}, f"{url} ({folder}/)")
        yield News(f"GRID {version}: {folder}", "grid_drivers", ("releases", version), row)
    for version, row in facts["releases"].items():
        if row["folder"] not in folders.get(version, ()):
            yield News(f"GRID {version}: withdrawn, {row['folder']} does not have it: {url}")


def _listed(asked: Asked, url: str) -> Iterator[str]:
    """Keys of a bucket, page by page (ListObjectsV2)."""
    token, pages = "", 0
    while pages < 50:
        address = url + (f"&continuation-token={token}" if token else "")
        text = asked.page(address)
        try:
            root = ElementTree.fromstring(text)
        except ElementTree.ParseError as error:
            raise unexpected(address, "a bucket's listing (XML)", text) from error
        if not root.tag.endswith("ListBucketResult"):
            raise unexpected(address, "ListBucketResult", text)
        space = root.tag.removesuffix("ListBucketResult")
        yield from (str(key.text) for key in root.iter(f"{space}Key"))
        token, pages = root.findtext(f"{space}NextContinuationToken") or "", pages + 1
        if root.findtext(f"{space}IsTruncated") != "true":
            return
        if not token:
            break
    raise SourceError(f"{url}: the listing is cut off")


def advisories(asked: Asked) -> Iterator[News]:
    """NVIDIA's bulletins of this year and the last that are newer than the newest that was looked at."""
    root, seen = str(asked.row["url"]), str(asked.row["seen"])
    year = int(asked.today[:4])
    found: dict[str, int] = {}
    for each in (year - 1, year):
        listed = _json(asked, f"{root}/{each}")
        if not isinstance(listed, list) or not all(isinstance(one, dict) and "name" in one for one in listed):
            raise SourceError(f"{root}/{each}: expected a list of files of the repository")
        found |= {str(one["name"]): each for one in listed if re.fullmatch(r"\d{4,6}", str(one["name"]))}
    if not found:
        raise SourceError(f"{root}: expected folders of bulletins, got none")
    new = sorted((number for number in found if int(number) > int(seen)), key=int)
    for number in new:
        folder = f"{asked.row['files']}/{found[number]}/{number}"
        document = _json(asked, f"{folder}/{number}.json")
        yield from _advisory(asked, number, document, f"{folder}/{number}.json")
    if new:
        yield News(f"NVIDIA security bulletins up to {new[-1]}", seen=new[-1])


def _json(asked: Asked, url: str) -> Any:
    text = asked.page(url)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unexpected(url, "JSON", text) from error


def _advisory(asked: Asked, number: str, document: Any, url: str) -> Iterator[News]:
    try:
        title = str(document["document"]["title"])
        rows = bulletin(document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SourceError(f"{url}: expected a bulletin in CSAF: {error!r}") from error
    for row in rows:
        source = f"{url} ({title.partition(': ')[2] or title})"
        path = ("rows", f"nvidia-{number}")
        yield News(f"{title} ({row['cve']})", "advisories", path, asked.sourced(row, source))
    if not rows and re.search(r"CUDA Toolkit|DCGM|Fabric|NCCL|cuDNN|Container", title):
        yield News(f"{title}: which versions have the fix: {url}", by_hand=True)


_FIXED_DRIVER = re.compile(r"linuxr(\d+)_tesla_(\d+_\d+(?:_\d+)?)")
_FIXED_TOOLKIT = re.compile(r"(?:linux|all)_nvidia_container_toolkit_(\d+_\d+_\d+)")


def bulletin(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of advisories.yml of a bulletin in CSAF: of the driver for data center GPUs on Linux, and of the toolkit.

    The CVE is the gravest one that has a fix there; a branch's fix is the newest of all its CVEs.
    """
    rows = []
    for component, pattern in (("nvidia_driver", _FIXED_DRIVER), ("container_toolkit", _FIXED_TOOLKIT)):
        gravest = (-1.0, "", "")
        fixed: dict[str, str] = {}
        for each in document["vulnerabilities"]:
            products = [pattern.fullmatch(str(name)) for name in each["product_status"].get("fixed", ())]
            versions = [match.groups()[-1].replace("_", ".") for match in products if match]
            if component == "nvidia_driver" and (odd := [one for one in versions if not _DRIVER.fullmatch(one)]):
                raise ValueError(f"not a driver: {odd[0]!r}")
            for version in versions:
                key = tables.branch(version)
                fixed[key] = max(fixed.get(key, version), version, key=tables.parts)
            for score in each.get("scores", ()) if versions else ():
                base = score["cvss_v3"]
                if not re.fullmatch(r"CVE-20\d\d-\d+", cve := str(each["cve"])):
                    raise ValueError(f"not a CVE: {cve!r}")
                gravest = max(gravest, (float(base["baseScore"]), cve, str(base["baseSeverity"])))
        if fixed and gravest[2] in _SEVERITIES:
            rows.append(
                {
                    "component": component,
                    "fixed": dict(sorted(fixed.items())),
                    "cve": gravest[1],
                    "severity": gravest[2].lower(),
                }
            )
    return rows


def cuda_drivers(asked: Asked) -> dict[str, str]:
    """CUDA release → the driver that its newest update is made for, by the table of the release notes."""
    url, text = str(asked.row["url"]), asked.page()
    found: dict[str, tuple[int, str]] = {}
    for row in table_rows(text):
        named = re.match(r"CUDA (\d+\.\d+)(?:\.\d+)?(?: Update (\d+))?(?: GA)?\b", row[0])
        driver = re.match(r"(?:>=|≥)\s*(\d+(?:\.\d+)+)", row[1]) if len(row) > 1 else None
        if named and driver:
            update = int(named[2] or 0)
            found[named[1]] = max(found.get(named[1], (-1, "")), (update, driver[1]))
    if not found:
        raise unexpected(url, "the table of CUDA toolkits and their drivers", text)
    return {release: driver for release, (_, driver) in found.items()}


_DRIVER = re.compile(r"[0-9]{3}\.[0-9]{2,3}(?:\.[0-9]{2})?")
_KINDS = {"lts branch": "LTSB", "production branch": "PB", "new feature branch": "NFB"}
_DESIGNATIONS = {
    "Long Term Support Branch": "LTSB",
    "Production Branch": "PB",
    "New Feature Branch": "NFB",
}


def driver_branches(asked: Asked, cuda: Mapping[str, str]) -> Iterator[News]:
    """Branches and releases of releases.json; kind and end of support by the matrix. cuda: of cuda_drivers."""
    url, known = str(asked.row["url"]), asked.facts.nvidia_drivers["branches"]
    listed = _json(asked, url)
    try:
        listing = {str(name): (str(one["type"]), _linux_releases(str(name), one)) for name, one in listed.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{url}: expected branches with their drivers (driver_info): {error!r}") from error
    if not any(releases for _, releases in listing.values()):
        raise SourceError(f"{url}: expected driver releases, got none")
    ends = _matrix(asked)
    oldest = min(known, key=int)
    listing = {name: row for name, row in listing.items() if tables.parts(name) >= tables.parts(oldest)}
    drivers = [release for _, releases in listing.values() for release in releases]
    if odd := [release for release in drivers if not _DRIVER.fullmatch(release)]:
        raise SourceError(f"{url}: expected drivers like {known[oldest]['releases'][-1]}, got {odd[0]!r}")
    for name, (kind, releases) in sorted(listing.items(), key=lambda item: tables.parts(item[0])):
        if not releases:
            continue
        designation, end = ends.get(name, (_KINDS.get(kind.lower(), ""), ""))
        if name in known:
            yield from _known_branch(name, known[name], releases, end, url)
            continue
        highest = [one for one, driver in cuda.items() if tables.branch(driver) == name]
        lacking = [
            text
            for text, value in (("kind", designation), ("end of support", end), ("highest CUDA", highest))
            if not value
        ]
        if lacking:
            yield News(f"driver branch {name} ({releases[-1]}): {', '.join(lacking)}: {url}", by_hand=True)
            continue
        row = {
            "kind": designation,
            "end_of_support": end,
            "highest_cuda": max(highest, key=tables.parts),
            "flavours": list(known[max(known, key=int)]["flavours"]),
            "releases": releases,
        }
        source = f"{url}; {asked.row['matrix']}; CUDA release notes"
        yield News(f"driver branch {name}", "nvidia_drivers", ("branches", name), asked.sourced(row, source))


def _linux_releases(name: str, branch: Mapping[str, Any]) -> list[str]:
    """Without those for Windows, whose numbers are of other branches."""
    releases = {str(one["release_version"]) for one in branch["driver_info"]}
    return sorted((one for one in releases if tables.branch(one) == name), key=tables.parts)


def _known_branch(name: str, row: Mapping[str, Any], releases: Sequence[str], end: str, url: str) -> Iterator[News]:
    newer = [one for one in releases if tables.parts(one) > tables.parts(row["releases"][-1])]
    for release in newer:
        yield News(url, "nvidia_drivers", ("branches", name), release, "releases")
    if end and end != row["end_of_support"]:
        text = f"driver branch {name}: support until {end}, and the facts have {row['end_of_support']}: {url}"
        yield News(text, "nvidia_drivers", ("branches", name), end, "end_of_support")


def _matrix(asked: Asked) -> dict[str, tuple[str, str]]:
    """Branch → kind and end of support (year and month), by the matrix of supported drivers."""
    url = str(asked.row["matrix"])
    text = asked.page(url)
    rows = table_rows(text)
    heads = [row for row in rows if sum(bool(re.fullmatch(r"R\d{3}", cell)) for cell in row) >= 2]
    if not heads:
        raise unexpected(url, "the matrix of driver branches", text)
    names = [cell.removeprefix("R") for cell in heads[0] if re.fullmatch(r"R\d{3}", cell)]
    by_title = {row[0]: row[1:] for row in rows if len(row) == len(names) + 1}
    kinds, ends = (by_title.get(title, []) for title in ("Branch Designation", "End of Life"))
    if not kinds or not ends:
        raise unexpected(url, "rows `Branch Designation` and `End of Life`", text)
    return {
        name: (_DESIGNATIONS.get(kind, ""), _month(end)) for name, kind, end in zip(names, kinds, ends, strict=True)
    }


def _month(text: str) -> str:
    found = re.fullmatch(r"([A-Z][a-z]+) (20\d\d)", text.strip())
    return f"{found[2]}-{_MONTHS.index(found[1]) + 1:02}" if found and found[1] in _MONTHS else ""


# Row of sources.yml → its reader. What driver branches need of the CUDA release notes: refresh.py.
READERS: Mapping[str, Callable[[Asked], Iterator[News]]] = {
    "eks_amis": eks_amis,
    "ecs_amis": ecs_amis,
    "parallelcluster": parallelcluster,
    "dlami": dlami,
    "kubernetes_support": kubernetes_support,
    "grid_drivers": grid_drivers,
    "advisories": advisories,
}
