"""Who calls: credentials to principals, and what a principal may do."""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core import tokens
from simpletuner_fleet.core.accounts import Session, User
from simpletuner_fleet.core.errors import (
    FleetError,
    Forbidden,
    InvalidToken,
    StoreUnavailable,
    Unauthenticated,
)
from simpletuner_fleet.core.job import Attempt
from simpletuner_fleet.core.worker import Worker
from simpletuner_fleet.orchestrator.people import only_own, role_permissions
from simpletuner_fleet.ports import ApiToken

MIN_CHOSEN_TOKEN_CHARS = 32
MAX_TOKEN_CHARS = 512
CACHE_SIZE = 20_000


class Principal(Struct, frozen=True, kw_only=True):
    """Who calls. `id` is `t_…`, `u_…`, `w_…`, `a_…` or `local`; an empty permission set allows nothing."""

    kind: Literal["token", "user", "worker", "upload", "loopback", "anonymous"]
    id: str
    name: str
    permissions: tuple[str, ...] = ()
    token_hash: str = ""
    only_own: bool = False
    """Cancels and retries their own jobs alone."""
    language: str = ""
    """As the user chose it; empty: as the browser says."""
    attempt: Attempt | None = None
    """Of kind `upload` alone: the one attempt this credential may write to."""

    def can(self, permission: str) -> bool:
        if permission in self.permissions or "*" in self.permissions:
            return True
        return any(allows(held, permission) for held in self.permissions)


ANONYMOUS = Principal(kind="anonymous", id="anonymous", name="anonymous")
LOCAL_ADMIN = Principal(kind="loopback", id="local", name="local admin", permissions=("*",))


def allows(held: str, asked: str) -> bool:
    """Exact, `*`, or a whole leading part: `admin.*` holds `admin.workers`, not `admin` nor `administrator.x`."""
    return held in (asked, "*") or (held.endswith(".*") and len(held) > 2 and asked.startswith(held[:-1]))


class SignedIn(Struct, frozen=True):
    session: Session
    user: User


class CredentialSource(Protocol):
    """Looks credentials up by the SHA-256 of the secret. Every answer must be true at the moment it is given."""

    async def api_token(self, token_hash: str) -> ApiToken | None: ...
    async def worker(self, token_hash: str) -> Worker | None: ...
    async def attempt(self, token_hash: str) -> Attempt | None: ...
    async def session(self, token_hash: str) -> SignedIn | None: ...
    async def renew_session(self, token_hash: str, now: float) -> None: ...
    async def note_token_use(self, token_hash: str, now: float) -> None: ...


class FailedProof(Struct, frozen=True, kw_only=True):
    """Somebody did not prove that they are a worker."""

    ip: str
    path: str
    why: str
    code: str
    token_hash: str = ""
    """Of a token that has the right form; nobody has it now."""


WorkerAuthFailure = Callable[[FailedProof], Awaitable[None]]


class CachedCredentials:
    """Remembers API tokens, workers and sessions until told to forget. Attempts change too often to be remembered.

    Whoever rotates, revokes or deletes calls `forget` right after the commit and before answering. A look-up that was
    under way meanwhile is not remembered: it may have seen the old row.
    """

    def __init__(self, source: CredentialSource, max_entries: int = CACHE_SIZE) -> None:
        self._source = source
        self._max = max_entries
        self._forgotten = 0
        self._api_tokens: dict[str, ApiToken] = {}
        self._workers: dict[str, Worker] = {}
        self._sessions: dict[str, SignedIn] = {}

    def known_api_token(self, token_hash: str) -> ApiToken | None:
        return self._api_tokens.get(token_hash)

    def known_worker(self, token_hash: str) -> Worker | None:
        return self._workers.get(token_hash)

    def forget(self, token_hash: str) -> None:
        self._forgotten += 1
        self._api_tokens.pop(token_hash, None)
        self._workers.pop(token_hash, None)
        self._sessions.pop(token_hash, None)

    def forget_all(self) -> None:
        self._forgotten += 1
        self._api_tokens.clear()
        self._workers.clear()
        self._sessions.clear()

    async def api_token(self, token_hash: str) -> ApiToken | None:
        remembered = self._api_tokens.get(token_hash)
        if remembered:
            return remembered
        generation = self._forgotten
        token = await self._source.api_token(token_hash)
        if token and generation == self._forgotten:
            self._make_room(self._api_tokens)
            self._api_tokens[token_hash] = token
        return token

    async def worker(self, token_hash: str) -> Worker | None:
        remembered = self._workers.get(token_hash)
        if remembered:
            return remembered
        generation = self._forgotten
        worker = await self._source.worker(token_hash)
        if worker and generation == self._forgotten:
            self._make_room(self._workers)
            self._workers[token_hash] = worker
        return worker

    async def attempt(self, token_hash: str) -> Attempt | None:
        return await self._source.attempt(token_hash)

    async def session(self, token_hash: str) -> SignedIn | None:
        remembered = self._sessions.get(token_hash)
        if remembered:
            return remembered
        generation = self._forgotten
        session = await self._source.session(token_hash)
        if session and generation == self._forgotten:
            self._make_room(self._sessions)
            self._sessions[token_hash] = session
        return session

    async def renew_session(self, token_hash: str, now: float) -> None:
        await self._source.renew_session(token_hash, now)
        self.forget(token_hash)

    async def note_token_use(self, token_hash: str, now: float) -> None:
        """Remembered first: of many requests at once one writes, and a store that cannot is not asked again and again."""
        token = self._api_tokens.get(token_hash)
        if token:
            self._api_tokens[token_hash] = replace(token, last_used_at=now)
        await self._source.note_token_use(token_hash, now)

    def _make_room(self, entries: dict[str, ApiToken] | dict[str, Worker] | dict[str, SignedIn]) -> None:
        if len(entries) >= self._max:
            del entries[next(iter(entries))]


def nothing_known(token_hash: str) -> None:
    return None


class Authenticator:
    """Turns the headers of a request into a principal, or raises what is wrong with them.

    A secret whose hash is remembered has the right form, or it would not have been let in: its form is not looked at
    again, which costs more than all the rest.
    """

    def __init__(self, credentials: CredentialSource, now: Callable[[], float]) -> None:
        self._credentials = credentials
        self._now = now
        self._known_worker: Callable[[str], Worker | None] = nothing_known
        self._known_api_token: Callable[[str], ApiToken | None] = nothing_known
        if isinstance(credentials, CachedCredentials):
            self._known_worker = credentials.known_worker
            self._known_api_token = credentials.known_api_token

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
        return Principal(
            kind="token", id=token.id, name=token.name, permissions=token.permissions, token_hash=token_hash
        )

    async def session(self, secret: str) -> Principal:
        if len(secret) > MAX_TOKEN_CHARS or tokens.complaint(secret, tokens.SESSION):
            raise SessionEnded
        token_hash, now = tokens.hashed(secret), self._now()
        signed_in = await self._credentials.session(token_hash)
        if signed_in is None or not same(signed_in.session.token_hash, token_hash):
            raise SessionEnded
        if not signed_in.session.good_at(now) or signed_in.user.disabled_at is not None:
            raise SessionEnded
        if signed_in.session.wants_renewal(now):
            with suppress(StoreUnavailable):
                await self._credentials.renew_session(token_hash, now)
        user = signed_in.user
        return Principal(
            kind="user",
            id=user.id,
            name=user.name,
            permissions=role_permissions(user.role),
            token_hash=token_hash,
            only_own=only_own(user.role),
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
        return Principal(kind="worker", id=worker.id, name=worker.name, token_hash=token_hash)

    async def uploader(self, headers: Mapping[str, str]) -> Principal:
        secret = headers.get("x-upload-token")
        if not secret:
            return await self.worker(headers)
        refuse_misshapen(secret, tokens.UPLOAD)
        token_hash = tokens.hashed(secret)
        attempt = await self._credentials.attempt(token_hash)
        if attempt is None or not same(attempt.upload_token_hash, token_hash):
            raise InvalidToken
        return Principal(
            kind="upload", id=attempt.id, name=attempt.worker_name, token_hash=token_hash, attempt=attempt
        )


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
    """Our own form is checked to the letter; a token that an operator chose needs only to be long."""
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
    """Tells a token that was cut or mistyped from one that was good once, or never."""
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


def same(stored: str, given: str) -> bool:
    return hmac.compare_digest(stored, given)


def check_permission(principal: Principal, permission: str) -> None:
    if not principal.can(permission):
        raise Forbidden(permission)
