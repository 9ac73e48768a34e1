"""Instance metadata (IMDSv2): the identity document and the role's credentials."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time

_ADDRESS = "169.254.169.254"
_TOKEN_SECONDS = 21600
_REFRESH_BEFORE = 300.0


class Unavailable(Exception):
    """The metadata service did not answer, or has no such path."""


class Credentials:
    def __init__(self, key_id: str, secret: str, token: str, expires: float) -> None:
        self.key_id, self.secret, self.token, self.expires = key_id, secret, token, expires


class Metadata:
    """One machine's metadata, cached; credentials are fetched anew five minutes before they expire."""

    def __init__(self, address: str = _ADDRESS) -> None:
        self._address = address
        self._token = ("", 0.0)
        self._credentials: Credentials | None = None
        self._document: dict[str, object] | None = None
        self._lock = threading.RLock()

    def _request(self, method: str, path: str, headers: dict[str, str]) -> str:
        connection = http.client.HTTPConnection(self._address, timeout=10)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read().decode("utf-8", "replace")
        except OSError as error:
            raise Unavailable(f"{path}: {error}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise Unavailable(f"{path}: HTTP {answer.status}")
        return body

    def get(self, path: str) -> str:
        """/latest/<path>; Unavailable when it is not there."""
        with self._lock:
            token, until = self._token
            if time.monotonic() >= until:
                token = self._request(
                    "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
                )
                self._token = (token, time.monotonic() + _TOKEN_SECONDS / 2)
            return self._request("GET", "/latest/" + path, {"X-aws-ec2-metadata-token": token})

    def document(self) -> dict[str, object]:
        """The instance identity document."""
        with self._lock:
            if self._document is None:
                document: dict[str, object] = json.loads(self.get("dynamic/instance-identity/document"))
                self._document = document
            return self._document

    def dimension(self, name: str) -> str | None:
        """ImageId, InstanceId, InstanceType; AutoScalingGroupName needs an EC2 call or a shown tag: None without."""
        if name == "AutoScalingGroupName":
            try:
                return self.get("meta-data/tags/instance/aws:autoscaling:groupName")
            except Unavailable:
                return None
        return str(self.document()[name[0].lower() + name[1:]])

    def credentials(self) -> Credentials:
        """From the environment, else the role of the instance profile."""
        with self._lock:
            if "AWS_ACCESS_KEY_ID" in os.environ:
                environment = os.environ
                token = environment.get("AWS_SESSION_TOKEN", "")
                return Credentials(
                    environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"], token, float("inf")
                )
            if self._credentials is None or time.time() > self._credentials.expires - _REFRESH_BEFORE:
                self._credentials = self._fetch_credentials()
            return self._credentials

    def forget_credentials(self) -> None:
        with self._lock:
            self._credentials = None

    def _fetch_credentials(self) -> Credentials:
        from calendar import timegm

        role = self.get("meta-data/iam/security-credentials/").splitlines()[0]
        keys = json.loads(self.get("meta-data/iam/security-credentials/" + role))
        expires = timegm(time.strptime(keys["Expiration"][:19], "%Y-%m-%dT%H:%M:%S"))
        return Credentials(keys["AccessKeyId"], keys["SecretAccessKey"], keys["Token"], float(expires))
