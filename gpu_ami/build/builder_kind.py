"""What roles run on in the local region: a booted builder or a sandbox of this host, which is several times as fast."""

from __future__ import annotations

from gpu_ami.errors import UsageError

AUTO, SANDBOX, MACHINE = "auto", "sandbox", "machine"
BUILDERS = (AUTO, SANDBOX, MACHINE)
# In the certificate, among what is not proven.
NOT_BOOTED = (
    "the build on a booted machine: the roles ran in a sandbox of the build host (its kernel, no systemd, no"
    " cloud-init); --builder machine boots a builder"
)


def choose(asked: str, conditions: str) -> tuple[bool, str]:
    """Whether the builder is a sandbox, and a line that says it. UsageError: one was asked for and is not possible."""
    if asked == MACHINE:
        return False, ""
    reason = _reason_against(conditions)
    if reason and asked == SANDBOX:
        raise UsageError(f"--builder sandbox: {reason}", hint="--builder machine boots a builder")
    if reason:
        return False, f"the builder is a booted machine, not a sandbox: {reason}"
    return True, "the builder is a sandbox of this host, not a booted machine (--builder machine)"


def _reason_against(conditions: str) -> str:
    if conditions:
        return f"conditions {conditions} are of booted machines"
    from gpu_ami.local.sandbox import builder

    return builder.unusable()
