"""Commands of many checks joined: what may change a host, equal questions, package queries."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.validator.conftest import Run
from tests.validator.engine.hosts import Host, in_shell, outcome
from validator.engine import batches, scheduler
from validator.engine.batches import changes
from validator.transport import backend
from validator.transport.shell import Answer, Command

# What changes a host is told from what only looks, so that a user's file keeps its order where that matters.


CHANGE = """\
touch /x
echo a > /tmp/f
echo a>>f
printf x &> f
echo hi 1>f
cat x | tee y
cat > %s <<X
sudo -n touch x
A=b mkdir x
/bin/rm -rf x
cd /tmp && rm x
sh -c 'touch x'
bash -c "mkdir x"
if true; then touch x; fi
for i in 1; do mkdir $i; done
systemctl restart foo
systemctl --now enable foo
systemctl daemon-reload
service foo stop
sed -i s/a/b/ f
sed -e a -i f
tar xf x
curl -sSLo x http://x
dpkg -i x
rpm -Uvh x
apt-get install -y x
apt-mark hold x
apt update
dnf -y module install x
pip3 install --user x
kill -HUP 1
wget http://x/y
docker run --rm x
nvidia-smi -i 0 -mig 1
sysctl -w a=b
dmesg -C
date -s now
logger -t x hi
find / -name x -delete
journalctl --rotate
mount /dev/x /mnt
ldconfig
reboot
amazon-cloudwatch-agent-ctl -m ec2 -a stop
 > """.splitlines()
LOOK = """\
echo hi
echo hi > /dev/null 2>&1
cat /proc/x 2>/dev/null
ls -l 2>&1 | wc -l
systemctl is-active foo
systemctl show -p ActiveState foo
systemctl list-units --state=failed
rpm -qa
dpkg -l
apt-mark showhold
apt list --installed
apt-cache policy x
dnf repolist
yum list installed
pip3 list
pip --version
make --version
wget --version
wget -qO- http://x
kill -0 1
nvidia-smi -q -x
nvidia-smi --query-gpu=name --format=csv
sysctl -n a
docker ps
test -e /usr/bin/install
/etc/passwd
make
ip addr show
curl -sf http://169.254.169.254/latest/meta-data/
crontab -l
date +%s
journalctl -u foo -n 10
dmesg | grep -i nvrm
find /etc -name x
sed -n 1,2p f
awk '{print $1}' /etc/passwd
grep touch /etc/x
tar tf x
python3 --version
ldconfig -p
mount
mount | grep /mnt
iptables -L -n
amazon-cloudwatch-agent-ctl -a status
%(py1)s > %(py3)s
>
>=
a -> b""".splitlines()


@pytest.mark.parametrize("text", CHANGE)
def test_changing_commands_are_recognized(text: str) -> None:
    assert changes(text)


@pytest.mark.parametrize("text", LOOK)
def test_read_only_commands_are_recognized(text: str) -> None:
    assert not changes(text)


class Link:
    """Stands for a host: keeps what it was told of sending again."""

    fault = None
    connecting = None

    def __init__(self) -> None:
        self.told: list[tuple[list[str], bool]] = []

    def known(self, root: bool) -> dict[str, Answer]:
        return {}

    def note_asker(self, command: str, check: str) -> None:
        """Where its round trips are measured, a host notes which check asked."""

    def execute(self, commands: list[Command], *, root: bool, resend: bool) -> tuple[list[Answer], int]:
        self.told.append(([command.text for command in commands], resend))
        return [Answer(0, b"", b"", 0.0) for _ in commands], 1


def test_changing_commands_keep_their_order_and_are_not_resent() -> None:
    link = Link()

    def ask(*texts: str) -> None:
        for text in texts:
            backend.runner(backend.Request(link, Command(text), False))  # type: ignore[arg-type]

    def task(name: str, *texts: str, mutates: bool = False) -> scheduler.Task:
        return scheduler.Task(name, lambda: ask(*texts), host=link, mutates=mutates)

    scheduler.Scheduler().run(
        [
            task("a", "cat a", "cat b"),
            task("b", "cat c"),
            task("c", "cat d", "touch d", mutates=True),
            task("d", "cat e"),
            task("e", "cat f"),
        ]
    )
    assert link.told == [
        (["cat a", "cat c"], True),
        (["cat b"], True),
        (["cat d"], True),
        (["touch d"], False),
        (["cat e", "cat f"], True),
    ]


# Checks that may change their host keep their order; the others run concurrently.


ORDERED = Path(__file__).parents[1] / "data" / "ordered.py"


@pytest.mark.parametrize("way", [(), ("--serial",)])
def test_changes_of_a_check_are_visible_to_the_next(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    """Nothing is marked: which checks change something is read from what they say."""
    place = tmp_path / "place"
    monkeypatch.setenv("ORDERED_PLACE", str(place))
    outcome = run(ORDERED, *way)
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text
    assert len(outcome.verdicts) == 16
    assert not place.exists()


# Commands of one batch that one process can answer go out as one; the others as they are.


MODE, OWNER, PACKAGE = "stat -Lc %a /etc/passwd", "stat -Lc %U /etc/hosts", "dpkg-query -f '${Status}' -W "


def test_kinds_are_joined_each_by_itself_and_answers_are_in_order() -> None:
    host = Host(joint=Answer(1, b"", b"", 0.1))
    texts = ["first", MODE, f"{PACKAGE}aa", OWNER, f"{PACKAGE}bb", "last"]
    results = batches.execute_joined([Command(text) for text in texts], host.ask)
    first, again = host.batches
    assert len(first) == 5 and first[:2] == ["first", "last"]  # one of packages, one of each file
    assert again == [texts[2], texts[4]]  # the joint answer did not tell
    assert [results.answers[place].stdout for place in (0, 2, 4, 5)] == [texts[p].encode() for p in (0, 2, 4, 5)]
    assert results.attempts == 2


def test_nothing_to_join_is_sent_as_it_is() -> None:
    host = Host()
    assert batches.execute_joined([], host.ask).answers == []
    results = batches.execute_joined([Command("one"), Command("two")], host.ask)
    assert host.batches == [[], ["one", "two"]] and dict(results.beside) == {}


# Package queries of one batch that go out as one get the answers that each would have had alone.


STATUS = "dpkg-query -f '${Status}' -W "
VERSION = "dpkg-query -f '${Status} ${Version}' -W "


def of(commands: Sequence[Command], send: batches.Execute) -> tuple[list[Answer], int]:
    results = batches.execute_joined(commands, send)
    return results.answers, results.attempts


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="no dpkg here")
def test_joined_queries_have_the_output_of_single_ones() -> None:
    asked = [STATUS + "bash", VERSION + "sed", "echo between", STATUS + "no-such-package", VERSION + "bash",
             STATUS + "bash", VERSION + "no-such-one", VERSION + "sh", STATUS + "bash:all"]  # fmt: skip
    commands = [Command(text) for text in asked]
    alone, _ = in_shell(commands)
    together = batches.execute_joined(commands, in_shell).answers
    assert outcome(together) == outcome(alone)
    assert alone[0].stdout == b"install ok installed" and alone[3].rc == 1  # both kinds were among them


def test_many_packages_are_one_command() -> None:
    lines = b"".join(b"p%d install ok installed 1.%d\n" % (number, number) for number in range(100))
    host = Host(joint=Answer(0, lines, b"", 0.2))
    commands = [Command("first"), *(Command(f"{VERSION}p{number}") for number in range(100)), Command("last")]
    answers, attempts = of(commands, host.ask)
    assert [len(batch) for batch in host.batches] == [3] and attempts == 1
    assert [answer.stdout for answer in answers[1:-1]] == [b"install ok installed 1.%d" % n for n in range(100)]
    assert (answers[0].stdout, answers[-1].stdout) == (b"first", b"last")


def test_single_query_is_sent_unchanged() -> None:
    host = Host()
    batches.execute_joined([Command("echo"), Command(STATUS + "bash")], host.ask)
    assert host.batches == [["echo", STATUS + "bash"]]


@pytest.mark.parametrize(
    "joint",
    [
        Answer(2, b"", b"dpkg-query: error: cannot read the database\n", 0.1),
        Answer(0, b"aa install ok installed 1\naa install ok installed 1\nbb install ok installed 2\n", b"", 0.1),
        Answer(1, b"bb install ok installed 2\n", b"dpkg-query: what nobody foresaw\n", 0.1),
    ],
    ids=["no database", "two architectures", "no word of one"],
)
def test_queries_without_a_joint_answer_are_sent_alone(joint: Answer) -> None:
    host = Host(joint=joint)
    answers, attempts = of([Command(STATUS + "aa"), Command(VERSION + "bb")], host.ask)
    assert host.batches[1][0] == STATUS + "aa" and attempts == 2
    assert answers[0].stdout == (STATUS + "aa").encode()
    if joint.rc != 2:
        assert host.batches[1:] == [[STATUS + "aa"]] and answers[1].stdout == b"install ok installed 2"


def test_expired_joint_command_expires_every_query() -> None:
    host = Host(joint=Answer(124, b"", b"", 5.0, expired=True))
    answers, _ = of([Command(STATUS + "aa", 5.0), Command(STATUS + "bb", 5.0)], host.ask)
    assert [answer.expired for answer in answers] == [True, True] and len(host.batches) == 1


def test_other_deadlines_are_not_joined() -> None:
    host = Host()
    batches.execute_joined([Command(STATUS + "aa", 5.0), Command(STATUS + "bb", 60.0)], host.ask)
    assert host.batches == [[STATUS + "aa", STATUS + "bb"]]
