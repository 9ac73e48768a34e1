import os
import sys
import threading
import time

import pytest


@pytest.fixture
def unmet(host):
    assert host.file("/nonexistent").exists, "it must be there first"


@pytest.fixture
def broken(host):
    raise KeyError("of the fixture")


@pytest.fixture
def left_behind(host):
    yield
    assert host.file("/nonexistent").exists


@pytest.fixture
def broken_teardown(host):
    yield
    raise RuntimeError("of the teardown")


@pytest.fixture
def ends_the_run(host):
    yield
    pytest.exit("of the teardown", returncode=0)


def test_setup_asserts(unmet):
    """FAIL it must be there first"""


def test_setup_breaks(broken):
    """ERROR KeyError: 'of the fixture'"""


def test_teardown_asserts(left_behind):
    """FAIL in teardown: assert False"""


def test_failure_is_not_hidden_by_teardown(host, broken_teardown):
    """FAIL the disk is full"""
    pytest.fail("the disk is full")


def test_no_such_fixture(hots):
    """ERROR fixture 'hots' not found; did you mean host?"""


def test_skips(host):
    """UNPROVEN not on this machine"""
    pytest.skip("not on this machine")


def test_import_or_skip(host):
    """UNPROVEN could not import 'no_such_module'"""
    pytest.importorskip("no_such_module")


@pytest.mark.xfail(reason="bug 1")
def test_expected(host):
    """UNPROVEN failed as expected (xfail: bug 1): assert 1 == 0"""
    assert host.run("false").rc == 0


@pytest.mark.xfail(reason="bug 2")
def test_unexpectedly_passes(host):
    """PASS"""


@pytest.mark.xfail(strict=True, reason="bug 3")
def test_must_not_pass(host):
    """FAIL passed, but is marked xfail(strict): bug 3"""


@pytest.mark.xfail(raises=KeyError)
def test_other_exception(host):
    """ERROR ValueError: other"""
    raise ValueError("other")


def test_returns_instead_of_asserting(host):
    """ERROR Did you mean to use `assert` instead of `return`"""
    return host.file("/nonexistent").exists


async def test_is_never_awaited(host):
    """ERROR async def functions are not natively supported"""
    assert host.file("/nonexistent").exists


def test_exits(host):
    """ERROR SystemExit: 3"""
    sys.exit(3)


def test_ends_the_run(host):
    """ERROR Exit: bye"""
    pytest.exit("bye", returncode=0)


def test_ends_the_run_alone(host, capsys):
    """ERROR Exit: bye"""
    pytest.exit("bye", returncode=0)


def test_teardown_ends_the_run(ends_the_run):
    """ERROR in teardown: error in the check"""


def test_leaves_a_thread_that_does_not_end(host):
    """PASS"""
    threading.Thread(target=time.sleep, args=(600,)).start()


def test_recursion(host):
    """ERROR RecursionError"""
    test_recursion(host)


def test_subtests(host, subtests):
    """FAIL second"""
    for number, text in enumerate(("first", "second", "third")):
        with subtests.test(text=text):
            assert number != 1, text


def test_skipped_subtest(host, subtests):
    """UNPROVEN not this part"""
    with subtests.test("part"):
        pytest.skip("not this part")


def test_output_and_environment(host, capsys, monkeypatch, tmp_path):
    """PASS"""
    monkeypatch.setenv("COMPANY", "1")
    print("hi")
    assert "hi" in capsys.readouterr().out and os.environ["COMPANY"] == "1" and tmp_path.is_dir()
