"""A time limit for each HTTP request of a boto3 client, from its first byte to the last one of the answer.

botocore's read timeout begins anew with each byte that arrives: an answer that drips would be waited for forever.
"""

from __future__ import annotations

import threading
from typing import Any

CALL_SECONDS = 120.0


def limit(client: Any) -> None:
    """Limits every request of a boto3 client. A request that takes longer is a botocore HTTPClientError."""
    endpoint = client._endpoint  # botocore has no public way to its HTTP session
    endpoint.http_session = _Limited(endpoint.http_session)


class _Limited:
    """botocore's HTTP session, each of whose requests has a deadline.

    A request is sent in a thread of its own, which is left behind where its answer does not end: it holds nothing but
    its connection, and does not keep the process from ending.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def send(self, request: Any) -> Any:
        answers: list[Any] = []
        errors: list[BaseException] = []

        def send() -> None:
            try:
                answers.append(self._session.send(request))
            except BaseException as error:  # raised in the caller's thread below
                errors.append(error)

        worker = threading.Thread(target=send, name="AWS call", daemon=True)
        worker.start()
        worker.join(CALL_SECONDS)
        if worker.is_alive():
            raise _no_end(request.url)
        if errors:
            raise errors[0]
        return answers[0]

    def close(self) -> None:
        self._session.close()


def _no_end(url: str) -> Exception:
    from botocore.exceptions import HTTPClientError

    class NoEndError(HTTPClientError):
        fmt = 'no complete answer from "{endpoint_url}" within {seconds:.0f} s'

    return NoEndError(endpoint_url=url, seconds=CALL_SECONDS)
