"""Turns credentials into principals, and says what a principal may do."""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import (
    FleetError,
    Forbidden,
    InvalidToken,
    StoreUnavailable,
    Unauthenticated,
)
from simpletuner_fleet.core.jobs.fencing import OWN_ENDS
from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.permissions import EVERYTHING, allowed
from simpletuner_fleet.core.people.sign_in.providers import PROXY
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.http.access.credential_cache import CachedCredentials, CredentialSource
from simpletuner_fleet.ports import ApiToken

MIN_CHOSEN_TOKEN_CHARS = 32
LAST_REPORT_S = 300.0
"""A guardian process repeats its report for a minute."""
MAX_TOKEN_CHARS = 512


class Principal(Struct, frozen=True, kw_only=True):
    """Describes the caller of a request, and what it may do.

    `id` is `t_…`, `u_…`, `w_…`, `a_…` or `local`; an empty permission set allows nothing.
    """

    kind: Literal["token", "user", "worker", "upload", "loopback", "anonymous"]
    id: str
    name: str
    permissions: tuple[str, ...] = ()
    token_hash: str = ""
    only_own: bool = False
    """The caller may cancel and retry their own jobs alone."""
    owner_id: str = ""
    """The user that a token acts for."""
    expires_at: float | None = None
    """When a token ends by itself; None for one that does not, and for all others."""
    logged_in_at: float | None = None
    """When a user's session began; None for all others."""
    session_ends_at: float | None = None
    """When that session ends by itself, unless it is used before; None for all others."""
    language: str = ""
    """The language the user chose; empty means the browser's."""
    attempt: Attempt | None = None
    """The one attempt that a credential of kind `upload` may write to."""

    def can(self, permission: str) -> bool:
        return allowed(self.permissions, permission)

    @property
    def owns_as(self) -> str:
        """Returns the id under which configs, datasets and secrets are the caller's."""
        return self.owner_id or self.id


ANONYMOUS = Principal(kind="anonymous", id="anonymous", name="anonymous")
LOCAL_ADMIN = Principal(kind="loopback", id="local", name="local admin", permissions=(EVERYTHING,))


class FailedProof(Struct, frozen=True, kw_only=True):
    """Describes a request whose caller did not prove that it is a worker."""

    ip: str
    path: str
    why: str
    code: str
    token_hash: str = ""
    """The hash of a token that has the right form, and that nobody has now."""


class ShownTokens:
    """Remembers the hashes of the tokens that headers show, and the principal that was made for one of them.

    The same headers have the same hashes. Whose they are is looked up for every request, because a token may be revoked
    at any moment; only where the very same row is found, its principal is the same, too.
    """

    __slots__ = ("of_user", "of_worker", "principal", "row")

    def __init__(self) -> None:
        self.of_worker: str | None = None
        """None until somebody asks; '' where the headers show none, or one that is too long for any."""
        self.of_user: str | None = None
        self.row: Worker | ApiToken | None = None
        self.principal: Principal | None = None


WorkerAuthFailure = Callable[[FailedProof], Awaitable[None]]


def nothing_known(token_hash: str) -> None:
    return None


class Authenticator:
    """Turns the headers of a request into a principal, or raises what is wrong with them.

    A secret whose hash is remembered has the right form, or it would not have been accepted: its form is not checked
    again, which costs more than all the rest.
    """

    def __init__(self, credentials: CredentialSource, now: Callable[[], float]) -> None:
        self._credentials = credentials
        self._now = now
        self._known_worker: Callable[[str], Worker | None] = nothing_known
        self._known_api_token: Callable[[str], ApiToken | None] = nothing_known
        if isinstance(credentials, CachedCredentials):
            self._known_worker = credentials.worker_in_memory
            self._known_api_token = credentials.known_api_token

    def known_worker(self, headers: Mapping[str, str], shown: "ShownTokens") -> Principal | None:
        """Returns the worker whose token this is, if it is remembered."""
        token_hash = shown.of_worker
        if token_hash is None:
            token_hash = shown.of_worker = _hash_of(headers.get("x-worker-token"))
        worker = self._known_worker(token_hash)
        if worker is None or not same(worker.token_hash, token_hash):
            return None
        if shown.row is not worker or shown.principal is None:
            shown.row, shown.principal = worker, _as_worker(worker, token_hash)
        return shown.principal

    def known_user(self, headers: Mapping[str, str], shown: "ShownTokens") -> Principal | None:
        """Returns the owner of this API token, if it is remembered, valid, and its use need not be noted now."""
        token_hash = shown.of_user
        if token_hash is None:
            token_hash = shown.of_user = _hash_of(bearer(headers.get("authorization")))
        token = self._known_api_token(token_hash)
        if token is None or not same(token.token_hash, token_hash) or token.revoked_at is not None:
            return None
        now = self._now()
        if token.wants_noting(now) or (token.expires_at is not None and token.expires_at <= now):
            return None
        if shown.row is not token or shown.principal is None:
            shown.row, shown.principal = token, _as_token(token, token_hash)
        return shown.principal

    async def user(self, headers: Mapping[str, str]) -> Principal:
        secret = bearer(headers.get("authorization")) or headers.get("x-api-key")
        if not secret:
            raise Unauthenticated
        refuse_overlong(secret)
        token_hash = tokens.hashed(secret)
        token = self._known_api_token(token_hash)
        if token is None:
            refuse_misshapen_api_token(secret)
            token = await self._credentials.api_token(token_hash)
        if token is None or not same(token.token_hash, token_hash):
            raise InvalidToken
        if token.revoked_at is not None:
            raise InvalidToken("Invalid token: it was revoked.", next_step="Ask for a new one.")
        if token.expires_at is not None and token.expires_at <= self._now():
            raise InvalidToken("Invalid token: it has expired.", next_step="Ask for a new one.")
        if token.wants_noting(self._now()):
            with suppress(StoreUnavailable):
                await self._credentials.note_token_use(token_hash, self._now())
        return _as_token(token, token_hash)

    async def session(self, secret: str, asserted: str = "") -> Principal:
        """Returns the user of a session.

        `asserted` is the user a trusted proxy names: a session that began through the proxy ends where it names
        another user.
        """
        if len(secret) > MAX_TOKEN_CHARS or tokens.complaint(secret, tokens.SESSION):
            raise SessionEnded
        token_hash, now = tokens.hashed(secret), self._now()
        signed_in = await self._credentials.session(token_hash)
        if signed_in is None or not same(signed_in.session.token_hash, token_hash):
            raise SessionEnded
        if not signed_in.session.good_at(now) or signed_in.user.disabled_at is not None:
            raise SessionEnded
        if signed_in.session.issuer == PROXY and signed_in.user.subject != asserted:
            raise SessionEnded
        user, session = signed_in.user, signed_in.session
        if session.wants_renewal(now):
            with suppress(StoreUnavailable):
                await self._credentials.renew_session(token_hash, now)
                session = replace(session, seen_at=now)
        return Principal(
            kind="user",
            id=user.id,
            name=user.name,
            permissions=signed_in.permissions,
            token_hash=token_hash,
            only_own=signed_in.only_own,
            logged_in_at=session.created_at,
            session_ends_at=session.ends_at,
            language=user.language,
        )

    async def worker(self, headers: Mapping[str, str]) -> Principal:
        secret = headers.get("x-worker-token")
        if not secret:
            raise NoWorkerToken
        refuse_overlong(secret)
        token_hash = tokens.hashed(secret)
        worker = self._known_worker(token_hash)
        if worker is None:
            refuse_misshapen(secret, tokens.WORKER)
            worker = await self._credentials.worker(token_hash)
        if worker is None or not same(worker.token_hash, token_hash):
            raise InvalidToken
        return _as_worker(worker, token_hash)

    async def uploader(self, headers: Mapping[str, str]) -> Principal:
        secret = headers.get("x-upload-token")
        if not secret:
            return await self.worker(headers)
        refuse_misshapen(secret, tokens.UPLOAD)
        token_hash = tokens.hashed(secret)
        attempt = await self._credentials.attempt(token_hash)
        if attempt is None or not same(attempt.upload_token_hash, token_hash):
            raise InvalidToken
        if died(attempt, self._now()):
            raise InvalidToken(
                "Invalid token: the attempt it was issued for has ended.",
                next_step="There is nothing left to do.",
            )
        return Principal(
            kind="upload", id=attempt.id, name=attempt.worker_name, token_hash=token_hash, attempt=attempt
        )

    async def still_holds(self, principal: Principal) -> bool:
        """Tells whether the credential of this caller is there, and holds all that it held."""
        token_hash, now = principal.token_hash, self._now()
        match principal.kind:
            case "token":
                token = await self._credentials.api_token(token_hash)
                return token is not None and token.revoked_at is None and holds(token.permissions, principal)
            case "user":
                known = await self._credentials.session(token_hash)
                if known is None or not known.session.good_at(now) or known.user.disabled_at is not None:
                    return False
                return holds(known.permissions, principal)
            case "worker":
                return await self._credentials.worker(token_hash) is not None
            case "upload":
                return await self._credentials.attempt(token_hash) is not None
        return True


def holds(permissions: tuple[str, ...], principal: Principal) -> bool:
    return set(principal.permissions) <= set(permissions)


def _hash_of(secret: str | None) -> str:
    return tokens.hashed(secret) if secret and len(secret) <= MAX_TOKEN_CHARS else ""


def _as_worker(worker: Worker, token_hash: str) -> Principal:
    return Principal(kind="worker", id=worker.id, name=worker.name, token_hash=token_hash)


def _as_token(token: ApiToken, token_hash: str) -> Principal:
    return Principal(
        kind="token",
        id=token.id,
        name=token.name,
        permissions=token.permissions,
        token_hash=token_hash,
        owner_id=token.owner,
        expires_at=token.expires_at,
    )


def died(attempt: Attempt, now: float) -> bool:
    """Tells whether the attempt's token has expired: some time after the attempt ended as its worker said.

    That time is for repeating the report. An attempt that was lost instead may be found again, and its fence holds as
    long as it is not.
    """
    ended = attempt.ended_at if attempt.outcome in OWN_ENDS else None
    return ended is not None and now > ended + LAST_REPORT_S


class SessionEnded(Unauthenticated):
    """Your session has ended."""

    code = "session_ended"
    next_step = "Log in again."


class NoWorkerToken(Unauthenticated):
    """No worker token was given."""

    next_step = "Send the token of this worker in the header 'X-Worker-Token'."


def bearer(authorization: str | None) -> str | None:
    scheme, _, secret = (authorization or "").partition(" ")
    return secret if scheme.lower() == "bearer" else None


def refuse_misshapen_api_token(secret: str) -> None:
    """Raises InvalidToken for a wrong form.

    Our own form is checked exactly; a token an operator chose only has to be long.
    """
    chosen = len(secret) >= MIN_CHOSEN_TOKEN_CHARS and not secret.startswith(f"{tokens.API}_")
    if not chosen or any(char.isspace() for char in secret):
        refuse_misshapen(secret, tokens.API)
    else:
        refuse_overlong(secret)


def refuse_overlong(secret: str) -> None:
    if len(secret) > MAX_TOKEN_CHARS:
        raise InvalidToken


def refuse_misshapen(secret: str, prefix: str) -> None:
    refuse_overlong(secret)
    why = tokens.complaint(secret, prefix)
    if why:
        raise InvalidToken(f"Invalid token: {why}.")


def failed_proof(ip: str, path: str, error: FleetError, headers: Mapping[str, str]) -> FailedProof:
    """Returns the failure, which tells a token that was cut or mistyped from one that was valid once, or never."""
    secret = headers.get("x-worker-token", "")
    misshapen = bool(secret) and tokens.complaint(secret[:MAX_TOKEN_CHARS], tokens.WORKER) is not None
    known_form = isinstance(error, InvalidToken) and bool(secret) and not misshapen
    return FailedProof(
        ip=ip,
        path=path,
        why=error.detail,
        code="token_misshapen" if isinstance(error, InvalidToken) and misshapen else error.code,
        token_hash=tokens.hashed(secret) if known_form else "",
    )


same = hmac.compare_digest
"""Tells whether what is stored and what was given are equal, in a time that does not tell how far they are."""


def check_permission(principal: Principal, permission: str) -> None:
    if not principal.can(permission):
        raise Forbidden(permission)
