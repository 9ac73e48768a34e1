"""Keys of keyrings as gpg makes them, and the check that compares them with the planned one."""

from __future__ import annotations

import base64
import re

import pytest

from tests.scripted_host import on_this_machine
from tests.validator.checks.conftest import Judge
from tests.validator.checks.conftest import judge as judge
from validator.checks import inventory
from validator.probes import keyrings

KEYRINGS = "/usr/share/keyrings/vendor-{}.gpg"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, bytes, bytes]]:
    """Fingerprint, binary and armored key of two vendors, as gpg makes them."""
    home = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    gpg = f"gpg --homedir {home} --batch --quiet --passphrase ''"
    made = {}
    for name in ("vendor", "other"):
        on_this_machine(f"{gpg} --quick-generate-key {name} ed25519 sign never")
        listed = on_this_machine(f"{gpg} --with-colons --list-keys {name}")
        binary, armored = (on_this_machine(f"{gpg} {how} --export {name}") for how in ("", "--armor"))
        assert isinstance(listed, tuple) and isinstance(binary, tuple) and isinstance(armored, tuple)
        fingerprint = re.findall(rb"fpr:+([0-9A-F]{40}):", bytes(listed[1]))[0].decode()
        made[name] = (fingerprint, bytes(binary[1]), bytes(armored[1]))
    on_this_machine(f"gpgconf --homedir {home} --kill all")
    return made


def test_key_that_was_added_to_a_keyring_is_seen(judge: Judge, keys: dict[str, tuple[str, bytes, bytes]]) -> None:
    (planned, binary, armored), (other, more, more_armored) = keys["vendor"], keys["other"]
    path, of_rpm = KEYRINGS.format(planned), f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{planned}"
    rows = {
        (path, binary): "",
        (of_rpm, armored): "",
        (path, binary + more): f"{path}: {planned}, {other}",
        (of_rpm, armored + more_armored): f"{of_rpm}: {planned}, {other}",
        (path, more): f"{path}: {other}",
        (path, binary[:-1]): f"{path}: cut off",
        (path, b"<html>\n"): f"{path}: no OpenPGP key in it",
    }
    for (name, content), message in rows.items():
        shown = f"{name} {base64.b64encode(content).decode()}\n"
        found = judge(inventory.test_keyrings_have_the_planned_keys_alone, {"for f in*": shown})
        assert (found.verdict, message in found.message) == ("FAIL" if message else "PASS", True), found


@pytest.mark.parametrize("data", [b"", b"\x99", b"\x98\x01\x03", b"\x9b\x00", b"\xc6\xe0\x00", b"no key"])
def test_what_is_no_keyring_is_refused(data: bytes) -> None:
    with pytest.raises(keyrings.InvalidKeyring):
        keyrings.fingerprints(data)
