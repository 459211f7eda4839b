"""Checks the way to the orchestrator step by step; the first step that fails ends the check."""

import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx2

from simpletuner_fleet.cli.doctor.findings import CheckFinding, bad, doubt, good
from simpletuner_fleet.client.time_limits import LimitedClient
from simpletuner_fleet.client.troubles import ForeignAnswer, of_connection_error
from simpletuner_fleet.client.trust import Choices, TrustError, context_for, fingerprint_of, trusting_nobody
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.languages import _, ngettext
from simpletuner_fleet.protocol.problems import read_problem
from simpletuner_fleet.protocol.uploads import TRIED_PART_BYTES, TRIED_PART_PATH
from simpletuner_fleet.settings.host_names import as_sent

TIMEOUT_S = 10.0
MUCH_SKEW_S = 30.0
WHOAMI, WORKER_PROBE = "/api/whoami", "/api/workers/queue?worker_id="


def way_to(url: str, trust: Choices, header: str, token: str | None, probe: str) -> Iterator[CheckFinding]:
    """Checks name, port, TLS, an answer, the clock and the token; it changes nothing on the server."""
    target = urlsplit(url)
    host, port = as_sent(target.hostname or ""), target.port or (443 if target.scheme == "https" else 80)
    try:
        addresses = sorted(
            {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        )
        yield good(
            _("name"), _("%(host)s resolves to %(addresses)s", host=host, addresses=", ".join(addresses))
        )
        with socket.create_connection((host, port), TIMEOUT_S):
            yield good(_("port"), _("%(port)s is open", port=port))
        warnings: list[str] = []
        context = context_for(url, trust, warnings.append)
        if context:
            yield from _certificate(host, port, context)
        for warning in warnings:
            yield doubt(
                "TLS",
                warning[
                    warning.index("--") :
                ],  # from the option on: before it stands "WARNING" in some language
                _("start the server with --ssl, pin it on the clients"),
            )
        with LimitedClient(base_url=url, timeout=TIMEOUT_S, verify=context or trusting_nobody()) as client:
            yield from _answers(client, header, token, probe)
    except httpx2.DecodingError:
        yield _in_its_place(url, 200)
    except (OSError, TrustError, ssl.SSLError, httpx2.TransportError) as error:
        trouble = of_connection_error(error, url)
        yield bad(_("connection"), f"{trouble.what}: {trouble.why}", "; ".join(trouble.next))


def _certificate(host: str, port: int, context: ssl.SSLContext) -> Iterator[CheckFinding]:
    with (
        socket.create_connection((host, port), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        certificate = tls.getpeercert(binary_form=True) or b""
        details = tls.getpeercert() or {}
        yield good(
            "TLS",
            _(
                "%(version)s, certificate %(fingerprint)s",
                version=tls.version(),
                fingerprint=fingerprint_of(certificate),
            ),
        )
    until = details.get("notAfter")
    if isinstance(until, str):
        left_days = (ssl.cert_time_to_seconds(until) - time.time()) / 86_400
        if left_days < 7:
            yield doubt(
                _("certificate"),
                ngettext("expires in %(n)s day", "expires in %(n)s days", round(left_days)),
                _("renew it on the server"),
            )


def _answers(client: httpx2.Client, header: str, token: str | None, probe: str) -> Iterator[CheckFinding]:
    alive = client.get("/health/live")
    if alive.status_code != 200:
        yield bad(
            _("server"),
            _("/health/live answered %(status_code)s", status_code=alive.status_code),
            _("verify orchestrator URL and port"),
        )
        return
    if "status" not in _document(alive):
        yield _foreign(alive)
        return
    yield good(_("server"), _("answers"))
    yield from _clock(alive.headers.get("date", ""))
    if not token:
        yield doubt(
            _("token"), _("none was given"), _("simpletuner login, or SIMPLETUNER_WORKER_TOKEN for a worker")
        )
        return
    wrong = tokens.complaint(token, tokens.WORKER) if header == "X-Worker-Token" else None
    if wrong:
        yield bad(
            _("token"),
            _("Invalid token: %(wrong)s", wrong=wrong),
            _("request a new one; check for whitespace in the token string"),
        )
        return
    value = token if header == "X-Worker-Token" else f"Bearer {token}"
    answer = client.get(probe, headers={header: value})
    if not _document(answer):
        yield _foreign(answer)
    elif answer.status_code == 401:
        yield bad(
            _("token"),
            _("Invalid token"),
            _("it may have been rotated: request a new one; check for whitespace"),
        )
    elif answer.status_code == 403:
        yield bad(_("token"), _("refused from this network or for this purpose"), _("ask the administrator"))
    elif answer.status_code != 200:
        yield bad(_("server"), str(_document(answer).get("detail")), "")
    else:
        yield good(_("token"), _("accepted"))
        if header == "X-Worker-Token":
            yield _upload(client, value)


def _document(answer: httpx2.Response) -> dict[str, Any]:
    """Returns what the orchestrator says; empty where something else answers in its place."""
    if answer.status_code >= 400 and not read_problem(answer.status_code, answer.content):
        return {}
    try:
        document = answer.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _foreign(answer: httpx2.Response) -> CheckFinding:
    return _in_its_place(str(answer.url.join("/")).rstrip("/"), answer.status_code)


def _in_its_place(url: str, status: int) -> CheckFinding:
    trouble = of_connection_error(ForeignAnswer(status), url)
    return bad(_("server"), f"{trouble.what}: {trouble.why}", "; ".join(trouble.next))


def _upload(client: httpx2.Client, token: str) -> CheckFinding:
    """Uploads a body as large as a real part the same way: a proxy that refuses it would refuse the real one."""
    size = f"{TRIED_PART_BYTES // 2**20} MiB"
    headers = {"X-Worker-Token": token, "Content-Type": "application/octet-stream"}
    try:
        answer = client.put(TRIED_PART_PATH, content=bytes(TRIED_PART_BYTES), headers=headers)
    except httpx2.TransportError as error:
        return bad(
            _("uploads"),
            _("an upload of %(size)s was cut off: %(error)s", size=size, error=error),
            _("check for a time or size limit in anything between here and the server"),
        )
    if answer.status_code == 200 and _document(answer).get("next_offset") == TRIED_PART_BYTES:
        return good(_("uploads"), _("an upload of %(size)s arrives intact", size=size))
    if read_problem(answer.status_code, answer.content):
        return bad(
            _("uploads"), _("the server rejects an upload: HTTP %(status)s", status=answer.status_code), ""
        )
    return bad(
        _("uploads"),
        _(
            "something other than the orchestrator answers an upload of %(size)s with HTTP %(status)s",
            size=size,
            status=answer.status_code,
        ),
        _("let it pass request bodies of any size to the server (nginx: client_max_body_size 0)"),
    )


def _clock(date: str) -> Iterator[CheckFinding]:
    try:
        skew_s = time.time() - parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return
    if abs(skew_s) > MUCH_SKEW_S:
        yield doubt(
            _("clock"),
            _("%(skew_s)s s off the server's clock", skew_s=f"{skew_s:+.0f}"),
            _("set the time: timedatectl set-ntp true"),
        )
    else:
        yield good(_("clock"), _("agrees with the server's"))
