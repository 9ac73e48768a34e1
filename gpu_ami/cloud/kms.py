"""Keys of AWS KMS that sign: kms:GetPublicKey and kms:Sign, nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gpu_ami.cloud import aws_errors
from gpu_ami.cloud.client import Cloud
from gpu_ami.cloud.place import Place
from gpu_ami.errors import UsageError

_ARN_REGION = re.compile(r"arn:[a-z-]+:kms:([a-z0-9-]+):")


class Key:
    """One key. id: a key id, `alias/NAME`, or the ARN of either. place: its region, profile and endpoint."""

    def __init__(self, key_id: str, place: Place | None) -> None:
        if not key_id:
            raise UsageError("awskms:/// names no key", hint="awskms:///alias/NAME, a key id or an ARN")
        arn = _ARN_REGION.match(key_id)
        if place is None and arn is None:
            hint = "name the region with --where FILE, or the key by its ARN"
            raise UsageError(f"awskms:///{key_id}: the region is not known", hint=hint)
        if place is None or (arn is not None and arn[1] != place.region):
            assert arn is not None
            region = arn[1]
            place = Place(name="kms", region=region) if place is None else replace(place, region=region)
        self.id = key_id
        self._client: Any = Cloud(place).client("kms")

    def public_key(self) -> tuple[bytes, list[str]]:
        """The public key (DER, SubjectPublicKeyInfo) and the algorithms that KMS signs with it. CloudError."""
        with aws_errors.translated(f"reading the public key of {self.id}"):
            answer = self._client.get_public_key(KeyId=self.id)
        if answer.get("KeyUsage") != "SIGN_VERIFY":
            raise UsageError(f"awskms:///{self.id}: expected key usage SIGN_VERIFY, got {answer.get('KeyUsage')}")
        return bytes(answer["PublicKey"]), list(answer.get("SigningAlgorithms", []))

    def sign(self, digest: bytes, algorithm: str) -> bytes:
        """The signature of a digest; algorithm: KMS's name, such as ECDSA_SHA_256. CloudError."""
        with aws_errors.translated(f"signing with {self.id}"):
            answer = self._client.sign(KeyId=self.id, Message=digest, MessageType="DIGEST", SigningAlgorithm=algorithm)
        return bytes(answer["Signature"])
