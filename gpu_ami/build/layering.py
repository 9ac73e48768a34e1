"""Which layer images a build starts from, which it makes on the way, and what is kept of them (docs/layers.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from gpu_ami.build.layers import HYGIENE, Layer, load_definition
from gpu_ami.cloud import layer_images, runs
from gpu_ami.files import home_dir, locked

if TYPE_CHECKING:
    from gpu_ami.build.builder import Builder
    from gpu_ami.cloud import Cloud

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
Images = Mapping[str, layer_images.LayerImage]  # by the layer's digest


def existing(cloud: Cloud, stack: Sequence[Layer]) -> dict[str, layer_images.LayerImage]:
    """Layer images of a plan that are young enough to be used, by digest."""
    found = layer_images.find(cloud, [layer.digest for layer in stack if not layer.is_top])
    return {digest: image for digest, image in found.items() if image.is_fresh(load_definition().max_age)}


def prepare(builder: Builder, layering: Layering, stack: Sequence[Layer], source_ami: Mapping[str, str]) -> Images:
    """The layer images that there are for this build, with mode `all` after the missing ones were made.

    Nothing is made below the deepest one that exists.
    """
    use_existing = layering.mode != NONE and not layering.refresh
    images = existing(builder.cloud, stack) if use_existing else {}
    if layering.mode == ALL:
        for index in range(deepest(stack, images) + 1, len(stack) - 1):
            images[stack[index].digest] = _make_once(builder, stack, index, images, source_ami, layering)
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
    image: layer_images.LayerImage | None
    old: layer_images.LayerImage | None
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
    found = layer_images.find(cloud, [layer.digest for layer in stack if not layer.is_top])
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
    layering: Layering,
) -> layer_images.LayerImage:
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
) -> layer_images.LayerImage:
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
    return layer_images.LayerImage(
        made.ami, layer.name, layer.digest, created, expires, image.get("RootDeviceName", "")
    )


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
