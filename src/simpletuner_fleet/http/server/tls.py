"""Sets up TLS, with a private authority of our own in the data folder, or the certificate the operator brings."""

import os
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.http.access.networks import machine_addresses, machine_names, parse_address
from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Reply, Route
from simpletuner_fleet.settings.host_names import as_sent

CA_LIFE = timedelta(days=3650)
LEAF_LIFE = timedelta(days=825)
RENEW_BEFORE = timedelta(days=30)
CLOCK_SKEW = timedelta(hours=1)
PRIVATE, SHARED = 0o600, 0o644


class BadCertificate(FleetError):
    """The certificate is not usable."""

    code = "bad_certificate"
    next_step = "Provide a PEM certificate (with its chain) and the matching unencrypted PEM key."


class TlsFiles(Struct, frozen=True, kw_only=True):
    certificate: Path
    """The leaf first, then what it was signed by."""
    key: Path
    ca: Path | None = None
    """Our own authority's certificate; None if the operator brought a certificate."""
    fingerprint: str
    """`sha256:` and the hex digest of our authority's certificate, or of the operator's leaf."""


def private_authority(
    data_dir: Path, extra_names: Sequence[str] = (), now: datetime | None = None
) -> TlsFiles:
    """Makes what is missing in `<data dir>/tls`, and renews the leaf when names changed or it expires soon."""
    at = now or datetime.now(UTC)
    folder = data_dir / "tls"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca_path, ca_key_path = folder / "ca.pem", folder / "ca-key.pem"
    leaf_path, leaf_key_path = folder / "server.pem", folder / "server-key.pem"
    if not (ca_path.exists() and ca_key_path.exists()):
        _make_authority(ca_path, ca_key_path, at)
    ca = _read_certificate(ca_path)
    names = subject_names(extra_names)
    if not _leaf_still_good(leaf_path, leaf_key_path, ca, names, at):
        _make_leaf(leaf_path, leaf_key_path, ca, _read_key(ca_key_path), names, at)
    return TlsFiles(certificate=leaf_path, key=leaf_key_path, ca=ca_path, fingerprint=fingerprint(ca))


def own_certificate(certificate: Path, key: Path) -> TlsFiles:
    leaf = _read_certificate(certificate)
    private = _read_key(key)
    if _public_bytes(leaf.public_key()) != _public_bytes(private.public_key()):
        raise BadCertificate(f"The key {key} does not belong to the certificate {certificate}.")
    files = TlsFiles(certificate=certificate, key=key, fingerprint=fingerprint(leaf))
    server_context(files)
    return files


def server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, files)
    return context


def load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Loads the files. It is called again after a renewal: new connections see it, open ones go on."""
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (ssl.SSLError, OSError) as error:
        raise BadCertificate(f"{files.certificate} and {files.key} cannot be used: {error}.") from error


def fingerprint(certificate: x509.Certificate) -> str:
    return "sha256:" + sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def authority_routes(files: TlsFiles | None, on_look: Callable[[str], None] = lambda ip: None) -> list[Route]:
    """Returns the public route `GET /ca.pem`, outside /api: the certificate is no secret; its fingerprint is compared.

    `on_look` is called with the address of whoever asks for it.
    """
    if files is None or files.ca is None:
        return []
    pem = files.ca.read_bytes()

    async def ca_certificate(call: Call[None]) -> Reply:
        on_look(call.ip)
        return Reply(body=pem, content_type="application/x-pem-file")

    summary = "The certificate of this server's own authority"
    return [Route("GET", "/ca.pem", ca_certificate, PUBLIC, summary=summary, tags=("server",))]


def subject_names(extra: Sequence[str]) -> list[str]:
    names = ["localhost", *machine_names(), *machine_addresses(), *(name.lower() for name in extra)]
    return list(dict.fromkeys(names))


def _make_authority(path: Path, key_path: Path, at: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "SimpleTuner Fleet private authority")])
    usage = _key_usage(signs_certificates=True)
    certificate = (
        _builder(name, name, key.public_key(), at, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(key_path, _key_pem(key), PRIVATE)
    _write(path, certificate.public_bytes(serialization.Encoding.PEM), SHARED)


def _make_leaf(
    path: Path,
    key_path: Path,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
    at: datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "SimpleTuner Fleet orchestrator")])
    life = min(LEAF_LIFE, ca.not_valid_after_utc - at)
    certificate = (
        _builder(subject, ca.subject, key.public_key(), at, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    chain = b"".join(one.public_bytes(serialization.Encoding.PEM) for one in (certificate, ca))
    _write(key_path, _key_pem(key), PRIVATE)
    _write(path, chain, SHARED)


def _leaf_still_good(
    path: Path, key_path: Path, ca: x509.Certificate, names: Sequence[str], at: datetime
) -> bool:
    """Tells whether the leaf can be used, and not if a crash left a key and a certificate that do not fit together."""
    try:
        leaf, key = _read_certificate(path), _read_key(key_path)
        leaf.verify_directly_issued_by(ca)
        leaf_names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (BadCertificate, InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    fits = _public_bytes(leaf.public_key()) == _public_bytes(key.public_key())
    same_names = set(leaf_names) == {_general_name(name) for name in names}
    return fits and same_names and leaf.not_valid_after_utc - at >= RENEW_BEFORE


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, at: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - CLOCK_SKEW)
        .not_valid_after(at + life)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    if parse_address(name):
        return x509.IPAddress(ip_address(name))
    try:
        return x509.DNSName(as_sent(name))
    except ValueError as error:
        raise BadCertificate(f"'{name}' is neither a host name nor an address.") from error


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0]
    except OSError as error:
        raise BadCertificate(f"The certificate {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BadCertificate(f"{path} holds no PEM certificate.") from error


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise BadCertificate(f"The key {path} cannot be read: {error.strerror}.") from error
    except TypeError as error:
        raise BadCertificate(f"The key {path} is protected by a password.") from error
    except ValueError as error:
        raise BadCertificate(f"{path} holds no PEM private key.") from error
    return key  # type: ignore[return-value]


def _public_bytes(key: object) -> bytes:
    return key.public_bytes(  # type: ignore[attr-defined, no-any-return]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Writes the file whole or not at all, and never readable by others for a moment."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
