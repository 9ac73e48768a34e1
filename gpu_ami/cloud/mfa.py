"""Credentials of a profile that asks for an MFA code: asked for once a run, then handed to every child process.

Packer and the validators would each open the profile again, with a closed stdin, and fail.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_ami.cloud import aws_errors
from gpu_ami.cloud.place import Credentials, Place


def with_session_credentials(place: Place) -> Place:
    """The place with the credentials of one session where its profile has `mfa_serial`; else as it is.

    The prompt is botocore's, on the terminal. The credentials last as long as the profile's `duration_seconds` says
    (an hour by default) and are not renewed: the preflight says how long. UsageError: no such profile, no credentials.
    """
    if place.endpoint or place.credentials:
        return place
    from botocore.session import Session

    with aws_errors.translated(f"opening a session of profile {place.profile or 'default'}"):
        session = Session(profile=place.profile)
        if "mfa_serial" not in session.get_scoped_config():
            return place
        found = session.get_credentials()
        if found is None:
            return place
        keys = found.get_frozen_credentials()
    own = Credentials(keys.access_key or "", keys.secret_key or "", keys.token or "")
    return replace(place, profile=None, credentials=own)
