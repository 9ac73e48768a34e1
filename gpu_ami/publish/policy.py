"""The release policy (`publish.yml`): where an image is published, who may use it, and how long it stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpu_ami.cloud import place
from gpu_ami.errors import UsageError, counted
from gpu_ami.files import lines_of, located, read_yaml
from validator.schema import Flag, Integer, Keys, Kind, ListOf, MapOf, Mistake, Text, key_path

DEFAULT_FILE = "publish.yml"
LATEST = "latest"
# EC2 API reference, EnableImageDeprecation: at most 10 years from now, of a public AMI 2 years from its creation.
_MOST_DAYS, _MOST_DAYS_PUBLIC = 3650, 730
_ARN = r"arn:aws[a-z-]*:organizations::\d{12}:(organization/o-[a-z0-9]{10,32}|ou/o-[a-z0-9]{10,32}/ou-[a-z0-9-]{8,68})"
# SSM user guide, "Creating parameter names": a name may not begin with aws or ssm, and has at most 15 levels.
_PREFIX = r"/(?!(?i:aws|ssm))[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+){0,12}"
_KEYS: Mapping[str, Kind] = MappingProxyType(
    {
        "regions": ListOf(
            Keys(
                {
                    "region": Text("eu-central-1", place.REGION_PATTERN),
                    "kms_key": Text(
                        "alias/images or a key's ARN", r"(alias/|arn:aws[a-z-]*:kms:|mrk-|[0-9a-f]{8}-)\S+"
                    ),
                },
                needed=("region",),
            )
        ),
        "share": Keys(
            {
                "accounts": ListOf(Text('"111122223333"', r"\d{12}")),
                "organizations": ListOf(Text("arn:aws:organizations::111122223333:organization/o-a1b2c3d4e5", _ARN)),
                "public": Flag(),
            }
        ),
        "ssm": Keys({"prefix": Text("/images/debian12-gpu", _PREFIX)}, needed=("prefix",)),
        "deprecate_after": Integer(1, _MOST_DAYS, "days"),
        "deregistration_protection": Flag(),
        "keep": Integer(1, 1000, "images"),
        "retire_after": Integer(1, _MOST_DAYS, "days"),
    }
)
IMAGES = "images"
_GRAMMAR = Keys({**_KEYS, IMAGES: MapOf(r"[A-Za-z0-9][\w.-]*", "debian12-gpu", Keys(_KEYS))}, needed=("regions",))


@dataclass(frozen=True)
class RegionPolicy:
    """A region of the policy. kms_key: key, alias or ARN that a copy there is encrypted with; "" for none."""

    region: str
    kms_key: str = ""


@dataclass(frozen=True)
class ReleasePolicy:
    """accounts, organizations: whom the AMI is shared with. prefix: of the SSM parameters, "" for none.

    deprecate_after: days from the publication, 0 for never. keep: newest images that are never retired, 0 keeps all;
    an older one is deprecated at once, and deregistered retire_after days later if nothing uses it.
    """

    regions: tuple[RegionPolicy, ...]
    accounts: tuple[str, ...] = ()
    organizations: tuple[str, ...] = ()
    public: bool = False
    prefix: str = ""
    deprecate_after: int = 0
    deregistration_protection: bool = False
    keep: int = 0
    retire_after: int = 30

    @property
    def is_shared(self) -> bool:
        return bool(self.accounts or self.organizations or self.public)

    @property
    def latest(self) -> str:
        """Name of the parameter that consumers read; "" where the policy has none."""
        return f"{self.prefix}/{LATEST}" if self.prefix else ""

    def pinned(self, version: str) -> str:
        """Name of the parameter of one version; "" where the policy has none."""
        return f"{self.prefix}/{version}" if self.prefix else ""


def load_policy(path: Path, image: str = "") -> ReleasePolicy:
    """Reads a release policy (YAML): that of an image, by its recipe's name; "" for the common keys.

    UsageError names every mistake with its key path, those of other images too.
    """
    document = read_yaml(path, "--policy takes a YAML file; see docs/release.md")
    lines = lines_of(path)
    mistakes = [
        f"{located(path.name, lines, mistake.path)}: {mistake.path}: {mistake.message}"
        for mistake in _mistakes(document)
    ]
    if mistakes:
        hint = f"a release policy has the keys {', '.join(_GRAMMAR.keys)} (docs/release.md)"
        raise UsageError(f"{path}: {counted(len(mistakes), 'mistake')}", details=mistakes, hint=hint)
    return _policy(_merged(document, image))


def _merged(document: dict[str, Any], image: str) -> dict[str, Any]:
    """The keys that hold for an image: its own, each in place of the common one."""
    common = {key: value for key, value in document.items() if key != IMAGES}
    own: dict[str, Any] = document.get(IMAGES, {}).get(image, {})
    return common | own


def _policy(document: dict[str, Any]) -> ReleasePolicy:
    share, ssm = document.get("share", {}), document.get("ssm", {})
    return ReleasePolicy(
        regions=tuple(RegionPolicy(row["region"], row.get("kms_key", "")) for row in document["regions"]),
        accounts=tuple(share.get("accounts", ())),
        organizations=tuple(share.get("organizations", ())),
        public=share.get("public", False),
        prefix=ssm.get("prefix", ""),
        deprecate_after=document.get("deprecate_after", 0),
        deregistration_protection=document.get("deregistration_protection", False),
        keep=document.get("keep", 0),
        retire_after=document.get("retire_after", 30),
    )


def _mistakes(document: Any) -> Iterator[Mistake]:
    yield from _GRAMMAR.check(document, "")
    yield from _GRAMMAR.missing(document)
    if not isinstance(document, dict):
        return
    common = list(_common_mistakes(document))
    yield from common
    images = document.get(IMAGES)
    for name, own in images.items() if isinstance(images, dict) else ():
        if isinstance(own, dict):
            yield from _image_mistakes(document, str(name), common)
    yield from _prefix_mistakes(document)


def _image_mistakes(document: dict[str, Any], name: str, common: list[Mistake]) -> Iterator[Mistake]:
    """What is wrong with the keys of one image together, and is not wrong without them."""
    merged = _merged(document, name)
    known = {(mistake.path, mistake.message) for mistake in (*common, *_GRAMMAR.missing(document))}
    for mistake in (*_GRAMMAR.missing(merged), *_common_mistakes(merged)):
        if (mistake.path, mistake.message) not in known:
            yield Mistake(f"{key_path(IMAGES, name)}.{mistake.path}", mistake.message)


def _prefix_mistakes(document: dict[str, Any]) -> Iterator[Mistake]:
    """Two images with one prefix would take PREFIX/latest from each other."""
    images = document.get(IMAGES)
    seen: dict[str, str] = {}
    for name, own in images.items() if isinstance(images, dict) else ():
        ssm = own.get("ssm") if isinstance(own, dict) else None
        prefix = ssm.get("prefix") if isinstance(ssm, dict) else None
        if isinstance(prefix, str) and prefix in seen:
            text = f"{prefix!r} is also that of {seen[prefix]}: {LATEST} would name either image"
            yield Mistake(f"{IMAGES}.{name}.ssm.prefix", text)
        elif isinstance(prefix, str):
            seen[prefix] = str(name)


def _common_mistakes(document: dict[str, Any]) -> Iterator[Mistake]:
    """What is wrong with keys together."""
    regions = document.get("regions")
    if isinstance(regions, list):
        yield from _region_mistakes(regions)
    share = document.get("share")
    if isinstance(share, dict) and share.get("public") is True:
        yield from _public_mistakes(document, regions if isinstance(regions, list) else [])
    if "retire_after" in document and "keep" not in document:
        yield Mistake("retire_after", "expected keep beside it, got none: without keep, no image is retired")


def _region_mistakes(regions: list[Any]) -> Iterator[Mistake]:
    names = [row.get("region") if isinstance(row, dict) else None for row in regions]
    for index, name in enumerate(names):
        if isinstance(regions[index], dict) and "region" not in regions[index]:
            yield Mistake(f"regions[{index}].region", "missing")
        if name is not None and name in names[:index] and regions[index] not in regions[:index]:
            yield Mistake(f"regions[{index}]", f"{name!r} is a duplicate entry")
        key = regions[index].get("kms_key") if isinstance(regions[index], dict) else None
        if isinstance(key, str) and key.startswith("arn:") and name and f":kms:{name}:" not in key:
            yield Mistake(f"regions[{index}].kms_key", f"expected a key in {name}, got {key!r}")


def _public_mistakes(document: dict[str, Any], regions: list[Any]) -> Iterator[Mistake]:
    for index, row in enumerate(regions):
        if isinstance(row, dict) and row.get("kms_key"):
            text = "an encrypted AMI cannot be public: expected no kms_key, or share.public: false"
            yield Mistake(f"regions[{index}].kms_key", text)
    days = document.get("deprecate_after")
    if isinstance(days, int) and days > _MOST_DAYS_PUBLIC:
        text = f"expected at most {_MOST_DAYS_PUBLIC} days of a public AMI, got {days}"
        yield Mistake("deprecate_after", text)
