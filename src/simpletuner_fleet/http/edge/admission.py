"""Decides who may call: by networks, origins, credentials and rates, before any of the body is read."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from simpletuner_fleet.core.errors import FleetError, InvalidToken, NetworkNotAllowed, Unauthenticated
from simpletuner_fleet.http.access.auth import (
    ANONYMOUS,
    LOCAL_ADMIN,
    Authenticator,
    Principal,
    SessionEnded,
    ShownTokens,
    WorkerAuthFailure,
    check_permission,
    failed_proof,
)
from simpletuner_fleet.http.access.credential_cache import CredentialSource
from simpletuner_fleet.http.access.hosts import (
    AllowedHosts,
    comes_from_browser,
    is_foreign,
    names_loopback,
    proves_own_page,
)
from simpletuner_fleet.http.access.limits import Buckets, RateLimits, address_key
from simpletuner_fleet.http.access.networks import Networks, client_address, is_loopback
from simpletuner_fleet.http.access.sessions import session_secret
from simpletuner_fleet.http.edge.exchange import Exchange
from simpletuner_fleet.http.edge.problems import ForeignOrigin, HostNotAllowed, OriginMissing, PageOfAnother
from simpletuner_fleet.http.edge.route_table import CompiledRoute
from simpletuner_fleet.http.edge.routes import Access, Route

CREDENTIAL_HEADERS = ("authorization", "x-api-key", "x-worker-token", "x-upload-token")
PAGE_OF = "x-page-of"
"""The header in which scripts of a page say which user the page was made for."""
OF_WORKERS = (Access.WORKER, Access.UPLOAD)
HEADERS_LOOKED_AT = frozenset({"cookie", "origin", "sec-fetch-site", "x-upload-token"})
"""With one of these, more than a token decides who calls, or whether they may."""


class EdgeSettings(Struct, frozen=True, kw_only=True):
    trust_loopback: bool = False
    """Has no effect beyond a loopback bind, whatever the command line let through."""
    beyond_loopback: bool = False
    """The server is bound to more than loopback: any name or address is accepted as Host."""
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: str = ""
    asserted_headers: frozenset[str] = frozenset()
    """Those in which a trusted proxy names whom it has logged in; from anybody else they are taken away."""
    user_header: str = ""
    """The one of them that says who it is."""
    worker_networks: str = ""
    """`SIMPLETUNER_WORKER_NETWORKS`; empty allows every network."""
    tls: bool = False
    term: int | None = None
    """In which this orchestrator leads; None where it is alone."""
    may_promise: Callable[[], bool] | None = None
    """Whether it still leads for sure; None where it is alone. What it has found out is not told once it does not."""
    body_timeout_s: float = 60.0
    limits: RateLimits = RateLimits()


class KnownCaller:
    """Holds what headers and connection tell of whoever calls, before any credential is looked up."""

    __slots__ = ("ip", "secure", "shows_token_only", "tokens")

    def __init__(self, ip: str, secure: bool, shows_token_only: bool) -> None:
        self.ip = ip
        """The caller's own address, even behind our proxies."""
        self.secure = secure
        """Came over TLS, to us or to a trusted proxy."""
        self.shows_token_only = shows_token_only
        """Nothing but a token decides who calls, and whether they may."""
        self.tokens = ShownTokens()


class Admission:
    def __init__(
        self,
        settings: EdgeSettings,
        credentials: CredentialSource,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        on_worker_auth_failure: WorkerAuthFailure | None,
    ) -> None:
        self._trusts_loopback = settings.trust_loopback and not settings.beyond_loopback
        self._authenticator = Authenticator(credentials, now)
        self._hosts = AllowedHosts(settings.allowed_hosts, settings.beyond_loopback)
        self._proxies = Networks.parse(settings.trusted_proxies)
        self._asserted, self._user_header = settings.asserted_headers, settings.user_header
        self._worker_networks = Networks.parse(settings.worker_networks)
        self._has_proxies, self._limits_workers = bool(self._proxies), bool(self._worker_networks)
        self._on_worker_auth_failure = on_worker_auth_failure
        limits = settings.limits
        self._worker_rate = Buckets(limits.worker, monotonic)
        self._user_rate = Buckets(limits.user, monotonic)
        self._public_rate = Buckets(limits.public, monotonic)
        self._failed_proofs = Buckets(limits.failed_proof, monotonic)
        self._noted_failures = Buckets(limits.noted_failure, monotonic)
        self._noted_overall = Buckets(limits.noted_failures_overall, monotonic)

    def caller_of(self, exchange: Exchange) -> KnownCaller:
        """Returns the caller; raises HostNotAllowed. The same headers on the same connection are of the same caller."""
        memory = exchange.memory
        if memory is not None and memory.caller is not None:
            caller: KnownCaller = memory.caller
            return caller
        self._check_host(exchange)
        took_away = self._take_away_assertions(exchange)
        caller = KnownCaller(
            client_address(exchange.peer, exchange.headers.get("x-forwarded-for"), self._proxies),
            self._is_secure(exchange),
            HEADERS_LOOKED_AT.isdisjoint(exchange.headers),
        )
        if memory is not None and not took_away:  # they are to be taken away from every request
            memory.caller = caller
        return caller

    def _check_host(self, exchange: Exchange) -> None:
        host = exchange.headers.get("host")
        if not self._hosts.holds(host):
            raise HostNotAllowed(f"The server does not accept the host name '{(host or '')[:100]}'.")

    def _take_away_assertions(self, exchange: Exchange) -> bool:
        """Removes headers that say who the user is, unless one of our proxies sent them; tells whether there were any."""
        if not self._asserted or self._proxies.holds(exchange.peer):
            return False
        asserted = self._asserted & exchange.headers.keys()
        for name in asserted:
            del exchange.headers[name]
        return bool(asserted)

    def _is_secure(self, exchange: Exchange) -> bool:
        """Tells whether the request came over TLS, to us or to a trusted proxy."""
        if exchange.secure or not self._has_proxies:
            return exchange.secure
        return exchange.headers.get("x-forwarded-proto") == "https" and self._proxies.holds(exchange.peer)

    def admit_known(
        self, compiled: CompiledRoute, headers: Mapping[str, str], caller: KnownCaller
    ) -> Principal | None:
        """Returns the caller where one look-up in memory suffices, as for most calls of most agents.

        Returns None where `admit` has to look closer.
        """
        if not caller.shows_token_only or (compiled.of_workers and self._limits_workers):
            return None
        permission = compiled.row.permission
        if permission is Access.PUBLIC:
            return None
        if permission in OF_WORKERS:
            return self._authenticator.known_worker(headers, caller.tokens)
        return self._authenticator.known_user(headers, caller.tokens)

    async def admit(self, compiled: CompiledRoute, exchange: Exchange, caller: KnownCaller) -> Principal:
        """Returns who the caller is, or raises why they may not call."""
        row, headers, ip = compiled.row, exchange.headers, caller.ip
        if compiled.of_workers and self._limits_workers and not self._worker_networks.holds(ip):
            refused = NetworkNotAllowed(f"Workers may not connect from {ip}.")
            await self._note_worker_failure(ip, row.path, refused, headers)
            raise refused
        if is_foreign(exchange.method, headers, self._hosts):
            raise ForeignOrigin
        return await self._prove(row, headers, exchange.peer, ip, caller.secure)

    async def admit_again(
        self, compiled: CompiledRoute, exchange: Exchange, caller: KnownCaller
    ) -> Principal:
        """Returns who the caller is after a wait, for a body or a turn: their credential may be gone by then."""
        known = self.admit_known(compiled, exchange.headers, caller)
        principal = known or await self.admit(compiled, exchange, caller)
        if compiled.permission is not None:
            check_permission(principal, compiled.permission)
        return principal

    def permit(self, principal: Principal, compiled: CompiledRoute, exchange: Exchange, ip: str) -> None:
        """Raises where this caller may not do this, or may not do it again so soon."""
        kind = principal.kind
        if kind == "user":
            self._check_page(principal, exchange)
        if compiled.permission is not None:
            check_permission(principal, compiled.permission)
        if kind == "worker" or kind == "upload":
            self._worker_rate.spend(principal.id)
        elif kind == "anonymous":
            self._public_rate.spend(address_key(ip))
        else:
            self._user_rate.spend(principal.id)

    def _check_page(self, user: Principal, exchange: Exchange) -> None:
        """Raises unless a page of ours asks, and one of this very user.

        All tabs share one cookie: a page that was left open would act as whoever has logged in after it.
        """
        headers = exchange.headers
        if not proves_own_page(exchange.method, headers, self._hosts):
            raise OriginMissing
        if headers.get(PAGE_OF, user.id) != user.id:
            raise PageOfAnother(f"You are now logged in as '{user.name}'.")

    async def _prove(
        self, row: Route, headers: dict[str, str], peer: str, ip: str, secure: bool
    ) -> Principal:
        permission = row.permission
        if permission is Access.PUBLIC:
            return ANONYMOUS
        if permission not in OF_WORKERS and "cookie" in headers:
            shown = None if any(name in headers for name in CREDENTIAL_HEADERS) else headers["cookie"]
            secret = session_secret(shown, secure)
            if secret:
                return await self._signed_in(secret, ip, headers.get(self._user_header, ""))
        try:
            if permission is Access.WORKER:
                return await self._authenticator.worker(headers)
            if permission is Access.UPLOAD:
                return await self._authenticator.uploader(headers)
            if self._trusts_loopback and is_local_call(peer, headers):
                return LOCAL_ADMIN
            return await self._authenticator.user(headers)
        except (InvalidToken, Unauthenticated) as error:
            if permission in OF_WORKERS:
                await self._note_worker_failure(ip, row.path, error, headers)
            # After the look-up on purpose: behind one address a bad machine must not lock out the good ones.
            # Who shows nothing guesses at nothing: a page that leads to the log-in may be asked for often.
            guessed = isinstance(error, InvalidToken)
            (self._failed_proofs if guessed else self._public_rate).spend(address_key(ip))
            raise

    async def _signed_in(self, secret: str, ip: str, asserted: str) -> Principal:
        """Returns the user of a session.

        A page left open overnight asks again and again: that does not count as guessing a secret.
        """
        try:
            return await self._authenticator.session(secret, asserted)
        except SessionEnded:
            self._public_rate.spend(address_key(ip))
            raise

    async def _note_worker_failure(
        self, ip: str, path: str, error: FleetError, headers: Mapping[str, str]
    ) -> None:
        """Notes a failure, rarely enough that a flood cannot fill the audit log."""
        if self._on_worker_auth_failure is None or self._noted_failures.take(address_key(ip)):
            return
        if not self._noted_overall.take(""):
            await self._on_worker_auth_failure(failed_proof(ip, path, error, headers))


def is_local_call(peer: str, headers: Mapping[str, str]) -> bool:
    """Tells whether this machine itself calls, without a browser, a proxy or another credential."""
    return (
        is_loopback(peer)
        and names_loopback(headers.get("host"))
        and not comes_from_browser(headers)
        and not any(
            name in headers for name in (*CREDENTIAL_HEADERS, "cookie", "forwarded", "via", "x-real-ip")
        )
        and not any(name.startswith("x-forwarded-") for name in headers)
    )
