import pytest
from company import assert_mode
from conftest import company

pytestmark = pytest.mark.company


def test_passwd(host):
    """PASS"""
    passwd = host.file("/etc/passwd")
    assert passwd.contains("root") and passwd.user == "root" and passwd.group == "root"
    assert_mode(passwd, 0o644)


def test_helper_fails(host):
    """FAIL /etc/passwd: mode 644, not 600"""
    assert_mode(host.file("/etc/passwd"), 0o600)


def test_package_is_missing(host):
    """FAIL <package no-such-package>.is_installed"""
    assert host.package("no-such-package").is_installed


@pytest.mark.parametrize(("text", "number"), [("a b", 1), ("ü/é", 2), ("", 3), ("$HOME'`\"\n", 4)])
def test_parameters_are_quoted(host, text, number):
    """PASS"""
    assert number and host.run("printf %%s %s", text).stdout == text


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(0, id="zero"),
        pytest.param(1, marks=pytest.mark.xfail(reason="known")),
        pytest.param(2, marks=pytest.mark.skip(reason="later")),
    ],
)
def test_marks_of_parameters(host, status):
    """PASS | UNPROVEN failed as expected (xfail: known): assert 1 == 0 | UNPROVEN later"""
    assert host.run(f"exit {status}").rc == 0


def test_fixtures(account, limit, hostname_lines, answer):
    """PASS"""
    assert account.exists and limit == company.LIMIT and hostname_lines == ["a", "b"] and answer == 42


def pytest_generate_tests(metafunc):
    if "generated" in metafunc.fixturenames:
        metafunc.parametrize("generated", ["x", "y"])


def test_generated(host, generated):
    """PASS"""
    assert generated in "xy"
