"""Beside the users' files: fixtures of every scope, a plugin, a helper module."""

import company
import pytest

pytest_plugins = ["company_plugin"]


def pytest_configure(config):
    config.addinivalue_line("markers", "company: ours")


@pytest.fixture(autouse=True)
def announce(request):
    print("start", request.node.name)
    yield
    print("end", request.node.name)


@pytest.fixture(scope="session")
def limit():
    return company.LIMIT


@pytest.fixture(scope="module")
def hostname_lines(host):
    return host.check_output("printf 'a\\nb\\n'").splitlines()


@pytest.fixture(params=["root", "daemon"])
def account(request, host):
    return host.user(request.param)
