"""A testinfra file as anybody may have it: it must come out the same, gathered or one after the other."""

import itertools
import time

import pytest

LOG = []
COUNTER = itertools.count()


@pytest.fixture(autouse=True)
def family(host):
    return host.system_info.distribution


@pytest.fixture(scope="module")
def shared(host):
    number = next(COUNTER)
    first = host.run("echo shared; sleep 0.1").stdout.strip()
    yield number, first, host.run("echo again").stdout.strip()
    LOG.append("down")


@pytest.fixture
def own(host, request):
    name = host.run("echo %s", request.node.originalname).stdout.strip()
    yield name
    LOG.append(name)


@pytest.fixture(params=["a", "b"])
def letter(request):
    return request.param


def test_one(host, shared, own):
    assert (own, shared) == ("test_one", (0, "shared", "again"))
    print("printed by one")
    assert host.file("/etc/passwd").exists
    assert host.file("/etc/passwd").user == "root"
    assert "test_one" not in LOG


def test_two(host, shared, own):
    assert own == "test_two"
    assert shared[0] == 0
    assert host.file("/etc/passwd").mode == 0o644
    assert "test_two" not in LOG


def test_letters(host, letter, own, shared):
    assert host.run("echo %s", letter).stdout == f"{letter}\n"
    assert own == "test_letters"


@pytest.mark.parametrize("number", range(5))
def test_parameter(host, number):
    assert host.check_output("echo %s", str(number)) == str(number)


def test_user_is_who_logs_in(host):
    assert host.check_output("id -un") == host.user().name


@pytest.mark.skip(reason="marked so")
def test_skipped(host):
    raise AssertionError


@pytest.mark.xfail(strict=True)
def test_expected_to_fail(host):
    assert host.run("false").rc == 0


def test_fails(host):
    print("told before failing")
    assert host.run("echo wrong").stdout == "right\n"


def test_capsys(host, capsys):
    print("caught")
    assert capsys.readouterr().out == "caught\n"
    assert host.run("true").rc == 0


@pytest.fixture(scope="class")
def of_class(host):
    return host.run("echo class").stdout


class TestClass:
    def setup_method(self):
        self.set_up = 5

    def test_a(self, host, of_class):
        assert (self.set_up, of_class) == (5, "class\n")

    def test_b(self, host, of_class):
        assert host.package("coreutils").is_installed
        assert host.file("/etc/hostname").is_file

    def test_dynamic(self, request, host):
        assert request.getfixturevalue("own") == "test_dynamic"


def test_fixture_is_missing(host, there_is_no_such_fixture):
    pass


def test_nothing_shared_is_down_yet(host, shared):
    assert shared[0] == 0
    assert "down" not in LOG


def test_asks_again_and_again(host):
    told = {host.run("date +%s.%N").stdout for _ in range(3)}
    assert len(told) == 3
    time.sleep(0.01)


def test_bytes_and_both_outputs(host):
    done = host.run("printf 'a\\000b\\n\\n'; echo err >&2; exit 7")
    assert (done.rc, done.stdout_bytes, done.stderr) == (7, b"a\0b\n\n", "err\n")
