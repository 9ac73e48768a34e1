"""Recognizes shell commands that may change their host.

When unsure, a command is assumed to change it: that costs a round trip, while the opposite could give a wrong verdict.
"""

from __future__ import annotations

import functools
import re

# Where a command begins: at the start, after a separator, an opening bracket or quote, or a word that runs a command.
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
_NOT_HELP = r"(?!\s+(?:--version|--help|-V|version|help)\s*(?:$|[;&|'\"]))"
_CHANGES = re.compile(rf"{_BEGIN}{_SET}{_PATH}(?:(?:{_VERBS}){_NOT_HELP}\s|(?:reboot|poweroff|halt)(?:\s|$)|{_WITH})")
# Output redirected into a file: not to a descriptor or to /dev/null, and not an arrow or a comparison.
_WRITES = re.compile(
    r"(?:^|[^-=<>])(?:>>|>\||&>|>)(?!\s*(?:&|/dev/(?:null|stdout|stderr|tty|fd)\b)|[=>&)])(?:\s*[^\s=]|\s*$)"
)
_NO_COMMAND = re.compile(r"[<>=!&|]*|.*%\(py\d+\)s.*", re.S)  # an operator; pytest's rewritten `assert`


@functools.cache
def changes(text: str) -> bool:
    """Whether a shell command may change something on its host."""
    if _NO_COMMAND.fullmatch(text):
        return False
    return _CHANGES.search(text) is not None or _WRITES.search(text) is not None
