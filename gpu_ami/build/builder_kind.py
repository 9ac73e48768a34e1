"""What roles run on in the local region: a booted builder or a sandbox of this host, which is several times as fast."""

from __future__ import annotations

from gpu_ami.errors import UsageError
from gpu_ami.progress import Progress

AUTO, SANDBOX, MACHINE = "auto", "sandbox", "machine"
BUILDERS = (AUTO, SANDBOX, MACHINE)
# In the certificate, among what is not proven.
NOT_BOOTED = (
    "the build on a booted machine: the roles ran in a sandbox of the build host (its kernel, no systemd, no"
    " cloud-init); --builder machine boots a builder"
)


def choose(asked: str, conditions: str, progress: Progress) -> bool:
    """Whether the builder is a sandbox. UsageError: one was asked for, and it is not possible here."""
    if asked == MACHINE:
        return False
    reason = _reason_against(conditions)
    if reason and asked == SANDBOX:
        raise UsageError(f"--builder sandbox: {reason}", hint="--builder machine boots a builder")
    if reason:
        progress.note(f"the builder is a booted machine: no sandbox, because {reason}")
    return not reason


def _reason_against(conditions: str) -> str:
    if conditions:
        return f"conditions {conditions} are of booted machines"
    from gpu_ami.local.sandbox import builder

    return builder.unusable()
