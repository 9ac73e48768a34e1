"""A configuration in Parameter Store: `-c ssm:NAME`, read with the credentials of the instance profile."""

from __future__ import annotations

import json
import threading

from .aws import Service, ServiceError, Stopping
from .journal import Journal
from .metadata import Metadata, Unavailable

_API = "http://169.254.169.251"  # of the local region, where this replica runs


class NotFetched(Exception):
    """The parameter could not be read: who refused, and why."""


def fetch(name: str, log: str, endpoint: str = _API, metadata: Metadata | None = None) -> str:
    """The value of a parameter. log: the file that failures go to."""
    metadata = metadata or Metadata()
    try:
        region = str(metadata.document()["region"])
        service = Service("ssm", region, endpoint, metadata, Journal(log), threading.Event())
        body = json.dumps({"Name": name, "WithDecryption": True}).encode()
        answer = service.call("application/x-amz-json-1.1", body, "AmazonSSM.GetParameter", last=True)
    except (ServiceError, Stopping, Unavailable) as error:
        raise NotFetched(str(error)) from error
    return str(json.loads(answer)["Parameter"]["Value"])
