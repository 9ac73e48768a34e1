"""Which layer images a build starts from, which it makes on the way, and what is kept of them (docs/layers.md)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from gpu_ami.cloud import Place, amis, runs
from gpu_ami.files import data_dir, home_dir, locked, read_yaml
from gpu_ami.plan import Plan
from gpu_ami.recipes import components, section
from validator import remote

if TYPE_CHECKING:
    from gpu_ami.build.builder import Builder
    from gpu_ami.cloud import Cloud

SCHEMA = "gpu-ami/layer/1"
HYGIENE = "hygiene"
BELOW = "layer below"
_IGNORED = {"__pycache__", ".pytest_cache"}
# What every layer is made with. The lowest layer has their digests, those above have them through it.
_COMMON = ("packer", "playbooks", "ansible.cfg", f"roles/{HYGIENE}")
_INVENTORY = "inventory.py"  # of onhost; taken before the first role
_PROGRAM = re.compile(r"\bonhost/([\w.-]+)")
_COPIES = re.compile(r"\.copy:\s+src:")
_INCLUDE = re.compile(r"(?:include|import)_role:\s+name: (\w+)\s")


@dataclass(frozen=True)
class Definition:
    """The layers of a build. roles: name of a layer → roles, in the order of the build; max_age: of a layer image.

    early: name of a layer → role → its tasks that this layer runs before the role's own.
    """

    roles: Mapping[str, tuple[str, ...]]
    early: Mapping[str, Mapping[str, str]]
    max_age: timedelta

    def names(self, roles: Iterable[str]) -> Iterator[str]:
        """The layer of each role, in the plan's order; a layer never lies below that of the role before it."""
        order = list(self.roles)
        current = order[0]
        for role in roles:
            named = next((name for name, members in self.roles.items() if role in members), current)
            current = max(current, named, key=order.index)
            yield current

    def early_tasks(self, layers: Sequence[str], roles: Iterable[str]) -> Iterator[tuple[str, str, str]]:
        """(layer, role, tasks) of each early part: in its layer or the nearest one below, never in the finished image.

        layers: those that the plan has, the lowest first; roles: of the plan.
        """
        order, planned = list(self.roles), set(roles)
        for name, parts in self.early.items():
            below = [layer for layer in layers[:-1] if order.index(layer) <= order.index(name)]
            for role, tasks in parts.items():
                if role in planned and layers[1:]:
                    yield below[-1] if below else layers[0], role, tasks


@dataclass(frozen=True)
class Layer:
    """A part of a build. roles: without hygiene. parts: what the digest is of, by name. is_top: the finished image.

    early: `role:tasks`, tasks of roles of higher layers.
    """

    name: str
    roles: tuple[str, ...]
    digest: str
    parts: Mapping[str, str]
    is_top: bool = False
    early: tuple[str, ...] = ()

    def changes(self, before: Mapping[str, str]) -> list[str]:
        """Names of the parts that differ from those of an earlier build."""
        names = [*self.parts, *(name for name in before if name not in self.parts)]
        return [name for name in names if self.parts.get(name) != before.get(name)]


@cache
def load_definition() -> Definition:
    """The layers that come with gpu-ami."""
    table = read_yaml(data_dir("variables", "layers.yml"), "it belongs to gpu-ami: reinstall it")
    declared = components.components()
    early = {
        layer: {name: one.early[layer] for name, one in declared.items() if layer in one.early}
        for layer in components.layers()
    }
    return Definition(components.layers(), early, timedelta(days=table["max_age_days"]))


def cut(plan: Plan, base_ami: str, place: Place, root: Path) -> tuple[Layer, ...]:
    """The layers of a plan, the lowest first; the last one is the finished image.

    base_ami: what the plan's source AMI is now. root: of roles, playbooks and template.
    """
    roles = [role for role in plan.document["roles"] if role != HYGIENE]
    named = zip(load_definition().names(roles), roles, strict=True)
    groups = [(name, tuple(role for _, role in pairs)) for name, pairs in groupby(named, key=lambda pair: pair[0])]
    early = list(load_definition().early_tasks([name for name, _ in groups], roles))
    layers: list[Layer] = []
    for number, (name, members) in enumerate(groups or [("image", ())]):
        parts = {BELOW: layers[-1].digest} if layers else _common(plan, base_ami, place, root)
        for role in members:
            parts[f"plan: {role}"] = _digest(section(plan.document, role))
            parts[f"role {role}"] = files_digest(_with_programs(_folders(role, plan, root)))
        beforehand = dict(_early_digests([row[1:] for row in early if row[0] == name], plan, root))
        parts |= {f"early {tasks}": value for tasks, value in beforehand.items()}
        digest = _digest({"schema": SCHEMA, "name": name, "roles": members, "parts": parts})
        layers.append(Layer(name, members, digest, parts, number == len(groups) - 1, tuple(beforehand)))
    return tuple(layers)


def roles_of(parts: object) -> tuple[str, ...]:
    """The roles of a layer, by its parts in build.json."""
    names = parts if isinstance(parts, Mapping) else {}
    return tuple(str(name).removeprefix("role ") for name in names if str(name).startswith("role "))


def _common(plan: Plan, base_ami: str, place: Place, root: Path) -> dict[str, str]:
    """Parts of the lowest layer: what the layers above are made of and with, too."""
    document = plan.document
    system = {key: document[key] for key in ("architecture", "os", "node", "build")}
    common = [root / name for name in _COMMON]
    builder = {"sandbox": True} if place.machines.sandbox_builder else {}
    return {
        "base AMI": base_ami,
        "system and builder": _digest({**system, "kms_key_id": place.kms_key_id or "", **builder}),
        "template, playbook and hygiene": files_digest([*common, remote.PROGRAMS / _INVENTORY]),
    }


def files_digest(paths: Iterable[Path]) -> str:
    """`sha256:` over names and contents of files and of everything in folders."""
    digest = hashlib.sha256()
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file() and not _IGNORED & set(file.parts):
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{file.relative_to(path.parent)}\0{content}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _folders(role: str, plan: Plan, root: Path) -> list[Path]:
    """The folders of a role and of all that it includes, the site's own before ours."""
    sites = [plan.site / "roles"] if plan.site else []
    pending, found = [role], dict[str, Path]()
    while pending:
        name = pending.pop()
        folder = next((path / name for path in sites if (path / name).is_dir()), root / "roles" / name)
        if name not in found:
            found[name] = folder
            pending += included_roles(folder)
    return [found[name] for name in sorted(found)]


def _with_programs(folders: Iterable[Path]) -> list[Path]:
    """Folders of roles, and the programs of onhost/ that their footprints name."""
    paths = list(folders)
    footprints = [path / "meta" / "footprint.yml" for path in paths]
    texts = [file.read_text(encoding="utf-8") for file in footprints if file.is_file()]
    names = sorted({name for text in texts for name in _PROGRAM.findall(text)})
    return [*paths, *(remote.PROGRAMS / name for name in names)]


def _early_digests(early: Iterable[Sequence[str]], plan: Plan, root: Path) -> Iterator[tuple[str, str]]:
    """`role:tasks`, and a digest of the options that they read, their files (by the beginning of the name) and copies.

    No more is needed, since the role itself runs them again. A site's role of that name may have none.
    """
    for role, tasks in early:
        folder = next(path for path in _folders(role, plan, root) if path.name == role)
        own = sorted(folder.glob(f"tasks/{tasks}*.yml"))
        if own:
            specs = read_yaml(folder / "meta" / "argument_specs.yml", "the tasks' options")["argument_specs"]
            options = {name.removeprefix(f"{role}_") for name in specs[tasks]["options"]}
            values = {key: value for key, value in section(plan.document, role).items() if key in options}
            used = [path for name in included_roles(folder, f"{tasks}*.yml") for path in _folders(name, plan, root)]
            copies = any(_COPIES.search(file.read_text(encoding="utf-8")) for file in own)
            copied = [folder / "files", *_with_programs([folder])[1:]] if copies else []
            files = files_digest([*own, folder / "handlers", folder / "vars", *copied, *used])
            yield f"{role}:{tasks}", _digest({"plan": values, "files": files})


def included_roles(folder: Path, tasks: str = "*.yml") -> list[str]:
    """Names of the roles that the tasks of a role include."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob(f"tasks/{tasks}"))]
    return sorted({name for text in texts for name in _INCLUDE.findall(text)})


def _digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


NONE, AUTO, ALL = "none", "auto", "all"
MODES = (AUTO, NONE, ALL)
FOLDER = "layers"  # of logs and manifests, below that of the build


@dataclass(frozen=True)
class Layering:
    """mode: build from nothing, from the deepest layer image that exists, or make those that are missing, too.

    refresh: layer images that exist are not used.
    """

    mode: str = NONE
    refresh: bool = False


FROM_NOTHING = Layering()
Images = Mapping[str, amis.LayerImage]  # by the layer's digest


def existing(cloud: Cloud, stack: Sequence[Layer]) -> dict[str, amis.LayerImage]:
    """Layer images of a plan that are young enough to be used, by digest."""
    found = amis.find(cloud, [layer.digest for layer in stack if not layer.is_top])
    return {digest: image for digest, image in found.items() if image.is_fresh(load_definition().max_age)}


def prepare(builder: Builder, layering: Layering, stack: Sequence[Layer], source_ami: Mapping[str, str]) -> Images:
    """The layer images that there are for this build, with mode `all` after the missing ones were made.

    Nothing is made below the deepest one that exists.
    """
    use_existing = layering.mode != NONE and not layering.refresh
    images = existing(builder.cloud, stack) if use_existing else {}
    if layering.mode == ALL:
        for index in range(deepest(stack, images) + 1, len(stack) - 1):
            images[stack[index].digest] = _make_once(builder, stack, index, images, source_ami, layering=layering)
    return images


def deepest(stack: Sequence[Layer], images: Images) -> int:
    """Index of the highest layer that has an image; -1 if none has."""
    return max((index for index, layer in enumerate(stack) if layer.digest in images), default=-1)


def start(stack: Sequence[Layer], images: Images, source_ami: Mapping[str, str]) -> dict[str, str]:
    """Packer's variables of the finished image: what it starts from, and the roles that are left to run."""
    return _variables(stack, deepest(stack, images), len(stack) - 1, images, source_ami)


def _variables(
    stack: Sequence[Layer], below: int, last: int, images: Images, source_ami: Mapping[str, str]
) -> dict[str, str]:
    """Of an image that has the layers above `below` up to `last`, on the image of `below` or on the source AMI."""
    if below < 0 and last == len(stack) - 1:
        return {"source_ami": source_ami["id"], "root_device_name": source_ami["root_device"]}
    image = images[stack[below].digest] if below >= 0 else None
    roles = _roles(stack[below + 1 : last + 1])
    return {
        "source_ami": image.ami if image else source_ami["id"],
        "root_device_name": (image and image.root_device) or source_ami["root_device"],
        "roles": json.dumps([*roles, HYGIENE]),
    }


def _roles(layers: Sequence[Layer]) -> list[str]:
    """Roles of these layers and their early tasks, but not of roles that run here as a whole."""
    whole = {role for layer in layers for role in layer.roles}
    return [
        role
        for layer in layers
        for role in (*layer.roles, *(tasks for tasks in layer.early if tasks.partition(":")[0] not in whole))
    ]


@dataclass(frozen=True)
class LayerState:
    """A layer of a plan as --explain shows it. image: young enough to be used; old: the newest one that is not.

    changes: parts that differ from those of the last build in the folder; None where none is known.
    """

    layer: Layer
    image: amis.LayerImage | None
    old: amis.LayerImage | None
    changes: tuple[str, ...] | None
    is_start: bool = False

    @property
    def text(self) -> str:
        """One line: the name, the digest, whether there is an image, and what changed."""
        return f"{self.layer.name:<10} {self.layer.digest[:19]}…  {self._image}{self._changed}"

    @property
    def _image(self) -> str:
        if self.layer.is_top:
            return f"the finished image: {', '.join([*self.layer.roles, HYGIENE])}"
        if self.image:
            used = ", used" if self.is_start else ""
            return f"{self.image.ami} of {self.image.created[:10]}, until {self.image.expires}{used}"
        return f"missing ({self.old.ami} of {self.old.created[:10]} is too old)" if self.old else "missing"

    @property
    def _changed(self) -> str:
        if self.changes is None:
            return ""
        return f"; changed since the last build: {', '.join(self.changes)}" if self.changes else "; unchanged"


def explain(cloud: Cloud, stack: Sequence[Layer], before: Sequence[Mapping[str, object]]) -> list[LayerState]:
    """What --layers auto would do now. before: `layers` of the last build.json in the folder."""
    found = amis.find(cloud, [layer.digest for layer in stack if not layer.is_top])
    max_age = load_definition().max_age
    fresh = {digest: image for digest, image in found.items() if image.is_fresh(max_age)}
    used, parts = deepest(stack, fresh), {str(row["name"]): row["parts"] for row in before}
    return [
        LayerState(
            layer,
            fresh.get(layer.digest),
            found.get(layer.digest) if layer.digest not in fresh else None,
            _changes(layer, parts.get(layer.name)),
            is_start=index == used,
        )
        for index, layer in enumerate(stack)
    ]


def _changes(layer: Layer, before: object) -> tuple[str, ...] | None:
    return tuple(layer.changes(before)) if isinstance(before, Mapping) else None


def _make_once(
    builder: Builder,
    stack: Sequence[Layer],
    index: int,
    images: Images,
    source_ami: Mapping[str, str],
    *,
    layering: Layering,
) -> amis.LayerImage:
    """The image of a layer: made, or another build's that was making it at the same time on this machine."""
    layer, progress = stack[index], builder.progress
    lock = home_dir() / FOLDER / f"{layer.digest.removeprefix('sha256:')}.lock"
    with locked(lock, lambda: progress.note(f"waiting for another build that makes layer {layer.name}")):
        there = existing(builder.cloud, [layer]).get(layer.digest)
        if there and not (layering.refresh and there.created < builder.run.started):
            progress.note(f"layer {layer.name}: {there.ami}, which another build has made")
            return there
        with progress.stage(f"layer {layer.name}"):
            return _make(builder, stack, index, images, source_ami)


def _make(
    builder: Builder, stack: Sequence[Layer], index: int, images: Images, source_ami: Mapping[str, str]
) -> amis.LayerImage:
    layer = stack[index]
    expires = runs.as_text(runs.now() + load_definition().max_age)
    variables = {
        **_variables(
            stack, index - 1 if index and stack[index - 1].digest in images else -1, index, images, source_ami
        ),
        "layer": layer.name,
        "layer_digest": layer.digest,
        "image_expires": expires,
    }
    records = builder.folder / FOLDER / layer.name
    records.mkdir(parents=True, exist_ok=True)
    made, image = builder.make(variables, f"layer {layer.name} {layer.digest}", records)
    builder.progress.note(f"{made.ami}: layer {layer.name}, until {expires}")
    created = image.get("CreationDate", "")
    return amis.LayerImage(made.ami, layer.name, layer.digest, created, expires, image.get("RootDeviceName", ""))


class LayerRecord(TypedDict):
    """A layer of an image. from_image: it came with the layer image that the build started from, `ami`.

    parts: what the digest is of, names and values or digests.
    """

    name: str
    digest: str
    from_image: bool
    ami: str
    created: str
    parts: dict[str, str]


def records(stack: Sequence[Layer], images: Images) -> Iterator[LayerRecord]:
    """What build.json keeps of each layer. ami: of the layer images that the build started from, else ""."""
    used = deepest(stack, images)
    for index, layer in enumerate(stack):
        image = images.get(layer.digest) if index <= used else None
        yield {
            "name": layer.name,
            "digest": layer.digest,
            "from_image": index <= used,
            "ami": image.ami if image else "",
            "created": image.created if image else "",
            "parts": dict(layer.parts),
        }
