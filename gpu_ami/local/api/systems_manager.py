"""WSGI application before moto's: calls of Systems Manager that the region answers itself (JSON 1.1)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from gpu_ami.local.api.protocol import ErrorAnswer, read_service_call, send, unpack
from gpu_ami.local.backends.systems_manager import Refused, SystemsManager

_SERVICES = ("ssm", "ec2messages")


class SystemsManagerLayer:
    """Answers what `systems_manager` knows; every other call is `app`'s."""

    def __init__(self, app: WSGIApplication, systems_manager: SystemsManager) -> None:
        self._app, self._systems_manager = app, systems_manager

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        unpack(environ)
        call = read_service_call(environ)
        if call is None or call.service not in _SERVICES:
            return self._app(environ, start_response)
        try:
            answer = self._systems_manager.answer(call.name, call.body, call.access_key)
        except Refused as refusal:
            status, headers, body = ErrorAnswer(refusal.code, refusal.message, 400).encode(call.protocol)
            return send(start_response, status, headers, body)
        if answer is None:
            return self._app(environ, start_response)
        headers = [("Content-Type", "application/x-amz-json-1.1"), ("x-amzn-RequestId", "local")]
        return send(start_response, "200 OK", headers, json.dumps(answer).encode())
