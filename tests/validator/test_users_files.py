"""Testinfra files as users write them: each function's docstring says the verdict, and what its message contains."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_ami import process
from gpu_ami.validate.validator_process import PYTEST, why_not_collected
from tests.validator.conftest import Sshd
from validator import isolation
from validator.results import CheckRecord, HostResults

USERS = Path(__file__).parent / "data" / "users"
# beside.py is their conftest.py: under that name pytest would load it for the tests of gpu-ami.
HELPERS = {"beside.py": "conftest.py", "company.py": "company.py", "company_plugin.py": "company_plugin.py"}


def _run(folder: Path, sshd: Sshd, *options: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """As gpu-ami starts it: the built-in checks are named, too, and -k leaves the users' alone."""
    results = folder / "checks.json"
    command = [
        *PYTEST, f"--hosts=ssh://{sshd.target().user}@127.0.0.1:{sshd.port}", f"--ssh-identity-file={sshd.key}",
        f"--known-hosts={folder / 'known_hosts'}", f"--results={results}", "--no-evidence", *options,
        isolation.CHECKS, folder,
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        command, env=environment | isolation.VARIABLES, capture_output=True, text=True, timeout=90, check=False
    ), results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    for file in USERS.glob("*.py"):
        shutil.copy(file, folder / HELPERS.get(file.name, f"test_anybodys_{file.name}"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["concurrently", "serial"])
def test_users_files_have_the_verdicts_that_they_name(folder: Path, sshd: Sshd, mode: str) -> None:
    done, file = _run(folder, sshd, "-k", "test_anybodys", *(["--serial"] if mode == "serial" else []))
    assert file.is_file(), done.stdout + done.stderr
    results = HostResults.load(file)
    by_function: dict[str, list[CheckRecord]] = {}
    for record in results.checks:
        by_function.setdefault(record.id.partition("[")[0], []).append(record)
    assert len(results.checks) > 50 and len(by_function) > 40
    wrong = [told for records in by_function.values() for told in _differences(records)]
    assert not wrong, "\n".join(wrong)
    assert {Path(one.name).name for one in results.programs if not one.named} == set()
    assert {"conftest.py", "company.py", "company_plugin", "test_anybodys_ends.py"} <= {
        Path(one.name).name for one in results.programs
    }


def _differences(records: list[CheckRecord]) -> list[str]:
    """expected: `PASS | FAIL message`, one for each parameter; a single one is that of all."""
    expected = records[0].promise.split(" | ")
    expected *= len(records) if len(expected) == 1 else 1
    return [
        f"{record.id}: expected {wanted}, got {record.verdict} {record.message}"
        for record, wanted in zip(records, expected, strict=True)
        for verdict, _, text in [wanted.partition(" ")]
        if (record.verdict, text in record.message) != (verdict, True)
    ]


@pytest.mark.slow
def test_a_check_that_the_run_did_not_reach_is_an_error(tmp_path: Path, sshd: Sshd) -> None:
    (tmp_path / "test_mine.py").write_text(
        "def test_first(host, request): request.session.shouldfail = 'one is enough'\n"
        "def test_second(host, capsys): assert not host.file('/').exists\n"
    )
    done, file = _run(tmp_path, sshd, "-k", "test_mine")
    assert done.returncode == 1, done.stdout + done.stderr
    verdicts = {record.id: (record.verdict, record.message) for record in HostResults.load(file).checks}
    assert verdicts == {
        "test_mine::test_first": ("PASS", ""),
        "test_mine::test_second": ("ERROR", "did not run: the run ended before it (one is enough)"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import nothing_of_that_name\n", ["test_mine.py:1: in <module>", "No module named 'nothing_of_that_name'"]),
        ("def test_x(host)\n    pass\n", ["test_mine.py", "line 1", "expected ':'"]),
        ("def test_x(host):\n    yield\n", ["test_mine.py", "'yield' keyword is allowed in fixtures"]),
        ("import pytest\n@pytest.mark.survive\ndef test_x(host): ...\n",
         ["test_mine.py::test_x: unknown mark 'survive'; did you mean survives?"]),
        ("import pytest\n@pytest.mark.tier('t2')\ndef test_x(host): ...\n",
         ["test_mine.py::test_x: expected a tier of T0, T1, T2, T3, TN, T4, got 't2'"]),
        ("def check_x(host): ...\n", ["no check in", "expected files test_*.py with functions test_*"]),
    ],
)  # fmt: skip
def test_files_that_cannot_be_collected(tmp_path: Path, source: str, told: list[str]) -> None:
    (tmp_path / "test_mine.py").write_text(source)
    (tmp_path / "test_other.py").write_text("def test_listed(host): ...\n" * ("check_x" not in source))
    command = [*map(str, PYTEST), "--collect-only", "--hosts=ssh://nobody@127.0.0.1:9", str(tmp_path)]
    done = process.run(command, timeout=60, env=isolation.VARIABLES, without=isolation.CALLERS_VARIABLES, check=False)
    text = "\n".join(why_not_collected(done))
    assert done.returncode != 0 and all(part in text for part in told), text
    assert "test_listed" not in text and "nobody" not in text


@pytest.mark.parametrize("name", ["company", "needs_gpu", "offline_only", "slow", "smoke"])
def test_marks_of_a_user_s_own_are_not_refused(name: str) -> None:
    import difflib

    from validator import selection

    assert not difflib.get_close_matches(name, selection.MARKS, 1, selection.MISSPELT)
