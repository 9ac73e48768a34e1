"""apt takes what the mirror serves, and nothing of a mirror gone bad: what the roles' own tests rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_ami.process import Completed, run
from gpu_ami.progress import Progress
from localregion.mirror import mirror, signing, table
from tests.localregion.mirror.replica_samples import FLAT, PLAN, SUITE, plan, write_table

from . import bad_mirror
from .bad_mirror import Damage

FILE = f"{FLAT['url']}tool-data_1.2.3-1+x2_amd64.deb"
QUIET = Progress("quiet")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("bad-mirror-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "REPLICAS", write_table(tmp_path_factory.mktemp("table")))
        mirror.ensure(folder, plan=plan(roles=["tool", "agent"]), progress=QUIET)
        mirror.ensure(folder, plan=plan(tool=PLAN["tool"] | {"repository": SUITE}, roles=["tool"]), progress=QUIET)
        yield folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("other-home")


@pytest.fixture
def served(home: Path) -> Iterator[str]:
    server = mirror.Mirror(home)
    yield f"http://127.0.0.1:{server.start()}"
    server.stop()


class Apt:
    """apt with folders of its own and one source."""

    def __init__(self, work: Path, server: str, keyring: Path, *suite: str) -> None:
        for name in ("lists/partial", "cache/archives/partial", "etc", "down"):
            (work / name).mkdir(parents=True)
        (work / "status").touch()
        self._down = work / "down"
        url = SUITE["url"] if suite else FLAT["url"]
        where = " ".join([url.replace("https://", f"{server}/"), *(suite or ("./",))])
        (work / "sources").write_text(f"deb [signed-by={keyring}] {where}\n")
        options = {
            "Dir::State": work,
            "Dir::State::lists": work / "lists",
            "Dir::State::status": work / "status",
            "Dir::Cache": work / "cache",
            "Dir::Etc::sourcelist": work / "sources",
            "Dir::Etc::sourceparts": "-",
            "Dir::Etc::parts": work / "etc",
            "APT::Sandbox::User": "root",
            "Acquire::Retries": 0,
            "APT::Update::Error-Mode": "any",
        }
        self._options = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]

    def __call__(self, *words: str) -> Completed:
        return run(["apt-get", *self._options, *words], cwd=self._down, timeout=120, check=False)

    def fetch(self) -> str:
        """Index and package; what apt said against it, or nothing."""
        for words in (("update",), ("download", "tool-data=1.2.3-1+x2")):
            done = self(*words)
            if done.returncode != 0:
                return done.stdout + done.stderr
        assert [path.name for path in self._down.iterdir()] == ["tool-data_1.2.3-1+x2_amd64.deb"]
        return ""


@pytest.fixture
def keyring(home: Path, tmp_path: Path) -> Path:
    return signing.signing_key(home).export(tmp_path / "keyring.gpg", armor=False)


@pytest.mark.parametrize("suite", [(), ("jammy", "main")])
def test_apt_takes_the_good_one(tmp_path: Path, served: str, keyring: Path, suite: tuple[str, ...]) -> None:
    assert Apt(tmp_path / "apt", served, keyring, *suite).fetch() == ""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _home, _other: bad_mirror.tampered(FILE), "Hash Sum mismatch"),
        (lambda _home, _other: bad_mirror.half(FILE), "unexpected size"),
        (lambda _home, _other: bad_mirror.missing(FILE), "404"),
        (lambda _home, _other: bad_mirror.missing(FLAT["url"]), "404"),
        (lambda _home, _other: bad_mirror.tampered_index(FLAT["url"]), "BADSIG"),
        (lambda _home, _other: bad_mirror.unsigned(FLAT["url"]), "is not signed"),
        (lambda _home, other: bad_mirror.signed_by_another(FLAT["url"], other), "NO_PUBKEY"),
    ],
)
def test_apt_takes_nothing_of_a_bad_one(
    tmp_path: Path,
    home: Path,
    other: Path,
    served: str,
    keyring: Path,
    damage: Callable[[Path, Path], Damage],
    message: str,
) -> None:
    with bad_mirror.damaged(home, damage(home, other)):
        assert message in Apt(tmp_path / "apt", served, keyring).fetch()
    assert Apt(tmp_path / "again", served, keyring).fetch() == ""


def test_apt_notices_that_a_download_broke_off(tmp_path: Path, home: Path, keyring: Path) -> None:
    with bad_mirror.breaking_off(home, FILE) as address:
        said = Apt(tmp_path / "apt", address, keyring).fetch()
    assert "E: Failed to fetch" in said and "tool-data" in said


def _shown(home: Path, key_url: str) -> list[list[str]]:
    file = home / "mirror/current" / bad_mirror.below(key_url)
    return [line.split(":") for line in run(["gpg", "--show-keys", "--with-colons", file], timeout=30).stdout.split()]


def test_published_key_is_another_or_has_expired(home: Path, other: Path) -> None:
    fingerprint = signing.signing_key(home).fingerprint
    url = FLAT["key_url"]
    with bad_mirror.damaged(home, bad_mirror.another_key(url, other)):
        assert [row[9] for row in _shown(home, url) if row[0] == "fpr"] == [signing.signing_key(other).fingerprint]
    with bad_mirror.damaged(home, bad_mirror.expired_key(url, home)):
        rows = _shown(home, url)
        assert [row[9] for row in rows if row[0] == "fpr"] == [fingerprint]
        assert [row[1] for row in rows if row[0] == "pub"] == ["e"]
    assert [row[1] for row in _shown(home, url) if row[0] == "pub"] != ["e"]
    assert signing.signing_key(home).fingerprint == fingerprint  # the home's own key is as it was
