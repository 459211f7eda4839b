"""TLS trust against real TLS servers with certificates made here."""

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from simpletuner_fleet.client.trust import (
    Choices,
    TrustError,
    context_for,
    context_for_async,
    fingerprint_of,
    is_loopback,
)
from simpletuner_fleet.settings import values
from tests.quiet_server import QuietServer

SECRET = "wt_canary_that_must_never_travel"


class Certificate(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def pin(self) -> str:
        return fingerprint_of(self.der)

    def files(self, folder: Path, name: str) -> tuple[Path, Path]:
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(self.pem)
        key.write_bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, key


CA_KEY_USAGE = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def make(
    name: str, signed_by: Certificate | None = None, *, ca: bool = False, age_days: int = 1
) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signed_by.certificate.subject if signed_by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=age_days))
        .not_valid_after(now + datetime.timedelta(days=30 - age_days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        # From Python 3.13 on, a certificate without these is not believed.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_issuer_identifier(signed_by.key if signed_by else key), critical=False)
    )
    if ca:
        builder = builder.add_extension(CA_KEY_USAGE, critical=True)
    else:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = builder.add_extension(names, critical=False)
    return Certificate(builder.sign(signed_by.key if signed_by else key, hashes.SHA256()), key)


def _issuer_identifier(issuer_key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())


class Server(NamedTuple):
    url: str
    received: list[str]
    context: ssl.SSLContext


@contextmanager
def tls_server(
    folder: Path, leaf: Certificate, ca: Certificate | None = None, body: bytes = b"hello"
) -> Iterator[Server]:
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(f"{self.requestline}\n{self.headers}")
            answer = ca.pem if ca and self.path == "/ca.pem" else body
            self.send_response(200 if self.path != "/ca.pem" or ca else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*leaf.files(folder, f"leaf-{leaf.certificate.serial_number}"))
    server = QuietServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Server(f"https://127.0.0.1:{server.server_port}", received, context)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def say_hello(url: str, choices: Choices) -> str:
    """What an agent does: settle trust, then send the token."""
    context = context_for(url, choices, warnings.append)
    with httpx2.Client(verify=context or True) as client:
        return client.get(f"{url}/hello", headers={"X-Worker-Token": SECRET}).text


warnings: list[str] = []


@pytest.fixture(autouse=True)
def no_old_warnings() -> None:
    warnings.clear()


@pytest.fixture(scope="module")
def ca() -> Certificate:
    return make("fleet CA", ca=True)


@pytest.fixture(scope="module")
def leaf(ca: Certificate) -> Certificate:
    return make("fleet server", ca)


def test_a_pin_on_the_servers_own_certificate_is_believed(
    tmp_path: Path, leaf: Certificate, ca: Certificate
) -> None:
    with tls_server(tmp_path, leaf) as server:
        assert say_hello(server.url, Choices(fingerprint=leaf.pin)) == "hello"
    assert warnings == []


def test_a_pin_on_the_ca_is_believed_and_survives_a_renewed_certificate(
    tmp_path: Path, leaf: Certificate, ca: Certificate
) -> None:
    with tls_server(tmp_path, leaf, ca) as server:
        assert say_hello(server.url, Choices(fingerprint=ca.pin)) == "hello"
        server.context.load_cert_chain(*make("renewed", ca).files(tmp_path, "renewed"))
        assert say_hello(server.url, Choices(fingerprint=ca.pin)) == "hello"


def test_a_wrong_pin_is_refused_before_any_byte_of_a_token_is_sent(
    tmp_path: Path, leaf: Certificate, ca: Certificate
) -> None:
    with tls_server(tmp_path, leaf, ca) as server:
        with pytest.raises(TrustError) as refused:
            say_hello(server.url, Choices(fingerprint="ab" * 32))
        assert server.received, "the look at /ca.pem has happened"
        assert not any(SECRET in request or "hello" in request for request in server.received)
    assert refused.value.code == "E_TLS_FINGERPRINT"
    assert "sha256:" + "ab" * 32 in refused.value.why
    assert leaf.pin in refused.value.why
    assert ca.pin in refused.value.why


def test_an_impostor_that_shows_the_right_ca_file_gets_no_token(tmp_path: Path, ca: Certificate) -> None:
    impostor = make("fleet server")
    with tls_server(tmp_path, impostor, ca) as server:
        with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
            say_hello(server.url, Choices(fingerprint=ca.pin))
        assert not any(SECRET in request for request in server.received)


def test_a_context_goes_on_refusing_when_the_certificate_changes_later(
    tmp_path: Path, leaf: Certificate
) -> None:
    with tls_server(tmp_path, leaf) as server:
        context = context_for(server.url, Choices(fingerprint=leaf.pin), warnings.append)
        assert context
        with httpx2.Client(verify=context) as client:
            assert client.get(server.url).text == "hello"
        server.context.load_cert_chain(*make("other").files(tmp_path, "other"))
        seen = len(server.received)
        with httpx2.Client(verify=context) as client, pytest.raises(httpx2.ConnectError):
            client.get(server.url, headers={"X-Worker-Token": SECRET})
        assert len(server.received) == seen


def test_an_expired_certificate_is_refused_even_when_pinned(tmp_path: Path) -> None:
    expired = make("old", age_days=60)
    with tls_server(tmp_path, expired) as server:
        with pytest.raises(httpx2.ConnectError, match="certificate has expired"):
            say_hello(server.url, Choices(fingerprint=expired.pin))
        assert server.received == []


def test_an_unknown_certificate_is_refused_without_a_choice(tmp_path: Path, leaf: Certificate) -> None:
    with tls_server(tmp_path, leaf) as server:
        with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
            say_hello(server.url, Choices())
        assert server.received == []


def test_a_ca_file_is_believed_and_the_hosts_name_is_checked(
    tmp_path: Path, leaf: Certificate, ca: Certificate
) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(ca.pem)
    with tls_server(tmp_path, leaf) as server:
        assert say_hello(server.url, Choices(ca_cert=str(ca_file))) == "hello"
        with pytest.raises(httpx2.ConnectError, match=r"[Hh]ostname mismatch"):
            say_hello(server.url.replace("127.0.0.1", "localhost"), Choices(ca_cert=str(ca_file)))


def test_the_systems_store_follows_ssl_cert_file(
    tmp_path: Path, leaf: Certificate, ca: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(ca.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))
    with tls_server(tmp_path, leaf) as server:
        assert say_hello(server.url, Choices()) == "hello"


def test_no_verify_works_and_warns_every_time(tmp_path: Path, leaf: Certificate) -> None:
    with tls_server(tmp_path, leaf) as server:
        for count in (1, 2):
            assert say_hello(server.url, Choices(no_verify=True)) == "hello"
            assert len(warnings) == count
    assert "--ssl-no-verify" in warnings[0]


def test_a_ca_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrustError, match=r"missing\.pem"):
        context_for("https://127.0.0.1:1", Choices(ca_cert=str(tmp_path / "missing.pem")), warnings.append)


def test_a_ca_file_without_a_certificate_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"\x00\x01 no certificate")
    with pytest.raises(TrustError) as refused:
        context_for("https://127.0.0.1:1", Choices(ca_cert=str(tmp_path / "ca.pem")), warnings.append)
    assert refused.value.why == "the file holds no PEM certificate"


def test_plain_http_beyond_this_machine_is_asked_for_by_name_and_warns_and_on_loopback_does_not() -> None:
    with pytest.raises(TrustError, match="does not use TLS") as refused:
        context_for("http://10.0.0.5:8001", Choices(), warnings.append)
    assert refused.value.code == "E_PLAIN_HTTP"
    assert context_for("http://10.0.0.5:8001", Choices(plain_http=True), warnings.append) is None
    assert "unencrypted" in warnings.pop()
    assert context_for("http://127.0.0.1:8001", Choices(), warnings.append) is None
    assert warnings == []


def test_a_pin_never_allows_plain_http() -> None:
    with pytest.raises(TrustError) as refused:
        context_for("http://127.0.0.1:8001", Choices(fingerprint="ab" * 32), warnings.append)
    assert refused.value.code == "E_TLS_PIN_WITHOUT_TLS"


def test_a_server_without_tls_behind_https_is_told_as_that() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(TrustError) as refused:
            context_for(
                f"https://127.0.0.1:{listener.getsockname()[1]}",
                Choices(fingerprint="ab" * 32),
                warnings.append,
            )
        thread.join()
    assert refused.value.code == "E_TLS_HANDSHAKE"


async def test_the_agent_settles_trust_without_blocking_its_loop(tmp_path: Path, leaf: Certificate) -> None:
    with tls_server(tmp_path, leaf) as server:
        assert await context_for_async(server.url, Choices(fingerprint=leaf.pin), warnings.append)


@pytest.mark.parametrize(
    "text",
    [
        "sha256:" + "ab" * 32,
        "SHA256:" + "AB" * 32,
        "ab" * 32,
        ":".join(["AB"] * 32),
        " sha256:" + ":".join(["ab"] * 32) + "\n",
    ],
)
def test_a_fingerprint_is_read_in_every_usual_spelling(text: str) -> None:
    assert values.fingerprint(text) == "sha256:" + "ab" * 32


@pytest.mark.parametrize("text", ["", "sha256:", "sha1:" + "ab" * 20, "xy" * 32, "ab" * 33])
def test_what_is_no_fingerprint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal"):
        values.fingerprint(text)


def test_loopback_is_known_by_name_and_by_address() -> None:
    assert all(map(is_loopback, ("localhost", "LOCALHOST.", "127.0.0.1", "127.3.4.5", "::1")))
    assert not any(map(is_loopback, ("10.0.0.5", "localhost.example.com", "", "::2")))
