"""The private authority: made once, leaf renewed when it must be, believed by who holds its certificate."""

import asyncio
import socket
import ssl
import stat
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from simpletuner_fleet.http.edge.edge import EdgeSettings
from simpletuner_fleet.http.server.tls import (
    BadCertificate,
    authority_routes,
    load_certificate,
    own_certificate,
    private_authority,
    server_context,
)
from tests.http.edge_kit import running

NOW = datetime.now(UTC)


def leaf(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificates(path.read_bytes())[0]


async def test_who_trusts_our_authority_is_served_and_who_does_not_refuses(tmp_path: Path) -> None:
    files = private_authority(tmp_path)
    assert files.ca
    routes = authority_routes(files)
    trusting = ssl.create_default_context(cafile=str(files.ca))
    settings = EdgeSettings(tls=True)
    async with running(routes, tls=server_context(files), verify=trusting, settings=settings) as here:
        for host in ("127.0.0.1", "localhost"):
            answer = await here.client.get(f"https://{host}:{here.listening.port}/ca.pem")
            assert answer.content == files.ca.read_bytes()
            assert answer.headers["strict-transport-security"] == "max-age=31536000"
        async with httpx2.AsyncClient(trust_env=False) as stranger:
            with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
                await stranger.get(f"{here.listening.url}/ca.pem")
        old = ssl.create_default_context(cafile=str(files.ca))
        with pytest.warns(DeprecationWarning, match="deprecated"):
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        async with httpx2.AsyncClient(verify=old, trust_env=False) as museum:
            with pytest.raises(httpx2.ConnectError):
                await museum.get(f"{here.listening.url}/ca.pem")


def test_the_fingerprint_is_of_the_authoritys_der_and_the_chain_carries_it(tmp_path: Path) -> None:
    files = private_authority(tmp_path)
    assert files.ca
    der = ssl.PEM_cert_to_DER_cert(files.ca.read_text())
    assert files.fingerprint == f"sha256:{sha256(der).hexdigest()}"
    assert files.ca.read_text() in files.certificate.read_text()


def test_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    private_authority(tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()}
    assert modes == {"ca.pem": 0o644, "ca-key.pem": 0o600, "server.pem": 0o644, "server-key.pem": 0o600}
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700


def test_all_names_and_addresses_and_the_configured_ones_are_in_the_certificate(tmp_path: Path) -> None:
    files = private_authority(tmp_path, ["Orchestrator.Example.com", "203.0.113.7"])
    names = leaf(files.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "orchestrator.example.com"} <= set(names.get_values_for_type(x509.DNSName))
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    assert {"127.0.0.1", "::1", "203.0.113.7"} <= addresses


def test_a_second_start_changes_nothing(tmp_path: Path) -> None:
    private_authority(tmp_path, now=NOW)
    before = {path: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    private_authority(tmp_path, now=NOW + timedelta(days=700))
    assert {path: path.read_bytes() for path in (tmp_path / "tls").iterdir()} == before


@pytest.mark.parametrize(
    ("names", "later"),
    [(("new.example",), timedelta(0)), ((), timedelta(days=796)), ((), timedelta(days=900))],
)
def test_the_leaf_is_renewed_by_the_same_authority(
    tmp_path: Path, names: tuple[str, ...], later: timedelta
) -> None:
    first = private_authority(tmp_path, now=NOW)
    serial = leaf(first.certificate).serial_number
    second = private_authority(tmp_path, names, now=NOW + later)
    assert leaf(second.certificate).serial_number != serial
    assert second.fingerprint == first.fingerprint
    assert leaf(second.certificate).not_valid_after_utc > NOW + later + timedelta(days=800)


def test_a_crash_between_key_and_certificate_heals(tmp_path: Path) -> None:
    files = private_authority(tmp_path)
    other = private_authority(tmp_path / "other")
    files.key.write_bytes(other.key.read_bytes())
    healed = private_authority(tmp_path)
    server_context(healed)
    assert healed.fingerprint == files.fingerprint


def test_a_leaf_of_another_authority_is_replaced(tmp_path: Path) -> None:
    files = private_authority(tmp_path)
    other = private_authority(tmp_path / "other")
    files.key.write_bytes(other.key.read_bytes())
    files.certificate.write_bytes(other.certificate.read_bytes())
    assert leaf(private_authority(tmp_path).certificate) != leaf(other.certificate)


def test_ones_own_certificate_is_pinned_by_its_leaf(tmp_path: Path) -> None:
    made = private_authority(tmp_path)
    own = own_certificate(made.certificate, made.key)
    assert own.ca is None
    der = leaf(made.certificate).public_bytes(Encoding.DER)
    assert own.fingerprint == f"sha256:{sha256(der).hexdigest()}"
    assert authority_routes(own) == []


def test_ones_own_certificate_is_checked_with_words(tmp_path: Path) -> None:
    made = private_authority(tmp_path)
    other = private_authority(tmp_path / "other")
    junk = tmp_path / "junk.pem"
    junk.write_text("hello")
    for certificate, key, words in [
        (made.certificate, other.key, "does not belong"),
        (tmp_path / "absent.pem", made.key, "cannot be read"),
        (made.certificate, tmp_path / "absent.pem", "cannot be read"),
        (junk, made.key, "no PEM certificate"),
        (made.certificate, junk, "no PEM private key"),
    ]:
        with pytest.raises(BadCertificate, match=words):
            own_certificate(certificate, key)


async def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    files = private_authority(tmp_path)
    context = server_context(files)
    async with running(authority_routes(files), tls=context, verify=False) as here:
        address = (here.listening.host, here.listening.port)
        before = await served_certificate(*address)
        renewed = private_authority(tmp_path, ["new.example"])
        load_certificate(context, renewed)
        assert await served_certificate(*address) != before


async def served_certificate(host: str, port: int) -> str:
    return await asyncio.to_thread(ssl.get_server_certificate, (host, port))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_that_comes_again_goes_on_with_its_session(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """Without the certificate's signature the second greeting costs the server less."""
    files = private_authority(tmp_path)
    client = ssl.create_default_context(cafile=files.ca)
    client.minimum_version = client.maximum_version = version

    def ask(port: int, session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession | None]:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            client.wrap_socket(plain, server_hostname="localhost", session=session) as line,
        ):
            line.sendall(b"GET /ca.pem HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert line.recv(12) == b"HTTP/1.1 200"
            return bool(line.session_reused), line.session

    async with running(authority_routes(files), tls=server_context(files), verify=client) as here:
        first, session = await asyncio.to_thread(ask, here.listening.port, None)
        again, _ = await asyncio.to_thread(ask, here.listening.port, session)
    assert (first, again) == (False, True)
