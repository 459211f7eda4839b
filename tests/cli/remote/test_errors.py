"""The exit codes of the contract and the messages of the troubleshooting guide."""

import socket
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest

from devtools.ports import free_port
from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.remote.advice import steps_of
from simpletuner_fleet.client import troubles
from simpletuner_fleet.client.troubles import TROUBLES, format_trouble, of_connection_error, trouble
from simpletuner_fleet.core.placement.reasons import IMPOSSIBLE
from tests.cli.conftest import Answer, FakeServer, Run, problem
from tests.client.test_trust import make, tls_server

CONTRACT = {
    "OK": 0,
    "FAILED": 1,
    "USAGE": 2,
    "NOT_FOUND": 3,
    "AUTH": 4,
    "CONFLICT": 5,
    "UNREACHABLE": 6,
    "TIMEOUT": 7,
    "JOB_FAILED": 8,
    "CANNOT_PLACE": 9,
    "TLS": 10,
    "NO_ACCELERATOR": 11,
    "INTERRUPTED": 130,
    "READER_LEFT": 141,
}


def test_the_exit_codes_are_those_of_the_contract() -> None:
    assert {member.name: member.value for member in ExitCode} == CONTRACT


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "malformed", ExitCode.USAGE),
        (401, "invalid_token", ExitCode.AUTH),
        (401, "unauthenticated", ExitCode.AUTH),
        (403, "forbidden", ExitCode.AUTH),
        (404, "not_found", ExitCode.NOT_FOUND),
        (408, "request_timeout", ExitCode.TIMEOUT),
        (409, "name_taken", ExitCode.CONFLICT),
        (409, "worker_not_offline", ExitCode.CONFLICT),
        (409, "cannot_be_placed", ExitCode.CANNOT_PLACE),
        (413, "too_large", ExitCode.USAGE),
        (422, "invalid", ExitCode.USAGE),
        (429, "too_many_requests", ExitCode.FAILED),
        (500, "internal_error", ExitCode.FAILED),
    ],
)
def test_each_problem_has_its_exit_code(
    ask: Run, server: FakeServer, status: int, code: str, exit_code: ExitCode
) -> None:
    server.on("GET", "/api/admin/workers", problem(status, code, "The detail.", next="Do this."))
    result = ask("workers", "list")
    assert result.code == exit_code
    assert f"exit: {int(exit_code)}" in result.err
    assert "The detail." in result.err
    assert result.out == ""


def test_a_problem_is_told_in_four_parts(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/admin/workers", {"workers": [{"id": "w_1", "name": "gpu-1"}]})
    server.on(
        "DELETE",
        "/api/admin/workers/w_1",
        problem(
            409,
            "worker_not_offline",
            "The worker is busy; only an offline worker can be deleted.",
            next="Stop it.",
        ),
    )
    assert ask("workers", "delete", "w_1").err == (
        "error: not possible now\n"
        "  why:  The worker is busy; only an offline worker can be deleted.\n"
        "  next: Stop it.\n"
        "  code: worker_not_offline   exit: 5\n"
    )


def test_field_errors_come_with_their_paths(ask: Run, server: FakeServer) -> None:
    errors = [{"path": "$.priority", "detail": "priority must be between -1000 and 1000."}]
    server.on(
        "POST",
        "/api/queue/submit",
        problem(422, "invalid", "priority must be between -1000 and 1000.", errors=errors),
    )
    result = ask("jobs", "submit", "c", "--priority", "5000")
    assert result.code == ExitCode.USAGE
    assert "priority must be between -1000 and 1000; at $.priority" in result.err


def test_a_missing_permission_is_named_with_the_way_to_get_it(ask: Run, server: FakeServer) -> None:
    server.on(
        "GET",
        "/api/admin/workers",
        problem(
            403,
            "forbidden",
            "This credential lacks the permission 'admin.workers'.",
            permission="admin.workers",
        ),
    )
    assert "--permission admin.workers" in ask("workers", "list").err


def test_a_hostile_problem_cannot_steer_the_terminal(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/admin/workers", problem(409, "x\x1b[2J", "a\x1b]0;t\x07\nb", next="c\rd"))
    err = ask("workers", "list").err
    assert "\x1b" not in err
    assert "\r" not in err
    assert "\x07" not in err


OTHERS: dict[str, Any] = {
    "nothing": b"",
    "page": b"<html><title>403 Forbidden</title>",
    "list": b"[]",
    "text": b'"x"',
    "code of no meaning": {"code": 7, "detail": None},
    "no text": b"\xff\xfe",
    "problem of another": {"type": "about:blank", "title": "Not Found", "status": 404, "code": "not_found"},
    "problem of another answer": {**problem(418, "not_found", "There is none.").body},
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_only_our_own_problems_are_refusals(ask: Run, server: FakeServer, status: int, body: Any) -> None:
    """As of a proxy or a captive portal, which say nothing about what was asked."""
    server.on("GET", "/api/admin/workers", Answer(status, body, {"Content-Type": "text/html"}))
    result = ask("workers", "list")
    assert result.code == ExitCode.UNREACHABLE
    assert "code: E_FOREIGN_ANSWER" in result.err
    assert f"HTTP status {status}" in result.err


def test_a_page_that_bars_the_way_is_waited_for_as_a_server_that_restarts(
    ask: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner_fleet.cli.remote.changes.RECONNECT_S", 0.0)
    job = {"id": "j_1", "config_name": "c", "attempt": 0, "gpus": []}
    portal = Answer(403, b"<html>log in to our Wi-Fi", {"Content-Type": "text/html"})
    answers = iter([{**job, "status": "running"}] * 2 + [portal] * 2)
    server.on("GET", "/api/jobs/j_1", lambda seen: next(answers, {**job, "status": "completed"}))
    server.on("GET", "/api/events", portal)
    result = ask("jobs", "wait", "j_1")
    assert result.code == 0
    assert result.err.count("live updates interrupted") == 1, (
        "and not at each look, for as long as a job takes"
    )


def test_an_answer_that_is_not_json_is_no_orchestrator(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/admin/workers", Answer(200, b"<html>", {"Content-Type": "text/html"}))
    result = ask("workers", "list")
    assert result.code == ExitCode.UNREACHABLE
    assert "verify orchestrator URL and port" in result.err


@pytest.mark.parametrize(
    "words", ["workers list", "jobs list", "configs list", "audit list", "tokens list", "jobs get j_1"]
)
@pytest.mark.parametrize("body", [[], {}, "x", None, {"workers": 1, "jobs": "x", "configs": None}])
def test_json_of_another_shape_is_told_and_no_stack_trace(
    ask: Run, server: FakeServer, words: str, body: object
) -> None:
    for path in ("admin/workers", "jobs", "jobs/j_1", "configs", "audit", "admin/tokens"):
        server.on("GET", f"/api/{path}", Answer(200, body))
    result = ask(*words.split())
    assert result.code in (ExitCode.UNREACHABLE, ExitCode.FAILED)
    assert "verify orchestrator URL and port" in result.err


def test_connection_refused(run: Run) -> None:
    port = free_port()
    result = run("workers", "list", "--url", f"http://127.0.0.1:{port}")
    assert result.code == ExitCode.UNREACHABLE
    assert f"error: cannot reach the orchestrator at http://127.0.0.1:{port}" in result.err
    assert "connection refused" in result.err
    assert "verify orchestrator URL and port" in result.err
    assert f"check that firewall rules allow inbound connections to TCP {port}" in result.err
    assert "--host 0.0.0.0" in result.err
    assert "code: E_CONN_REFUSED   exit: 6" in result.err


def test_a_name_that_is_unknown(run: Run) -> None:
    result = run("workers", "list", "--url", "https://no-such-host.invalid:8001")
    assert result.code == ExitCode.UNREACHABLE
    assert "E_DNS" in result.err


@pytest.mark.parametrize("flags", [(), ("--ssl-fingerprint", "a" * 64), ("--plain-http",)])
def test_an_address_with_two_dots_in_a_row_is_called_no_address(run: Run, flags: tuple[str, ...]) -> None:
    for command in (("jobs", "list"), ("doctor", "worker", "--json")):
        result = run(*command, "--url", "https://a..b", *flags)
        assert "expected http://HOST:PORT or https://HOST:PORT" in result.err + result.out
        assert "idna" not in result.err + result.out


def test_invalid_token(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/admin/workers", problem(401, "invalid_token", "Invalid token."))
    result = ask("workers", "list")
    assert result.code == ExitCode.AUTH
    assert "Invalid token" in result.err
    assert "simpletuner login" in result.err
    assert "rotate-token" not in result.err, "that is for workers"
    assert "check for whitespace in the token string" in result.err
    assert "environment SIMPLETUNER_API_TOKEN" in result.err
    assert "st_secret" not in result.err


def test_no_token_at_all(run: Run, server: FakeServer) -> None:
    server.on("GET", "/api/admin/workers", problem(401, "unauthenticated", "No credentials were sent."))
    result = run("workers", "list", "--url", server.url)
    assert result.code == ExitCode.AUTH
    assert f"simpletuner login {server.url}" in result.err


def test_ssl_certificate_verify_failed(run: Run, tmp_path: Path) -> None:
    with tls_server(tmp_path, make("self-signed")) as server:
        result = run("workers", "list", "--url", server.url)
    assert result.code == ExitCode.TLS
    assert "SSL certificate verify failed" in result.err
    assert "--ssl-no-verify" in result.err
    assert "--ssl-fingerprint" in result.err
    assert "add the CA certificate to the system trust store" in result.err


def test_a_wrong_fingerprint(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMPLETUNER_API_TOKEN", "st_canary")
    with tls_server(tmp_path, make("other")) as server:
        result = run("workers", "list", "--url", server.url, "--ssl-fingerprint", "ab" * 32)
        assert not any("st_canary" in request for request in server.received)
    assert result.code == ExitCode.TLS
    assert "E_TLS_FINGERPRINT" in result.err


def test_no_verify_is_loud_even_when_quiet(run: Run, tmp_path: Path) -> None:
    with tls_server(tmp_path, make("self-signed")) as server:
        result = run("whoami", "--url", server.url, "--ssl-no-verify", "-q")
    assert "WARNING: --ssl-no-verify" in result.err


@pytest.mark.parametrize(
    ("code", "params", "words"),
    [
        (
            "E_HEARTBEAT_TIMEOUT",
            {"timeout_s": 120},
            (
                "120 s",
                "check network stability between worker and orchestrator",
                "resource exhaustion (CPU/memory)",
                "SIMPLETUNER_HEARTBEAT_TIMEOUT",
            ),
        ),
        (
            "E_PROCESS_CRASH",
            {"detail": "exit code 1"},
            ("worker logs for Python exceptions", "nvidia-smi", "sufficient disk space for training"),
        ),
        ("E_NO_ACCELERATOR", {"detail": "none found"}, ("nvidia-smi", "SIMPLETUNER_GPU_INVENTORY")),
    ],
)
def test_troubles_of_a_worker(code: str, params: dict[str, Any], words: tuple[str, ...]) -> None:
    message = format_trouble(trouble(code, "https://h:8001", **params))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "ALL_MATCHING_BUSY",
            ("check worker status", "verify workers are connected and IDLE", "label mismatch"),
        ),
        ("LABELS_MATCH_NONE", ("check for label mismatch between job and workers",)),
        (
            "GPU_COUNT_TOO_LARGE",
            ("requires more GPUs than any worker has", "--num_processes in the training config"),
        ),
        ("ALL_MATCHING_OFFLINE", ("verify workers are connected", "SIMPLETUNER_HEARTBEAT_TIMEOUT")),
        ("WORKER_LOST", ("network stability", "CPU/memory", "SIMPLETUNER_HEARTBEAT_TIMEOUT")),
        ("TRAINER_FAILED", ("Python exceptions", "nvidia-smi", "disk space")),
    ],
)
def test_troubles_of_a_job(code: str, words: tuple[str, ...]) -> None:
    advice = "\n".join(steps_of(code))
    for word in words:
        assert word in advice


def test_every_reason_a_job_can_never_run_has_advice() -> None:
    assert [code for code in IMPOSSIBLE if not steps_of(code)] == []


def test_every_row_of_the_table_can_be_told() -> None:
    for code in TROUBLES:
        message = format_trouble(trouble(code, "https://h:8001", timeout_s=1))
        assert message.startswith("error: ")
        assert "{" not in message
        assert "why:" in message
        assert "next:" in message
        assert f"code: {code}" in message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionRefusedError(111, "x"), "E_CONN_REFUSED"),
        (socket.gaierror(-2, "x"), "E_DNS"),
        (TimeoutError(), "E_CONN_TIMEOUT"),
        (OSError(113, "No route to host"), "E_UNREACHABLE"),
        (ssl.SSLError("WRONG_VERSION_NUMBER"), "E_TLS_HANDSHAKE"),
        (httpx2.ConnectError("All connection attempts failed"), "E_CONN_REFUSED"),
        (httpx2.ConnectError("[Errno -2] Name or service not known"), "E_DNS"),
        (httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), "E_TLS_VERIFY"),
        (httpx2.ConnectTimeout("timed out"), "E_CONN_TIMEOUT"),
        (httpx2.ReadTimeout(""), "E_CONN_TIMEOUT"),
        (httpx2.RemoteProtocolError("Server disconnected"), "E_CONN_CUT"),
        (
            httpx2.RemoteProtocolError("peer closed connection without sending complete message body"),
            "E_CONN_CUT",
        ),
        (ConnectionResetError(104, "Connection reset by peer"), "E_CONN_CUT"),
    ],
)
def test_what_a_connection_threw_finds_its_row(error: Exception, code: str) -> None:
    assert of_connection_error(error, "https://h:8001").code == code


def test_what_a_worker_logs_while_it_keeps_trying_names_no_exit_code() -> None:
    message = format_trouble(trouble("E_CONN_REFUSED", "https://h:8001"), in_log=True)
    assert "exit:" not in message
    assert message.endswith("code: E_CONN_REFUSED   the worker keeps trying")


def test_the_agents_numbers_are_the_commands() -> None:
    assert troubles.NO_ACCELERATOR == ExitCode.NO_ACCELERATOR
    assert troubles.TLS == ExitCode.TLS
