"""The part of the shim that reports by itself, when there is no agent any more: standard library only."""

from __future__ import annotations

import json
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REPORT_FOR_S = 60.0
REPORT_TIMEOUT_S = 10.0
PROBLEM_TYPE = "urn:simpletuner:problem:"
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def report(to: dict[str, Any], body: dict[str, Any]) -> bool:
    """Tries for a minute; True when the orchestrator has it, or has moved on. Whatever else answers is no orchestrator."""
    give_up_at = time.clock_gettime(CLOCK) + REPORT_FOR_S
    pause_s = 0.2
    while True:
        try:
            status, answer = post(to, body)
            if is_settled(status, answer):
                return True
            print(f"the report was answered with {status}", file=sys.stderr, flush=True)
        except (OSError, ValueError) as error:
            print(f"the report failed: {error}", file=sys.stderr, flush=True)
        if time.clock_gettime(CLOCK) + pause_s > give_up_at:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 8.0)


def is_settled(status: int, answer: bytes) -> bool:
    """Tells the orchestrator's own answers, a taken report or a problem that it is too late, from anybody else's."""
    try:
        document = json.loads(answer)
    except ValueError:
        return False
    if not isinstance(document, dict):
        return False
    if 200 <= status < 300:
        return "accepted" in document
    return status == 409 and document.get("type") == f"{PROBLEM_TYPE}{document.get('code')}"


def post(to: dict[str, Any], body: dict[str, Any]) -> tuple[int, bytes]:
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(to["url"])
    host, port = parts.hostname or "", parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = secure_connection(host, port, to)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=REPORT_TIMEOUT_S)
    try:
        connection.request(
            "POST",
            f"{parts.path.rstrip('/')}/api/workers/job/{to['job_id']}/status",
            body=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "X-Upload-Token": to["upload_token"]},
        )
        answer = connection.getresponse()
        return answer.status, answer.read(65536)
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP answer: {error!r}") from error
    finally:
        connection.close()


def secure_connection(host: str, port: int | None, to: dict[str, Any]) -> Any:
    import http.client
    import ssl

    context = ssl.create_default_context(cafile=to["cafile"])
    if to["pinned_certfile"]:
        # Nobody but the pinned certificate and what it signed; its owner signs for one server, whatever its name.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cafile=to["pinned_certfile"])
    elif to["no_verify"]:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=REPORT_TIMEOUT_S, context=context)
