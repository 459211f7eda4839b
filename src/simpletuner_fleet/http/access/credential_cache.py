"""Looks up credentials by the hash of their secret, and caches them."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.people.accounts import Session, User
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.ports import ApiToken

CACHE_SIZE = 20_000


class SignedIn(Struct, frozen=True):
    session: Session
    user: User
    permissions: tuple[str, ...]
    """What the user may do now."""
    only_own: bool = True
    """Steers their own jobs alone."""


class CredentialSource(Protocol):
    """Looks credentials up by the SHA-256 of the secret. Every answer must be true at the moment it is given."""

    async def api_token(self, token_hash: str) -> ApiToken | None: ...
    async def worker(self, token_hash: str) -> Worker | None: ...
    async def attempt(self, token_hash: str) -> Attempt | None: ...
    async def session(self, token_hash: str) -> SignedIn | None: ...
    async def renew_session(self, token_hash: str, now: float) -> None: ...
    async def note_token_use(self, token_hash: str, now: float) -> None: ...


class CachedCredentials:
    """Caches API tokens, workers and sessions until told to forget them. Attempts change too often to be cached.

    Whoever rotates, revokes or deletes calls `forget` right after the commit and before answering. A look-up that was
    under way meanwhile is not cached: it may have seen the old row.
    """

    def __init__(self, source: CredentialSource, max_entries: int = CACHE_SIZE) -> None:
        self._source = source
        self._max = max_entries
        self._forgotten = 0
        self._api_tokens: dict[str, ApiToken] = {}
        self._workers: dict[str, Worker] = {}
        self._sessions: dict[str, SignedIn] = {}
        self.known_api_token: Callable[[str], ApiToken | None] = self._api_tokens.get
        """Returns what is cached by the hash; the dictionaries are emptied and never replaced."""
        self.worker_in_memory: Callable[[str], Worker | None] = self._workers.get

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
        """Notes the use in the cache first, and then in the store.

        Of many requests at once only one writes, and a failing store is not asked each time.
        """
        token = self._api_tokens.get(token_hash)
        if token:
            self._api_tokens[token_hash] = replace(token, last_used_at=now)
        await self._source.note_token_use(token_hash, now)

    def _make_room(self, entries: dict[str, ApiToken] | dict[str, Worker] | dict[str, SignedIn]) -> None:
        if len(entries) >= self._max:
            del entries[next(iter(entries))]
