"""Decides whom a client trusts: makes the TLS context for a URL before any secret is sent."""

import hashlib
import http.client
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from simpletuner_fleet.languages import _
from simpletuner_fleet.settings import values as settings
from simpletuner_fleet.settings.host_names import as_sent

CONNECT_TIMEOUT_S = 10.0
MAX_CA_BYTES = 64 * 1024
PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

Warn = Callable[[str], None]


class Choices(NamedTuple):
    """Holds what the user said about TLS; at most one of the first three decides, in this order."""

    fingerprint: str | None = None
    ca_cert: str | None = None
    no_verify: bool = False
    plain_http: bool = False
    """Another machine may be talked to without TLS."""

    def kind(self, url: str) -> str:
        """Returns how the server's identity is checked, in the word that the orchestrator shows."""
        if urlsplit(url).scheme != "https":
            return "none"
        if self.fingerprint:
            return "pinned"
        return "unverified" if self.no_verify and not self.ca_cert else "verified"


class PinnedContext(ssl.SSLContext):
    """Trusts one certificate alone."""

    certificate: bytes


class TrustError(Exception):
    """The server is not the one that was asked for. Nothing secret was sent."""

    def __init__(self, what: str, why: str, next_step: str, code: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what, self.why, self.next, self.code = what, why, next_step, code


def fingerprint_of(certificate: bytes) -> str:
    return "sha256:" + hashlib.sha256(certificate).hexdigest()


def is_loopback(host: str) -> bool:
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def context_for(
    url: str, choices: Choices, warn: Warn, timeout_s: float = CONNECT_TIMEOUT_S
) -> ssl.SSLContext | None:
    """Returns the context to use for every connection to this URL, or None where it speaks plain HTTP."""
    target = urlsplit(url)
    if target.scheme != "https":
        _check_plain(target, choices, warn)
        return None
    if choices.fingerprint:
        return _pinned(target, settings.fingerprint(choices.fingerprint), timeout_s)
    if choices.ca_cert:
        return _private(choices.ca_cert)
    if choices.no_verify:
        warn(
            _(
                "WARNING: --ssl-no-verify: anyone between here and %(host)s can read the token and change the jobs. "
                "Use --ssl-fingerprint instead.",
                host=target.hostname,
            )
        )
        return _unverified()
    return ssl.create_default_context()


def trusting_nobody() -> ssl.SSLContext:
    """Returns a context for a client that speaks plain HTTP only.

    Without one, httpx2 reads whom the machine trusts, which takes a tenth of a second and is then not used.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def context_for_async(url: str, choices: Choices, warn: Warn) -> ssl.SSLContext | None:
    import asyncio  # heavy, and the command line has no use for it

    return await asyncio.to_thread(context_for, url, choices, warn)


def _check_plain(target: SplitResult, choices: Choices, warn: Warn) -> None:
    if choices.fingerprint:
        raise TrustError(
            _("a fingerprint was given, but %(url)s does not use TLS", url=target.geturl()),
            _("without TLS there is no certificate to compare, and the token would be sent unencrypted"),
            _("use the https:// address of the server (start it with --ssl), or leave --ssl-fingerprint out"),
            "E_TLS_PIN_WITHOUT_TLS",
        )
    if is_loopback(target.hostname or ""):
        return
    if not choices.plain_http:
        raise TrustError(
            _("%(url)s does not use TLS", url=target.geturl()),
            _("the token would be sent unencrypted, readable by anyone on the network; it was not sent"),
            _(
                "use https://%(netloc)s with the --ssl-fingerprint that the server printed; if the "
                "network is private anyway: --plain-http",
                netloc=target.netloc,
            ),
            "E_PLAIN_HTTP",
        )
    warn(
        _(
            "WARNING: --plain-http: the token and the jobs travel unencrypted to %(netloc)s, for anyone on the "
            "network to read.",
            netloc=target.netloc,
        )
    )


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _private(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        no_pem = isinstance(error, ssl.SSLError)
        raise TrustError(
            _("cannot read the CA certificate %(ca_file)s", ca_file=ca_file),
            _("the file holds no PEM certificate") if no_pem else error.strerror or str(error),
            _("give the path of a PEM file, for example tls/ca.pem in the server's data folder"),
            "E_TLS_CA_FILE",
        ) from None


def _pinned(target: SplitResult, pin: str, timeout_s: float) -> ssl.SSLContext:
    """Connects twice without credentials: for the certificate shown, then for the CA the server says it has.

    Whoever answers may lie, but gains nothing: the context made here trusts the pinned certificate alone.
    """
    leaf = _leaf_of(target, timeout_s)
    if fingerprint_of(leaf) == pin:
        return _trusting_only(leaf)
    authorities = _authorities_of(target, timeout_s)
    for authority in authorities:
        if fingerprint_of(authority) == pin:
            return _trusting_only(authority)
    shown = fingerprint_of(leaf)
    for authority in authorities:
        shown = _("%(shown)s, its CA %(fingerprint)s", shown=shown, fingerprint=fingerprint_of(authority))
    raise TrustError(
        _("the certificate of %(netloc)s does not match the pinned one", netloc=target.netloc),
        _("expected %(pin)s, the server shows %(shown)s", pin=pin, shown=shown),
        _(
            "compare it with the fingerprint the server printed at startup; if the server was set up "
            "again, use the new one. If not, someone may be intercepting the connection: no token was "
            "sent"
        ),
        "E_TLS_FINGERPRINT",
    )


def _trusting_only(certificate: bytes) -> PinnedContext:
    """Trusts this certificate and what it signed; its owner signs for one server, so the host name adds nothing."""
    context = PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.certificate = certificate
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context


def _leaf_of(target: SplitResult, timeout_s: float) -> bytes:
    host = as_sent(target.hostname or "")
    try:
        with (
            socket.create_connection((host, target.port or 443), timeout_s) as plain,
            _unverified().wrap_socket(plain, server_hostname=host) as tls,
        ):
            return tls.getpeercert(binary_form=True) or b""
    except ssl.SSLError as error:
        raise TrustError(
            _("no TLS with %(netloc)s", netloc=target.netloc),
            getattr(error, "reason", None) or str(error),
            _("verify URL and port; a server started without --ssl is reached with http://"),
            "E_TLS_HANDSHAKE",
        ) from None


def _authorities_of(target: SplitResult, timeout_s: float) -> list[bytes]:
    """Returns the certificates in `/ca.pem`; none if the server has no such file."""
    connection = http.client.HTTPSConnection(
        as_sent(target.hostname or ""), target.port or 443, timeout=timeout_s, context=_unverified()
    )
    try:
        connection.connect()
        with _hung_up_after(timeout_s, connection.sock):
            connection.request("GET", f"{target.path.rstrip('/')}/ca.pem")
            answer = connection.getresponse()
            body = answer.read(MAX_CA_BYTES) if answer.status == 200 else b""
        return [ssl.PEM_cert_to_DER_cert(pem.decode("ascii")) for pem in PEM.findall(body)]
    except (OSError, http.client.HTTPException, ValueError):
        return []
    finally:
        connection.close()


@contextmanager
def _hung_up_after(whole_s: float, line: socket.socket) -> Iterator[None]:
    """Ends the connection when the time is up: whoever answers byte by byte would outlast the timeout of each read."""

    def hang_up() -> None:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(whole_s, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
