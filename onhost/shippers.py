"""What sends logs and metrics from a system, by its files: units that start, the CloudWatch agent, other shippers, and
programs that look for Xids. A part of observation.py, which sends it along. Python 3.6 or newer; changes nothing.
"""

import json
import os
import re
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

Row = Dict[str, Any]

AGENT = "/opt/aws/amazon-cloudwatch-agent"
UNIT_FOLDERS = (
    "/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
)  # fmt: skip
# Where programs that capture kernel messages are started from.
STARTERS = tuple(folder + "/*." + kind for folder in UNIT_FOLDERS for kind in ("service", "timer")) + (
    "/etc/cron.d/*", "/etc/crontab", "/var/spool/cron/*", "/var/spool/cron/crontabs/*",
    "/etc/cron.hourly/*", "/etc/cron.daily/*", "/etc/rc.local",
)  # fmt: skip


class Units:
    """Which units a boot starts, by the links of systemd. tree: observation.Tree."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        wanted = [
            path
            for folder in UNIT_FOLDERS
            for kind in ("wants", "requires", "upholds")
            for path in tree.glob(folder + "/*." + kind + "/*")
        ]
        self.enabled = {os.path.basename(path) for path in wanted}
        # Links of `enable` to another name (syslog.service → rsyslog.service) start their unit too.
        links = [path for path in tree.glob("/etc/systemd/system/*.service") if tree.is_link(path)]
        self.enabled |= {os.path.basename(tree.resolve(path)) for path in links}
        self.masked = sorted(
            os.path.basename(path) for path in tree.glob("/etc/systemd/system/*.*") if self._is_null(path)
        )

    def _is_null(self, path: str) -> bool:
        real = self.tree.resolve(path)
        return self.tree.shown(real) == "/dev/null" or (os.path.isfile(real) and os.path.getsize(real) == 0)

    def why_not(self, name: str) -> str:
        """Why a boot does not start a unit; "" where it does, directly or by its timer, path or socket."""
        if name in self.masked:
            return name + " is masked"
        stem = name.rpartition(".")[0]
        names = [name] + [stem + "." + kind for kind in ("timer", "path", "socket")]
        if "@" in name or any(one in self.enabled and one not in self.masked for one in names):
            return ""
        if any(one.startswith(stem + "@") for one in self.enabled) or self._is_wanted(name):
            return ""
        return name + " is not enabled"

    def _is_wanted(self, name: str) -> bool:
        """Whether another enabled unit, or a rule of udev, starts it."""
        for path in [one for folder in UNIT_FOLDERS for one in self.tree.glob(folder + "/*")]:
            other = os.path.basename(path)
            if other != name and (other in self.enabled or other.endswith(".timer")) and "." in other:
                found = re.findall(r"(?m)^(?:Wants|Requires|BindsTo|Upholds|Unit)=(.*)$", self.tree.text(path) or "")
                if name in " ".join(found).split() and other in self.enabled:
                    return True
        return any(name in (self.tree.text(path) or "") for path in self.tree.glob("/etc/udev/rules.d/*.rules"))


# --- the CloudWatch agent -------------------------------------------------------------------------------------------


def agent(tree: Any, units: Units) -> Row:
    """The agent's configuration from all places that it reads, and what else decides it.

    At each start it merges etc/amazon-cloudwatch-agent.json and the parts in etc/amazon-cloudwatch-agent.d (translator
    of aws/amazon-cloudwatch-agent, cmdutil.GenerateMergedJsonConfigMap, mode "remove"); fetch-config and append-config
    write such parts. Parts that end in .yaml are the OpenTelemetry collector's, and no JSON. Without any it takes its
    default. unread: configurations of the agent at places that it does not read, and that no boot fetches. What this
    user may not read is in tree.unread alone.
    """
    folder = AGENT + "/etc/amazon-cloudwatch-agent.d"
    paths = tree.glob(AGENT + "/etc/amazon-cloudwatch-agent.json")
    paths += [path for path in tree.glob(folder + "/*") if not path.endswith((".tmp", ".yaml"))]
    parts, mistakes = [], []
    for path in paths:
        text = tree.text(path)
        if text is None and path in tree.unread:
            continue
        try:
            part = json.loads(text if text is not None else "")
            if not isinstance(part, dict):
                raise ValueError("expected an object")
        except (ValueError, RecursionError) as error:
            mistakes.append("%s: %s" % (path, error))
            continue
        parts.append({"path": path, "config": part})
    common = tree.text(AGENT + "/etc/common-config.toml") or ""
    settings = [line.strip() for line in common.splitlines() if line.strip() and not line.strip().startswith("#")]
    told = [
        {"path": path, "command": " ".join(command.split())}
        for path, code in started_at_boot(tree, units)
        for command in _commands_for_agent(code)
    ]
    name = "amazon-cloudwatch-agent.service"
    return {
        "installed": bool(tree.glob(AGENT + "/bin/amazon-cloudwatch-agent")), "parts": parts, "mistakes": mistakes,
        "common_config": settings, "fetched_at_boot": told, "enabled": not units.why_not(name),
        "masked": name in units.masked, "collector": tree.glob(folder + "/*.yaml"),
        "translated": bool(tree.glob(AGENT + "/etc/amazon-cloudwatch-agent.toml")),
        "unread": unread(tree, [part["config"] for part in parts], " ".join(row["command"] for row in told)),
    }  # fmt: skip


# Commands that configure the agent: in a shell's form or as a list of arguments, or what is written to where it reads.
_CTL = re.compile(r"amazon-cloudwatch-agent-ctl\b")
_CONFIG = re.compile(r"\b(?:fetch|append)-config\b")
_WRITES = re.compile(r">|\b(?:tee|cp|install|mv|ln|curl|wget)\b")
_READ_BY_AGENT = re.compile(AGENT + r"/etc/amazon-cloudwatch-agent\.(?:json\b|d/)")


def _commands_for_agent(code: str) -> Iterator[str]:
    """One expression for both would take the square of a line's length."""
    for command in re.split(r"[\n;|]", code):
        writes = _WRITES.search(command)
        if writes is not None and _READ_BY_AGENT.search(command, writes.end()):
            yield command
            continue
        ctl = _CTL.search(command)
        if ctl is not None and _CONFIG.search(command, ctl.end()):
            yield command[ctl.start() :]


# Where wizards and people leave configurations (config.json beside the binaries is the agent's own wizard's).
UNREAD = (
    AGENT + "/bin/*.json", AGENT + "/etc/*.json", AGENT + "/*.json", "/opt/aws/*.json", "/opt/aws/cloudwatch/*.json",
    "/etc/amazon-cloudwatch-agent*.json", "/etc/cloudwatch*.json", "/etc/cloudwatch*/*.json",
    "/etc/amazon/amazon-cloudwatch-agent/*.json", "/etc/amazon-cloudwatch-agent/*.json",
    "/usr/local/etc/*cloudwatch*.json",
)  # fmt: skip


def unread(tree: Any, configs: Sequence[Row], commands: str) -> List[str]:
    found = []
    for path in sorted({path for pattern in UNREAD for path in tree.glob(pattern)}):
        if path == AGENT + "/etc/amazon-cloudwatch-agent.json" or path in commands:
            continue
        try:
            config = json.loads(tree.text(path) or "")
        except (ValueError, RecursionError):
            continue
        collects = any(
            isinstance(config, dict)
            and isinstance(config.get(section), dict)
            and section + "_collected" in config[section]
            for section in ("metrics", "logs")
        )
        if collects and config not in configs:
            found.append(path)
    return found


def startup_files(tree: Any) -> List[str]:
    """What a boot runs that may configure the agent: user data, cloud-init's own scripts and settings, units, cron."""
    paths: List[str] = tree.glob("/var/lib/cloud/instance/user-data.txt") + tree.glob(
        "/var/lib/cloud/instance/scripts/*"
    )
    paths += tree.glob("/var/lib/cloud/scripts/per-*/*") + tree.glob("/etc/cloud/cloud.cfg.d/*.cfg")
    paths += [path for folder in UNIT_FOLDERS for path in tree.glob(folder + "/*.service.d/*.conf")]
    return paths + [path for pattern in STARTERS for path in tree.glob(pattern)]


def started_at_boot(tree: Any, units: Units) -> List[Tuple[str, str]]:
    """Path and code of what a boot runs that may configure the agent, and of the programs that it starts."""
    found: Dict[str, str] = {}
    for path in startup_files(tree):
        unit = (
            os.path.basename(os.path.dirname(path))[: -len(".d")] if path.endswith(".conf") else os.path.basename(path)
        )
        if path.endswith((".service", ".timer", ".conf")) and units.why_not(unit):
            continue
        for current, code in started_by(tree, path):
            found.setdefault(current, code)
    return sorted(found.items())


# --- programs that something starts ---------------------------------------------------------------------------------

_ASSIGNED = re.compile(r"(?m)^\s*(?:export\s+|readonly\s+|local\s+)?([A-Za-z_]\w*)=[\"']?(/[\w./@+-]+)[\"']?\s*$")


def code_of(text: str) -> str:
    """A script without comments, its continued lines joined, a shell's variables that name a path in their place."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    code = re.sub(r"\\\n\s*", " ", code)
    for name, value in _ASSIGNED.findall(code):
        code = re.sub(r"\$(?:\{%s\}|%s\b)" % (name, name), value, code)
    return code


def started_by(tree: Any, starter: str) -> List[Tuple[str, str]]:
    """Path and code of a unit, script or table of cron, and of the scripts that it starts; of eight at most."""
    found: List[Tuple[str, str]] = []
    waiting: List[str] = [starter]
    while waiting and len(found) < 8:
        current = waiting.pop(0)
        text = tree.text(current, 200_000)
        if text is None or current in dict(found):
            continue
        code = code_of(text)
        found.append((current, code))
        if current == starter or text.startswith("#!"):
            waiting += [name for name in re.findall(r"/[\w./+-]{3,}", code) if is_program(tree, name)]
    return found


# --- other shippers -------------------------------------------------------------------------------------------------

# Name, configurations, unit, where a section starts. Sources: docs.fluentbit.io (inputs kmsg, systemd, tail; output
# cloudwatch_logs), vector.dev (source journald, sink aws_cloudwatch_logs), docs.fluentd.org and
# fluent-plugin-cloudwatch-logs, opentelemetry-collector-contrib (journaldreceiver, awscloudwatchlogsexporter),
# grafana.com (promtail journal, loki.source.journal), docs.datadoghq.com (type: journald), awslogs of AWS.
SHIPPERS = (
    ("Fluent Bit", ("/etc/fluent-bit/*", "/etc/td-agent-bit/*"), ("fluent-bit", "td-agent-bit"),
     r"(?mi)^\s*(?=\[(?:INPUT|OUTPUT|FILTER|SERVICE)|- name\s*:)"),
    ("Vector", ("/etc/vector/*.toml", "/etc/vector/*.y*ml"), ("vector",), r"(?m)^\[|^  (?=\w[\w-]*:\s*$)"),
    ("Fluentd", ("/etc/fluent/*.conf", "/etc/td-agent/*.conf"), ("fluentd", "td-agent"), r"<(?=source|match)"),
    ("OpenTelemetry Collector", ("/etc/otelcol*/*.y*ml", "/opt/aws/aws-otel-collector/etc/*.y*ml"),
     ("otelcol-contrib", "otelcol", "aws-otel-collector"), r"(?m)^  (?=[\w/]+:)"),
    ("Promtail", ("/etc/promtail/*.y*ml",), ("promtail",), r"(?m)^\s*- job_name"),
    ("Alloy", ("/etc/alloy/*.alloy",), ("alloy",), r"(?m)^(?=[\w.]+ \")"),
    ("Datadog", ("/etc/datadog-agent/conf.d/*/conf.yaml",), ("datadog-agent",), r"(?m)^\s*- type"),
    ("awslogs", ("/etc/awslogs/awslogs.conf", "/var/awslogs/etc/awslogs.conf"), ("awslogs", "awslogsd"), r"(?m)^\["),
)  # fmt: skip
_JOURNAL = re.compile(
    r"(?i)^[^#\n]*?(?:name\s*:?\s*systemd|type\s*[=:]\s*\"?'?journald|@type\s+systemd|^journald?\b.*:|loki\.source\.journal"
    r"|\bjournal\s*:|: journald)", re.MULTILINE,
)  # fmt: skip
_KMSG = re.compile(r"(?mi)^[^#\n]*?(?:name\s*:?\s*kmsg\b|type\s*[=:]\s*\"?'?dmesg|/dev/kmsg)")
_KERNEL_FILE = re.compile(r"(?m)^[^#\n]*?(/var/log/(?:messages|syslog|kern\.log))\b")
_OTHER_UNITS = re.compile(
    r"(?mi)^[^#\n]*?(?:systemd_filter\s*:?\s*_SYSTEMD_UNIT\s*=\s*(\S+)|include_units\s*[=:]\s*\[?\s*([^\]\n]*)"
    r"|units\s*:\s*\[?\s*([^\]\n]+)|_SYSTEMD_UNIT\"\s*:\s*\"([^\"]+))"
)
_GROUP = re.compile(r"(?mi)^[^#\n]*?(?:log_group_name|group_name|log_group)\s*[=: ]\s*[\"']?([\w./#{}$-]+)")
_CLOUDWATCH = re.compile(r"cloudwatch")
# Programs that serve or send metrics of GPUs beside the CloudWatch agent: name, paths, unit.
EXPORTERS = (
    ("DCGM exporter", ("/usr/bin/dcgm-exporter", "/usr/local/bin/dcgm-exporter"),
     ("dcgm-exporter", "nvidia-dcgm-exporter")),
    ("GPU exporter", ("/usr/bin/nvidia_gpu_exporter", "/usr/local/bin/nvidia_gpu_exporter"), ("nvidia_gpu_exporter",)),
    ("gpud", ("/usr/local/bin/gpud", "/usr/sbin/gpud", "/usr/bin/gpud"), ("gpud",)),
)  # fmt: skip


def shippers(tree: Any, units: Units) -> List[Row]:
    """Shippers of logs and exporters of metrics beside the CloudWatch agent, each with what it takes and whether a boot
    starts it. kernel: by what a new kernel line reaches it ("" not at all). groups: its groups of CloudWatch Logs.
    """
    rows = []
    for name, patterns, services, sections in SHIPPERS:
        texts = {path: tree.text(path) or "" for pattern in patterns for path in tree.glob(pattern)}
        if texts:
            text = "\n".join(texts.values())
            cloudwatch = name == "awslogs" or _CLOUDWATCH.search(text)
            rows.append(
                {
                    "name": name, "config": sorted(texts), "kernel": kernel_input(re.split(sections, text)),
                    "groups": sorted(set(_GROUP.findall(text))) if cloudwatch else [],
                    "metrics": False, "off": off(units, services),
                }
            )  # fmt: skip
    for name, programs, services in EXPORTERS:
        if any(tree.glob(path) for path in programs):
            kernel = "/dev/kmsg" if name == "gpud" else ""
            row = {"name": name, "config": [], "kernel": kernel, "groups": [], "metrics": True}
            rows.append(dict(row, off=off(units, services)))
    return rows


def off(units: Units, services: Sequence[str]) -> str:
    """Why none of these services starts at boot; "" where one does."""
    reasons = [units.why_not(name + ".service") for name in services]
    return "" if "" in reasons else reasons[0]


def kernel_input(sections: Sequence[str]) -> str:
    """By what a section of a shipper's configuration takes new kernel lines: /dev/kmsg, the journal, a file."""
    for section in sections:
        if _KMSG.search(section):
            return "/dev/kmsg"
        if _JOURNAL.search(section):
            named = " ".join(filter(None, (one for match in _OTHER_UNITS.findall(section) for one in match)))
            if not named or "kernel" in named:
                return "journal"
        file = _KERNEL_FILE.search(section)
        if file:
            return file.group(1)
    return ""


# --- who captures Xids ----------------------------------------------------------------------------------------------

SNAPSHOT, FOLLOWS = "snapshot", "follows"
_KERNEL_LOG = r"/var/log/(?:messages|syslog|kern\.log)\b"
# Programs and libraries that give every new kernel line, but for those that read a file of rsyslog.
_FOLLOWS = re.compile(
    r"/dev/kmsg|dmesg[^\n|;&]*\s(?:-\w*[wW]\w*|--follow(?:-new)?)\b|journalctl[^\n|;&]*\s(?:-\w*f\w*|--follow)\b"
    r"|[\"']dmesg[\"'][^\n]*[\"'](?:-\w*[wW]|--follow)|[\"']journalctl[\"'][^\n]*[\"'](?:-\w*f\w*|--follow)[\"']"
    r"|\bjournal\.Reader\b[\s\S]*?\.(?:wait|process|fileno)\("
)
_FOLLOWS_FILE = re.compile(
    r"tail[^\n|;&]*\s[\"']?(?:-\w*[fF]\w*|--follow\S*)[^\n|;&]*" + _KERNEL_LOG + r"|[\"']tail[\"'][^\n]*" + _KERNEL_LOG
)
# A program that opens the file itself, and waits for more of it.
_WAITS_FOR_MORE = re.compile(
    r"\.(?:seek|readline)\([\s\S]*\bsleep\(|\bsleep\([\s\S]*\.readline\(|\btailer\.follow\(|(?i:\binotify|\bwatchdog\b)"
)
_SNAPSHOT = re.compile(r"\bdmesg\b|/var/log/dmesg|journalctl[^\n]*(?:-\w*k\w*|--dmesg)|\bjournal\.Reader\b")
_KERNEL_LINES = re.compile(r"NVRM|\bXid\b|\bXID\b", re.IGNORECASE)


def scripts(tree: Any, units: Units) -> List[Row]:
    """Programs that units, timers, cron and boot start, and that look for the driver's lines.

    how: FOLLOWS reads new kernel lines as they come; SNAPSHOT reads what was there when it ran. Of a SNAPSHOT, `again`
    says that something starts it again and again (cron, a timer, a loop in it). reads: files of rsyslog from which it
    has the lines; [] where it has them of the kernel or the journal. off: why no boot starts it.
    """
    found: Dict[str, Row] = {}
    starters = {tree.resolve(path): path for pattern in STARTERS for path in tree.glob(pattern)}
    for path in sorted(starters.values()):
        for current, code in started_by(tree, path):
            if _KERNEL_LINES.search(code) and reading(code):
                row = described(tree, units, current, path, code)
                if current not in found or (found[current]["off"] and not row["off"]):
                    found[current] = row
    return [found[path] for path in sorted(found)]


def reading(code: str) -> Optional[Tuple[str, List[str]]]:
    """How a program reads kernel lines, and of which files of rsyslog; None where it reads none."""
    if _FOLLOWS.search(code):
        return FOLLOWS, []
    files = sorted(set(re.findall(_KERNEL_LOG, code)))
    if files:
        waits = re.search(r"\bopen\(", code) and _WAITS_FOR_MORE.search(code)
        return (FOLLOWS if waits or _FOLLOWS_FILE.search(code) else SNAPSHOT), files
    return (SNAPSHOT, []) if _SNAPSHOT.search(code) else None


def is_program(tree: Any, path: str) -> bool:
    """Whether a path may be a script: the interpreters and tools of the system's folders are none of anybody's."""
    if not path.startswith(("/opt/", "/usr/local/", "/etc/", "/home/", "/root/", "/srv/", "/usr/bin/", "/usr/sbin/")):
        return path.startswith(("/usr/libexec/", "/usr/lib/")) and (tree.text(path, 64) or "").startswith("#!")
    head = tree.text(path, 64) or ""
    return head.startswith("#!") or path.endswith((".py", ".sh"))


def described(tree: Any, units: Units, path: str, starter: str, code: str) -> Row:
    how, reads = reading(code) or (SNAPSHOT, [])
    timed = starter.endswith(".timer") or "cron" in starter or is_repeated(tree, starter, code)
    looped = bool(re.search(r"\bwhile\b[^\n]*(?:true|True|1|:)\s*[:;\n]", code)) and "/var/log/dmesg" not in code
    output = re.findall(r"(?m)^Standard(?:Output|Error)=(?:append|file|truncate):(/\S+)", tree.text(starter) or "")
    named = re.findall(r"/var/(?:log|opt)/[\w./+-]+", code)
    writes = {*output, *named} - {"/var/log/dmesg", "/var/log/messages", *reads}
    return {
        "path": path, "started_by": starter, "how": how, "reads": reads, "again": timed or looped,
        "writes": sorted(writes), "off": not_started(tree, units, path, starter), "ships": ships(code),
    }  # fmt: skip


_PUTS_LINES = re.compile(r"put[-_]log[-_]events")
_GROUP_OF_CALL = re.compile(r"(?:--log-group-name[ =]+|logGroupName\s*=\s*)[\"']?(/?[\w./#-]+)")


def ships(code: str) -> List[str]:
    """Groups of CloudWatch Logs to which a program sends lines itself; an empty name where it does not say which."""
    return sorted(set(_GROUP_OF_CALL.findall(code))) or [""] if _PUTS_LINES.search(code) else []


def is_repeated(tree: Any, starter: str, code: str) -> bool:
    """Whether a unit's timer, or its Restart=, starts a program again and again, not only once after the boot."""
    if not starter.endswith(".service"):
        return False
    timer = tree.text(starter.rpartition(".")[0] + ".timer") or ""
    if re.search(r"(?m)^(?:OnCalendar|OnUnitActiveSec|OnUnitInactiveSec)=", timer):
        return True
    restarted = re.search(r"(?m)^Restart=always", tree.text(starter) or "")
    return bool(restarted) and not re.search(r"sleep +inf|&\s*$", code)


def not_started(tree: Any, units: Units, path: str, starter: str) -> str:
    """Why a boot does not start a program; "" where it does."""
    name = os.path.basename(starter)
    if name.endswith((".service", ".timer")):
        command = re.search(r"(?m)^ExecStart=[-@:+!]*(\S+)", tree.text(starter) or "")
        if command and command.group(1) == path and not os.access(tree.resolve(path), os.X_OK):
            return path + " is not executable"
        return units.why_not(name)
    started = path if path != starter else starter
    run_by_mode = starter == "/etc/rc.local" or starter.startswith(("/etc/cron.hourly/", "/etc/cron.daily/"))
    if run_by_mode and not os.access(tree.resolve(starter), os.X_OK):
        return starter + " is not executable"
    return "" if tree.glob(started) else started + " is missing"


def syslog_files(tree: Any, units: Units) -> List[Dict[str, str]]:
    """Files to which rsyslog writes kernel messages. [] where it is not installed. off: why no boot starts it."""
    if not tree.glob("/usr/sbin/rsyslogd"):
        return []
    rows = []
    reason = units.why_not("rsyslog.service")
    for path in ["/etc/rsyslog.conf"] + tree.glob("/etc/rsyslog.d/*.conf"):
        text = code_of(tree.text(path) or "")
        files = [file for file in (syslog_file(line) for line in text.splitlines()) if file]
        rows += [{"file": file, "rule": path, "off": reason} for file in files + filtered_files(text)]
    return rows


# rsyslog.com/doc/configuration/filters: property-based filters, and expressions of RainerScript.
_FILTER = re.compile(
    r"(?m)^\s*(?::(?:\w+)\s*,\s*\w+\s*,\s*\"([^\"\n]*)\"|if\b([^\n{]*?)\bthen\b)\s*\{?\s*"
    r"(?:-?(/[\w./-]+)|action\([^)]*?\bfile=\"(/[\w./-]+)\")"
)
_OF_KERNEL = re.compile(r"NVRM|\bXid\b|\bkern(?:el)?\b", re.IGNORECASE)


def filtered_files(text: str) -> List[str]:
    """Files of rules that filter for the driver's lines, or for those of the kernel."""
    found = [(one or other, path or action) for one, other, path, action in _FILTER.findall(text)]
    return [file for condition, file in found if _OF_KERNEL.search(condition)]


def syslog_file(line: str) -> Optional[str]:
    """The file of a rule that takes kernel messages, in rsyslog's old form or with action(type="omfile")."""
    rule = re.match(r"\s*([\w.,;*!=-]*(?:kern|\*)\.[\w.,;*!=-]*)\s+(.+)", line)
    if not rule or "kern.none" in rule.group(1):
        return None
    action = rule.group(2)
    target = re.match(r"-?(/[\w./-]+)", action) or re.match(r'(?i)action\(.*\bfile="(/[\w./-]+)"', action)
    return target.group(1) if target else None
