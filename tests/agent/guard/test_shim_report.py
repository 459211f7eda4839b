"""How a shim proves to itself whom it tells: real TLS, and a token that must not travel to a stranger."""

import datetime
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from simpletuner_fleet.agent.guard import shim_report as shim
from tests.agent.shim_fixtures import Reports, listening, report_to


def certificate(folder: Path, name: str, address: str = "127.0.0.1") -> Path:
    """Self-signed, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / f"{name}.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return file


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def server_certificate(tmp_path: Path) -> Path:
    return certificate(tmp_path, "server")


@pytest.fixture
def url(reports: Reports, server_certificate: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_certificate)
    with listening(reports, context) as address:
        yield address


def post(url: str, **trust: Any) -> int:
    return shim.post(msgspec.to_builtins(report_to(url, **trust)), {"status": "lost"})[0]


def test_a_trusted_authority_is_told(url: str, reports: Reports, server_certificate: Path) -> None:
    assert post(url, cafile=str(server_certificate)) == 200
    assert [token for _, token, _ in reports.seen] == ["ut_secret"]


def test_a_stranger_gets_no_token(url: str, reports: Reports, tmp_path: Path) -> None:
    other = certificate(tmp_path, "other")
    for trust in ({}, {"cafile": str(other)}, {"pinned_certfile": str(other)}):
        with pytest.raises(ssl.SSLError):
            post(url, **trust)
    assert reports.seen == []


def test_a_pinned_certificate_is_believed_whatever_the_hosts_name(tmp_path: Path, reports: Reports) -> None:
    elsewhere = certificate(tmp_path, "elsewhere", address="192.0.2.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(elsewhere)
    with listening(reports, context) as url:
        with pytest.raises(ssl.SSLError):
            post(url, cafile=str(elsewhere))
        assert post(url, pinned_certfile=str(elsewhere)) == 200


def test_verification_can_be_turned_off(url: str) -> None:
    assert post(url, no_verify=True) == 200


def test_a_path_before_the_api_is_kept(reports: Reports) -> None:
    with listening(reports) as url:
        assert post(f"{url}/fleet/") == 200
    assert reports.seen[0][0] == "/fleet/api/workers/job/j_1/status"


def test_the_lease_is_held_by_a_clock_that_counts_a_suspend() -> None:
    assert time.CLOCK_BOOTTIME == shim.CLOCK


STALE = b'{"type": "urn:simpletuner:problem:stale_attempt", "code": "stale_attempt", "status": 409}'


@pytest.mark.parametrize(
    ("status", "answer", "settled"),
    [
        (200, b'{"accepted": true, "job_status": "completed"}', True),
        (200, b"<html>please log in</html>", False),
        (200, b"", False),
        (204, b"{}", False),
        (301, b"", False),
        (403, b'{"detail": "no"}', False),
        (409, STALE, True),
        (409, b'{"code": "stale_attempt"}', False),
        (409, b"conflict", False),
        (409, b"[1]", False),
        (503, STALE, False),
    ],
)
def test_only_the_orchestrator_can_say_that_a_report_is_settled(
    status: int, answer: bytes, settled: bool
) -> None:
    assert shim.is_settled(status, answer) is settled


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "WHOLE_REPORT_S", 0.3, raising=False)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            line, _ = server.accept()
            with line, suppress(OSError):
                line.sendall(b"HTTP/1.1 200 OK\r\nX-Nothing: ")
                while not over.wait(0.05):
                    line.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            with pytest.raises(TimeoutError):
                post(f"http://127.0.0.1:{server.getsockname()[1]}")
        finally:
            over.set()
            dripping.join()


@pytest.mark.parametrize(("blame", "outcome"), [("worker", "lost"), ("unclear", "failed"), (None, "failed")])
def test_what_a_machine_lacked_for_a_start_fails_no_job(blame: str | None, outcome: str) -> None:
    """A shim of an earlier version says nothing of whose fault it was."""
    ended = {"reason": "start_failed", "error": "no room"} | ({"blame": blame} if blame else {})
    assert shim.verdict({}, ended, "lost", False) == (outcome, "no room")
