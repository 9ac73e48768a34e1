import pytest

ME = "root"


def test_check_output(host):
    """FAIL Unexpected exit code 2 for CommandResult(backend=<ssh://127.0.0.1"""
    host.check_output("ls /nonexistent")


def test_run_test(host):
    """FAIL Unexpected exit code 2"""
    host.run_test("ls /nonexistent")


def test_run_expect(host):
    """FAIL Unexpected exit code 2"""
    host.run_expect([0], "ls /nonexistent")


def test_of_the_machine_not_of_ansible(host):
    """ERROR Ansible module is only available with ansible connection backend"""
    assert host.ansible("command", "true", check=False)["rc"] == 0


def test_deadline(host):
    """FAIL command did not complete within 0.2 s"""
    host.run("sleep 9", timeout=0.2)


def test_sudo(host):
    """PASS"""
    with host.sudo("nobody"):
        host.run("id -un")  # without sudo on the machine it exits with 127
        host.run("id -un; echo again")


def test_sudo_fails(host):
    """FAIL in the block"""
    with host.sudo("daemon"):
        host.run("true")
        pytest.fail("in the block")


@pytest.mark.parametrize("status", range(5))
def test_beside_sudo(host, status):
    """PASS"""
    assert host.run(f"exit {status}").rc == status
    assert host.run("id -u; echo second").stdout == host.run("id -u; echo second").stdout
    assert host.run(f"exit {status + 1}").rc == status + 1


def test_text(host):
    """PASS"""
    assert host.run("for i in 1 2\ndo echo $i\ndone").stdout == "1\n2\n"
    assert host.run("cat <<'X'\na\nX\n").stdout == "a\n"
    assert host.run("printf '\\377\\000a'").stdout_bytes == b"\xff\x00a"
    assert host.run("cat").stdout == "" and host.run("echo no >&2; exit 3").stderr == "no\n"
    host.run("cd /")
    assert host.check_output("pwd") != "/"
