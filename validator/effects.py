"""Which checks change what other checks look at, so that those keep their order.

Checks that only look may be asked in any order, hence all at once. A user's file may also have a check that writes and
a later one that reads what it wrote. Who writes is told by the commands: every text that a check could hand to
`host.run` (constants of its function, its fixtures, its helpers, its parameters) is read before anything runs. In doubt
a check is taken for one that changes: that costs a round trip, the other way round would cost the truth.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from _pytest.scope import Scope

# Where a command begins: the text, a separator, an opening bracket or quote, a word that runs another.
_BEGIN = (
    r"(?:^|[;&|({`\n]|(?<![^\s(])['\"]"
    r"|\b(?:sudo|do|then|else|exec|xargs|nohup|time|env|nice|command|eval)(?:\s+-\S+)*\s)\s*"
)
_SET = r"(?:\w+=\S*\s+)*"  # A=b before a command
_PATH = r"(?:/\S*bin/)?"
_VERBS = (
    r"touch|mkdir|rmdir|rm|mv|cp|ln|dd|tee|install|truncate|fallocate|shred|unlink|mktemp|mkfifo|mknod|split"
    r"|chmod|chown|chgrp|chattr|setfacl|restorecon|setenforce|setsebool|pkill|killall|umount|swapoff"
    r"|mkfs\S*|losetup|modprobe|rmmod|insmod|depmod|useradd|userdel|usermod|adduser|deluser|groupadd|groupdel"
    r"|groupmod|passwd|chpasswd|gpasswd"
    r"|shutdown|logger|wall|rsync|scp|unzip|gzip|gunzip|xz|unxz|patch|make|logrotate"
    r"|ssh-keygen|update-\S+|sysctl\s+-[wp]|systemd-run|systemd-tmpfiles|udevadm trigger"
)
_WITH = (
    r"systemctl\s(?:.*\s)?(?:start|stop|restart|reload|try-\S+|enable|disable|mask|unmask|kill|isolate|edit|set-\S+"
    r"|reset-failed|daemon-re\S+|preset|link|revert|reboot|poweroff|halt|suspend|clean|freeze|thaw)\b"
    r"|service\s+\S+\s+(?:start|stop|restart|reload)|initctl\s+(?:start|stop|restart|reload)"
    r"|rpm\s(?:.*\s)?(?:-[iUeF]|--(?:install|upgrade|erase|import))|dpkg\s(?:.*\s)?(?:-[irP]\b|--(?:install|remove|purge))"
    r"|(?:mount|swapon)\s+(?:-[aoB]\b|--(?:all|bind|move)|[^-|;&\s])|ldconfig(?:\s*$|\s+(?!-p|--print-cache))|dkms\s+(?!status)"
    r"|(?:apt|apt-get|aptitude|dnf|yum|zypper|apk|pacman|snap|pip3?|gem|npm|cargo)\s(?:.*\s)?(?:(?:re|un|group|local)?install"
    r"|remove|purge|erase|update|upgrade|dist-upgrade|full-upgrade|autoremove|clean|add|del|rm|download|config-manager"
    r"|makecache|refresh|ci|-[SRU]\w*)(?=\s|$|['\"])"
    r"|kill\s+(?!-0\b|-l\b)|wget\s(?!.*-\w*O\s*-|--version)"
    r"|apt-mark\s+(?:hold|unhold|auto|manual)|(?:perl|sed)\s(?:.*\s)?-\w*i|tar\s+-?\w*[xcru]"
    r"|curl\s(?:.*\s)?(?:-\w*[oOTd]|-X|--(?:output|remote-name|data|request|upload))|crontab\s+(?!-l)"
    r"|git\s(?:.*\s)?(?:clone|pull|checkout|commit|reset|fetch|init|config)\b"
    r"|(?:docker|podman|nerdctl|ctr|crictl|kubectl|helm)\s(?:.*\s)?(?:run|start|stop|restart|rm|rmi|kill|pull|push"
    r"|build|exec|create|apply|delete|load|tag|prune|compose|cp|install)\b"
    r"|(?:hostnamectl|timedatectl|localectl|loginctl)\s+(?:set-|terminate|kill|enable|disable)|date\s+(?:.*\s)?(?:-s|--set)"
    r"|journalctl\s(?:.*\s)?--(?:rotate|vacuum|flush|sync)|dmesg\s(?:.*\s)?(?:-[cCnDE]\b|--clear)"
    r"|ip6?tables\s(?:.*\s)?-[AIDFPXNRZ]\b|nft\s+(?:add|delete|flush|insert)"
    r"|ip\s(?:.*\s)?(?:add|del|delete|set|flush|change|replace)\b|ifconfig\s+\S+\s+\S|tc\s(?:.*\s)?(?:add|del|change|replace)\b"
    r"|nvidia-smi\s(?:.*\s)?(?:-(?:pm|pl|mig|r|e|c|ac|lgc|rgc|lmc|rmc|cc|am|dm|fdm)\b|--(?:gpu-reset|lock|reset|persist|power-limit)|mig\b.*-[cdC])"
    r"|amazon-cloudwatch-agent-ctl\s.*-a\s*(?!\s*status)|aws\s.*\s(?:create|put|delete|update|run|start|stop|terminate)-"
    r"|find\s.*-(?:delete|exec|execdir|ok|fprint)|openssl\s.*-out\b"
)
_ASKS = r"(?!\s+(?:--version|--help|-V|version|help)\s*(?:$|[;&|'\"]))"
_CHANGES = re.compile(rf"{_BEGIN}{_SET}{_PATH}(?:(?:{_VERBS}){_ASKS}\s|(?:reboot|poweroff|halt)(?:\s|$)|{_WITH})")
# Into a file: neither a descriptor nor where nothing is kept, and no arrow or comparison.
_WRITES = re.compile(
    r"(?:^|[^-=<>])(?:>>|>\||&>|>)(?!\s*(?:&|/dev/(?:null|stdout|stderr|tty|fd)\b)|[=>&)])(?:\s*[^\s=]|\s*$)"
)
_NO_COMMAND = re.compile(r"[<>=!&|]*|.*%\(py\d+\)s.*", re.S)  # an operator; what pytest makes of an `assert`
_BESIDE = frozenset({"builtins", "testinfra", "pytest", "_pytest", "pluggy", "validator", "gpu_ami"})
_ENOUGH = (
    2000  # functions and values looked at for one check: more is no check any more, and taken for one that changes
)


@functools.cache
def changes(text: str) -> bool:
    """Whether a shell command may change something on its host."""
    if _NO_COMMAND.fullmatch(text):
        return False
    return _CHANGES.search(text) is not None or _WRITES.search(text) is not None


class Effects:
    """What is known of the checks of one run."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[object, bool]] = {}  # by id: what was looked at (so that ids stay), and the finding

    def of(self, items: Iterable[pytest.Item]) -> set[pytest.Item]:
        """Those that may change something, and those that share what such a fixture has set up and takes down again."""
        found, shared = set(), set()
        items = list(items)
        for item in items:
            fixtures = [one for some in _fixtures(item).values() for one in some]
            changing = [one for one in fixtures if self._may(one.func)]
            shared |= {_node(item, one._scope) for one in changing if one._scope is not Scope.Function}
            if changing or self._may(getattr(item, "function", None)) or self._may(_parameters(item)):
                found.add(item)
        return found | {item for item in items if shared & set(item.listchain())}

    def _may(self, value: object) -> bool:
        known = self._seen.get(id(value))
        if known is None:
            texts = _Texts()
            known = self._seen[id(value)] = (value, any(changes(text) for text in texts.of(value)) or texts.too_many)
        return known[1]


class _Texts:
    """Every text that a function could come to use: its constants, and those of what it names."""

    def __init__(self) -> None:
        self._visited: dict[int, object] = {}
        self.too_many = False

    def of(self, value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
            return
        if isinstance(value, bytes):
            yield value.decode(errors="replace")
            return
        if id(value) in self._visited or self.too_many:
            return
        self._visited[id(value)] = value
        self.too_many = len(self._visited) > _ENOUGH
        for part in self._parts(value):
            yield from self.of(part)

    def _parts(self, value: Any) -> Iterator[object]:
        if isinstance(value, types.MethodType):
            yield value.__func__
            yield type(value.__self__)
        elif isinstance(value, types.FunctionType):
            if not _is_beside(value.__module__):
                yield from self._of_function(value)
        elif isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, dict):
            yield from value.values()
            yield from value.keys()
        elif isinstance(value, list | tuple | set | frozenset):
            yield from value
        elif isinstance(value, type):
            if not _is_beside(value.__module__):
                yield from (
                    one for name, one in vars(value).items() if name not in ("__doc__", "__module__", "__qualname__")
                )
        elif isinstance(value, staticmethod | classmethod):
            yield value.__func__
        elif isinstance(value, property):
            yield value.fget

    def _of_function(self, function: types.FunctionType) -> Iterator[object]:
        names: set[str] = set()
        for code in _codes(function.__code__):
            names.update(code.co_names)
            constants = code.co_consts
            yield from (
                one for one in constants if isinstance(one, str | tuple | frozenset | bytes) and one != function.__doc__
            )
        yield from (function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).values()
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
        for name in names & function.__globals__.keys():
            found = function.__globals__[name]
            if isinstance(found, types.ModuleType):
                if not _is_beside(found.__name__):
                    yield from (vars(found)[one] for one in names & vars(found).keys())
            else:
                yield getattr(found, "__wrapped__", found)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@functools.cache
def _is_beside(module: str | None) -> bool:
    """Whether a module is a library that has no command of the user's."""
    top = (module or "").partition(".")[0]
    where = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return top in _BESIDE or top in sys.stdlib_module_names or "-packages/" in where


def _fixtures(item: pytest.Item) -> dict[str, Any]:
    info = getattr(item, "_fixtureinfo", None)
    return dict(info.name2fixturedefs) if info is not None else {}


def _parameters(item: pytest.Item) -> tuple[object, ...]:
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return ()
    return tuple(value for name, value in callspec.params.items() if name != "_testinfra_host")


def _node(item: pytest.Item, scope: Scope) -> Any:
    """The node that all checks share for which a fixture of this scope is set up once."""
    kinds = {Scope.Class: pytest.Class, Scope.Module: pytest.Module, Scope.Package: pytest.Package}
    kind = kinds.get(scope)
    return (item.getparent(kind) if kind is not None else None) or item.session
