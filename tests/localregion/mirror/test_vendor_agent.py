"""The vendor's agent package: kept only when the right key has signed it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.progress import Progress
from localregion.mirror import mirror, signing

pytestmark = pytest.mark.slow

QUIET = Progress("quiet")


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A vendor on loopback: its folder, and the facts that lead to it."""
    root = tmp_path / "shop"
    folder = root / "debian/amd64/latest"
    folder.mkdir(parents=True)
    key = signing.signing_key(tmp_path / "vendor-home")
    (folder / "amazon-cloudwatch-agent.deb").write_bytes(b"a package")
    key.sign(folder / "amazon-cloudwatch-agent.deb")
    key.export(root / "key.gpg", armor=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    yield folder, {"base_url": url, "key_url": f"{url}/key.gpg", "key_fingerprint": key.fingerprint}
    server.shutdown()
    server.server_close()


def test_good_package_is_kept_and_not_fetched_again(shop: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, facts = shop
    kept = mirror.download_agent(tmp_path, facts, QUIET)
    assert kept.read_bytes() == b"a package" and kept.with_name(kept.name + ".sig").exists()
    (folder / "amazon-cloudwatch-agent.deb").unlink()
    assert mirror.download_agent(tmp_path, facts, QUIET) == kept


def test_tampered_package_is_refused(shop: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, facts = shop
    (folder / "amazon-cloudwatch-agent.deb").write_bytes(b"another package")
    with pytest.raises(CloudError, match="bad signature"):
        mirror.download_agent(tmp_path, facts, QUIET)
    assert [path.name for path in (tmp_path / "vendor").iterdir()] == []


def test_another_key_is_refused(shop: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    with pytest.raises(CloudError, match="expected " + "A" * 40):
        mirror.download_agent(tmp_path, shop[1] | {"key_fingerprint": "A" * 40}, QUIET)


def test_missing_package_names_the_address_and_the_way_out(shop: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    (shop[0] / "amazon-cloudwatch-agent.deb.sig").unlink()
    with pytest.raises(CloudError, match=r"amazon-cloudwatch-agent\.deb\.sig: ") as caught:
        mirror.download_agent(tmp_path, shop[1], QUIET)
    assert "--agent-package FILE" in caught.value.hint
