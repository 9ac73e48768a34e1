"""A testinfra file whose checks change what later ones look at, in every way that a file has to say so."""

import pytest
from helpers import place, write

SEEN = {}
COMMANDS = ["printf b >> %s/log", "printf c >> %s/log"]


@pytest.fixture(scope="module", autouse=True)
def folder(host):
    host.check_output("mkdir -p %s", place())
    yield
    host.check_output("rm -r %s", place())


@pytest.fixture
def marked(host):
    host.run("true")
    host.run("touch %s/mark", place())
    yield
    host.run("rm %s/mark", place())


def test_folder_is_there(host):
    assert host.file(place()).is_directory


def test_writes(host):
    host.run("true")
    host.run("true")
    assert host.run(f"echo one > {place()}/file").rc == 0


def test_reads(host):
    assert host.file(f"{place()}/file").content_string == "one\n"


def test_helper_writes(host):
    host.run("true")
    write(host, "two")


def test_reads_what_the_helper_wrote(host):
    assert host.file(f"{place()}/file").content_string == "two\n"


def test_appends_again_and_again(host):
    for _ in range(3):
        host.check_output("printf a >> %s/log", place())


@pytest.mark.parametrize("command", COMMANDS)
def test_parameters_append(host, command):
    host.run("true")
    host.run(command, place())


def test_log_is_in_order(host):
    assert host.file(f"{place()}/log").content_string == "aaabc"


def test_mark_is_there(host, marked):
    assert host.file(f"{place()}/mark").exists


def test_mark_is_gone(host):
    assert not host.file(f"{place()}/mark").exists


def test_alone_for_its_fixture(host, monkeypatch):
    monkeypatch.setenv("ORDERED", "1")
    assert host.file(f"{place()}/file").exists


def test_removes(host):
    host.run("true")
    host.run("rm -- %s/file", place())


def test_is_removed(host):
    assert not host.file(f"{place()}/file").exists


class TestSteps:
    def _do(self, host):
        host.run("true")
        SEEN["number"] = host.check_output("date +%%s | tee %s/number", place())

    def test_first(self, host):
        self._do(host)

    def test_second(self, host):
        assert host.file(f"{place()}/number").content_string.strip() == SEEN["number"]
