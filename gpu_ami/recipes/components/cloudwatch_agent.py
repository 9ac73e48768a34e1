"""The CloudWatch agent's package. Its configuration is made of the sections that are published (../agent.py)."""

from __future__ import annotations

from gpu_ami.recipes.facts import ARCHITECTURES, NEWEST, Sources, parts
from gpu_ami.recipes.rules import TELEMETRY_RULES, Assignment, Component, Observed, ResolveContext, content, package
from validator.plan_document import AgentPackage, CloudWatchAgent, package_system
from validator.schema import Keys, Text


def _section(context: ResolveContext, _versions: Assignment, sources: Sources) -> AgentPackage:
    facts, asked = context.facts.cloudwatch_agent, str(context.section("cloudwatch_agent")["version"])
    if asked == NEWEST:  # of the releases whose build number is known, so that the plan stays pinned
        asked = max(facts["versions"], key=parts)
    version, build, _ = asked.partition("b")
    # A release that the facts do not know is planned all the same: its version is compared when it is installed.
    release = facts["versions"].get(version, facts["other_versions"])
    if build:
        release = {"directory": asked, "source": "build number in the recipe", "date": facts["date"]}
    kind = package_system(context.os)
    folder = (
        f"{context.os['cloudwatch_agent']}/{ARCHITECTURES[context.values['architecture']].deb}/{release['directory']}"
    )
    url = f"{facts['base_url']}/{folder}/amazon-cloudwatch-agent.{kind}"
    sources.add(f"CloudWatch agent {version}", release)
    sources.add("the CloudWatch agent's signing key", facts)
    return {
        "version": version,
        "url": url,
        "signature_url": f"{url}.sig",
        "key_url": facts["key_url"],
        "key_fingerprint": facts["key_fingerprint"],
    }


COMPONENT = Component(
    "cloudwatch_agent",
    observed=Observed(
        (
            package(r"amazon-cloudwatch-agent", r"^(\d+\.\d+\.\d+)"),
            content("/opt/aws/amazon-cloudwatch-agent/bin/CWAGENT_VERSION", r"(\d+\.\d+\.\d+)"),
        )
    ),
    layer="telemetry",
    early={"node": "package"},
    after=("tuning",),
    is_in_every_plan=True,
    keys=Keys({"version": Text("1.300071.0", rf"{NEWEST}|\d+\.\d+\.\d+(b\d+)?")}, needed=("version",)),
    meanings={"version": "`newest` or a release; with a build number (`1.300071.0b1766`) exactly that file"},
    section=CloudWatchAgent,
    write=_section,
    rules=TELEMETRY_RULES,
)
