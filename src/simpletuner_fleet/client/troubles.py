"""Lists what can go wrong between a client and its orchestrator, in one table of messages with what to do next."""

import errno
import socket
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from simpletuner_fleet.client.trust import TrustError
from simpletuner_fleet.languages import N_, _, current
from simpletuner_fleet.languages.details import detail_text

FAILED, USAGE, NOT_FOUND, AUTH, CONFLICT = 1, 2, 3, 4, 5
UNREACHABLE, TIMEOUT, JOB_FAILED, CANNOT_PLACE, TLS, NO_ACCELERATOR, INTERRUPTED = 6, 7, 8, 9, 10, 11, 130


NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE")
"""How OpenSSL calls an answer in plain text."""


class Trouble(NamedTuple):
    """Describes a problem to the user: what happened, why, what to do now, a stable code, and the exit status."""

    what: str
    why: str
    next: tuple[str, ...]
    code: str
    exit: int


class ForeignAnswer(Exception):
    """Something answered that is not an orchestrator: a proxy, a portal, a load balancer, another program."""

    def __init__(self, status: int) -> None:
        super().__init__(f"something that is not the orchestrator answered with HTTP status {status}")
        self.status = status


class TooSlow(Exception):
    """Something answers a little at a time, and would take for ever."""


class EndlessAnswer(Exception):
    """Something answers with more than an orchestrator ever does."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"the answer has more than {most_bytes} bytes")
        self.most_mib = most_bytes // 2**20


TROUBLES = {
    trouble.code: trouble
    for trouble in (
        Trouble(
            N_("cannot reach the orchestrator at %(url)s"),
            N_("connection refused: nothing is listening there, or a firewall blocks it"),
            (
                N_("verify orchestrator URL and port"),
                N_("check that firewall rules allow inbound connections to TCP %(port)s"),
                N_("ensure the orchestrator is running with --host 0.0.0.0 --port %(port)s"),
            ),
            "E_CONN_REFUSED",
            UNREACHABLE,
        ),
        Trouble(
            N_("cannot reach the orchestrator at %(url)s"),
            N_("the name %(host)s could not be resolved"),
            (
                N_("verify orchestrator URL and port"),
                N_("check this machine's DNS, or use an address"),
            ),
            "E_DNS",
            UNREACHABLE,
        ),
        Trouble(
            N_("cannot reach the orchestrator at %(url)s"),
            N_("no answer in time"),
            (
                N_("verify orchestrator URL and port"),
                N_("check that firewall rules allow inbound connections to TCP %(port)s"),
                N_("check the network between this machine and %(host)s"),
            ),
            "E_CONN_TIMEOUT",
            UNREACHABLE,
        ),
        Trouble(
            N_("the answer of the orchestrator at %(url)s takes too long"),
            N_("it comes in such small pieces that the time was up before all of it was here"),
            (
                N_("check the network between this machine and %(host)s, and any proxy in between"),
                N_("run the same command again"),
            ),
            "E_ANSWER_TOO_SLOW",
            UNREACHABLE,
        ),
        Trouble(
            N_("the answer of the orchestrator at %(url)s is too large"),
            N_("it has more than %(most_mib)s MiB, which no answer of an orchestrator has"),
            (
                N_("verify orchestrator URL and port"),
                N_("check what is in between: a proxy, a load balancer, a firewall's login page"),
            ),
            "E_ANSWER_TOO_LARGE",
            UNREACHABLE,
        ),
        Trouble(
            N_("cannot reach the orchestrator at %(url)s"),
            "%(detail)s",
            (
                N_("verify orchestrator URL and port"),
                N_("check the network between this machine and %(host)s"),
            ),
            "E_UNREACHABLE",
            UNREACHABLE,
        ),
        Trouble(
            N_("the connection to the orchestrator at %(url)s was cut"),
            N_("the orchestrator stopped, or something in between closed the connection"),
            (
                N_("check that the orchestrator is running"),
                N_("check the network between this machine and %(host)s"),
            ),
            "E_CONN_CUT",
            UNREACHABLE,
        ),
        Trouble(
            N_("the orchestrator at %(url)s does not answer over plain HTTP"),
            N_("it hung up without an answer; a server that speaks only TLS does that"),
            (
                N_(
                    "if it was started with --ssl, use https://%(host)s:%(port)s and the --ssl-fingerprint that it printed"
                ),
                N_("verify orchestrator URL and port"),
            ),
            "E_SPEAKS_TLS",
            UNREACHABLE,
        ),
        Trouble(
            N_("something else answers in place of the orchestrator at %(url)s"),
            N_("HTTP status %(status)s, and not in the orchestrator's own format"),
            (
                N_("verify orchestrator URL and port"),
                N_("check what is in between: a proxy, a load balancer, a firewall's login page"),
            ),
            "E_FOREIGN_ANSWER",
            UNREACHABLE,
        ),
        Trouble(
            N_("Invalid token: the orchestrator at %(url)s does not accept it"),
            "%(detail)s",
            (
                N_(
                    "the token may have been rotated: request a new one (simpletuner workers rotate-token NAME)"
                ),
                N_("check for whitespace in the token string"),
            ),
            "E_INVALID_TOKEN",
            AUTH,
        ),
        Trouble(
            N_("SSL certificate verify failed for %(url)s"),
            "%(detail)s",
            (
                N_(
                    "pin the server's certificate: --ssl-fingerprint sha256:…  (the server prints it at its start)"
                ),
                N_("or add the CA certificate to the system trust store, or name it with --ca-cert FILE"),
                N_("for self-signed certs, in development only: --ssl-no-verify"),
            ),
            "E_TLS_VERIFY",
            TLS,
        ),
        Trouble(
            N_("no TLS with %(url)s"),
            "%(detail)s",
            (N_("verify orchestrator URL and port; a server started without --ssl is reached with http://"),),
            "E_TLS_HANDSHAKE",
            TLS,
        ),
        Trouble(
            N_("the worker went offline unexpectedly"),
            N_("heartbeat timeout: the orchestrator heard nothing for %(timeout_s)s s"),
            (
                N_("check network stability between worker and orchestrator"),
                N_("look for resource exhaustion (CPU/memory) on the worker"),
                N_("increase SIMPLETUNER_HEARTBEAT_TIMEOUT on the orchestrator if the network is unreliable"),
            ),
            "E_HEARTBEAT_TIMEOUT",
            FAILED,
        ),
        Trouble(
            N_("the training process crashed"),
            N_("process crash: %(detail)s"),
            (
                N_("check the worker logs for Python exceptions:  simpletuner jobs logs ID --tail 100"),
                N_("verify that the GPU drivers are functioning:  nvidia-smi"),
                N_("ensure sufficient disk space for training"),
            ),
            "E_PROCESS_CRASH",
            FAILED,
        ),
        Trouble(
            N_("this machine has no usable accelerator"),
            "%(detail)s",
            (
                N_("verify that the GPU drivers are functioning:  nvidia-smi"),
                N_("declare what detection cannot find with SIMPLETUNER_GPU_INVENTORY"),
            ),
            "E_NO_ACCELERATOR",
            NO_ACCELERATOR,
        ),
    )
}


def trouble(code: str, url: str = "", **params: object) -> Trouble:
    """Returns the row of the table for this code, with its placeholders filled in."""
    row = TROUBLES[code]
    address = urlsplit(url)
    blanks = {
        "url": url,
        "host": address.hostname or _("the orchestrator"),
        "port": address.port or (443 if address.scheme == "https" else 80),
        "detail": _("no more is known"),
        "status": _("unknown"),
        "most_mib": _("unknown"),
        **params,
    }
    return row._replace(
        what=_(row.what, **blanks),
        why=_(row.why, **blanks),
        next=tuple(_(step, **blanks) for step in row.next),
    )


def of_connection_error(error: BaseException, url: str, *, answered_before: bool = False) -> Trouble:
    """Finds the message for a failed connection along the error's causes: HTTP clients wrap the real one."""
    for cause in _causes(error):
        match cause:
            case TooSlow() | EndlessAnswer() | ForeignAnswer():
                return _of_answer(cause, url)
            case TrustError():
                return Trouble(cause.what, cause.why, (cause.next,), cause.code, TLS)
            case ssl.SSLCertVerificationError():
                return trouble("E_TLS_VERIFY", url, detail=getattr(cause, "verify_message", "") or str(cause))
            case ssl.SSLError():
                return trouble("E_TLS_HANDSHAKE", url, detail=_handshake(cause))
            case socket.gaierror():
                return trouble("E_DNS", url)
            case ConnectionRefusedError():
                return trouble("E_CONN_REFUSED", url)
            case TimeoutError():
                return trouble("E_CONN_TIMEOUT", url)
            case OSError() if cause.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
                return trouble("E_UNREACHABLE", url, detail=cause.strerror)
    return _if_hung_up(error, url, answered_before) or _by_words(error, url)


def _of_answer(answer: TooSlow | EndlessAnswer | ForeignAnswer, url: str) -> Trouble:
    if isinstance(answer, EndlessAnswer):
        return trouble("E_ANSWER_TOO_LARGE", url, most_mib=answer.most_mib)
    if isinstance(answer, TooSlow):
        return trouble("E_ANSWER_TOO_SLOW", url)
    return trouble("E_FOREIGN_ANSWER", url, status=answer.status)


def _handshake(error: ssl.SSLError) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if reason in NOT_TLS:
        return _("what answers there does not speak TLS")
    return str(reason)


def _if_hung_up(error: BaseException, url: str, answered_before: bool) -> Trouble | None:
    if not any(map(_hung_up, _causes(error))):
        return None
    speaks_tls = url.startswith("http:") and not answered_before
    return trouble("E_SPEAKS_TLS" if speaks_tls else "E_CONN_CUT", url)


def _hung_up(error: BaseException) -> bool:
    text = str(error).lower()
    said = any(words in text for words in ("disconnected", "connectionclosed", "peer closed connection"))
    return said or isinstance(error, ConnectionResetError | BrokenPipeError)


def _by_words(error: BaseException, url: str) -> Trouble:
    """Finds the message by the error's text, since some clients keep only the text of the cause."""
    text = str(error)
    lower = text.lower()
    if "certificate verify failed" in lower:
        return trouble("E_TLS_VERIFY", url, detail=text)
    if "ssl" in lower:
        return trouble("E_TLS_HANDSHAKE", url, detail=text)
    if "refused" in lower or "all connection attempts failed" in lower:
        return trouble("E_CONN_REFUSED", url)
    if "name or service not known" in lower or "name resolution" in lower or "nodename" in lower:
        return trouble("E_DNS", url)
    if "timeout" in type(error).__name__.lower() or "timed out" in lower:
        return trouble("E_CONN_TIMEOUT", url)
    return trouble("E_UNREACHABLE", url, detail=text or type(error).__name__)


def _causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in causes:
        causes.append(current)
        current = current.__cause__ or current.__context__
    return causes


def format_trouble(trouble: Trouble, *, in_log: bool = False) -> str:
    """Formats what, why, next and code for printing; in a log without "error:", as the worker keeps trying.

    What the server or the core has said comes in English, and is translated here.
    """
    words = current()
    why = detail_text(words, trouble.why)
    first, *more = (detail_text(words, step) for step in trouble.next or ("simpletuner doctor",))
    lines = [
        trouble.what if in_log else _("error: %(what)s", what=trouble.what),
        _("  why:  %(why)s", why=why),
        _("  next: %(step)s", step=first),
    ]
    lines += [f"        {step}" for step in more]
    if in_log:
        lines.append(_("  code: %(code)s   the worker keeps trying", code=trouble.code))
    else:
        lines.append(_("  code: %(code)s   exit: %(exit)s", code=trouble.code, exit=trouble.exit))
    return "\n".join(lines)
