"""What changes a host is told from what only looks, so that a user's file keeps its order where that matters."""

from __future__ import annotations

import pytest

from validator.engine import scheduler
from validator.engine.commands import changes
from validator.transport import backend
from validator.transport.shell import Answer, Command

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
