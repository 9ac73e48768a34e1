"""The base AMI's inventory: the build folder's copy is used only if the image has the same, and the times of roles."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from onhost import inventory as program
from tests.scripted_host import table_host
from tests.validator.file_account import tree
from validator.file_account import (
    BuilderBoot,
    NotTaken,
    RoleTime,
    Written,
    WrittenFile,
    find_base,
    role_times,
    take_written,
)
from validator.file_account.collect import BOOTS_IN_IMAGE, FILE, IN_IMAGE, WRITTEN_FILE, take
from validator.file_account.initial_ramdisk import not_compared

FROM_NOTHING = {f"cat {BOOTS_IN_IMAGE}": (1, "")}


@pytest.fixture
def kept(tmp_path: Path) -> bytes:
    """An inventory as it is kept in the folder of a build."""
    lines: list[bytes] = []
    (tmp_path / "root").mkdir()
    program.inventory(str(tmp_path / "root"), False, 0.0, set(), lambda record: lines.append(tree.line(record)))
    data = gzip.compress(b"".join(lines))
    (tmp_path / FILE).write_bytes(data)
    rows = {"ansible": {"roles": [["cuda", 1.0, 2.5], ["efa", 2.5, 4]]}}
    (tmp_path / "build.json").write_text(json.dumps(rows))
    return data


def test_the_copy_of_the_build_is_preferred(tmp_path: Path, kept: bytes) -> None:
    same = {"sha256sum*": f"{hashlib.sha256(kept).hexdigest()}  x\n", **FROM_NOTHING}
    base = find_base(table_host(same), tmp_path)
    assert base.source == f"{tmp_path}/{FILE}"
    assert base.role_times == (RoleTime("cuda", 1.0, 2.5), RoleTime("efa", 2.5, 4.0))


def test_another_images_copy_is_not_used(tmp_path: Path, kept: bytes) -> None:
    own = {"sha256sum*": "00  x\n", f"cat {IN_IMAGE}": gzip.decompress(kept).decode()}
    base = find_base(table_host({**own, **FROM_NOTHING}), tmp_path)
    assert (base.source, base.role_times) == ("the image's own copy", ())


def test_what_roles_wrote_is_read_with_the_copy_of_the_build(tmp_path: Path, kept: bytes) -> None:
    image = {"sha256sum*": f"{hashlib.sha256(kept).hexdigest()}  x\n", **FROM_NOTHING}
    assert take_written(table_host(image), find_base(table_host(image), tmp_path)) is None
    (tmp_path / WRITTEN_FILE).write_text('{"/etc/a": {"role": "cuda", "sha1": "1f"}}')
    host = table_host({**image, "xargs*": "2e  /etc/a\0"})
    written = take_written(host, find_base(host, tmp_path))
    assert written == Written({"/etc/a": WrittenFile("cuda", "1f")}, {"/etc/a": "2e"}, is_whole=True)
    (tmp_path / WRITTEN_FILE).write_text("[]")
    with pytest.raises(NotTaken, match="expected role and sha1 of each path"):
        find_base(host, tmp_path)


def test_ramdisks_that_cannot_be_listed_say_why(tmp_path: Path, kept: bytes) -> None:
    inventory = gzip.decompress(kept).decode()
    failed = table_host(
        {"*inventory.py reads*": inventory, "*initial ramdisk below*": (1, "", "Traceback\nOSError: x\n")}
    )
    taken = take(failed, running=False)
    assert [not_compared(ramdisk) for ramdisk in taken.ramdisks.values()] == ["OSError: x"]
    line = json.dumps({"ramdisk": "/boot/initrd.img-1", "files": [], "texts": {}, "error": "cut off", "unknown": ""})
    listed = table_host({"*inventory.py reads*": inventory, "*initial ramdisk below*": line})
    assert take(listed, running=False).ramdisks["/boot/initrd.img-1"].error == "cut off"
    assert (
        take(listed, running=False, hash_since=1.0).ramdisks == {}
    )  # without digests there is nothing to compare with


@pytest.mark.parametrize("text", ["", "[]", '{"ansible": null}', '{"ansible": {"roles": [["x"]]}}'])
def test_a_build_without_times_of_roles(tmp_path: Path, text: str) -> None:
    (tmp_path / "build.json").write_text(text)
    assert role_times(tmp_path) == role_times(None) == ()


def test_boots_of_builders_that_began_with_a_layer_image(tmp_path: Path, kept: bytes) -> None:
    image = {"sha256sum*": f"{hashlib.sha256(kept).hexdigest()}  x\n"}
    assert find_base(table_host({**image, **FROM_NOTHING}), tmp_path).boots == ()
    noted = '{"booted": 10, "roles": 20}\n{"booted": 30, "roles": 40}\n'
    boots = find_base(table_host({**image, f"cat {BOOTS_IN_IMAGE}": noted}), tmp_path).boots
    assert boots == (BuilderBoot(10.0, 20.0), BuilderBoot(30.0, 40.0))
    with pytest.raises(NotTaken, match="expected a JSON object with booted and roles a line"):
        find_base(table_host({**image, f"cat {BOOTS_IN_IMAGE}": '{"booted": 10}\n'}), tmp_path)
