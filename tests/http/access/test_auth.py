"""Permissions, and a cache that forgets at once."""

import asyncio

import pytest

from simpletuner_fleet.core.errors import InvalidToken, StoreUnavailable, Unauthenticated
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.http.access.auth import Authenticator, Principal
from simpletuner_fleet.http.access.credential_cache import CachedCredentials
from tests.http.edge_kit import ADMIN, CHOSEN, EXPIRED, UPLOAD_TOKEN, WORKER_TOKEN, MemoryCredentials


def test_an_empty_permission_set_allows_nothing() -> None:
    nobody = Principal(kind="token", id="t_1", name="nobody")
    assert not any(nobody.can(asked) for asked in ("admin.workers", "", "*", "jobs.read"))


async def test_a_token_is_good_until_the_moment_it_expires() -> None:
    credentials = MemoryCredentials()
    before = Authenticator(credentials, lambda: 0.999)
    after = Authenticator(credentials, lambda: 1.0)
    headers = {"authorization": f"Bearer {EXPIRED}"}
    assert (await before.user(headers)).id == "t_expired"
    with pytest.raises(InvalidToken, match="expired"):
        await after.user(headers)


async def test_a_chosen_token_is_taken_whatever_its_form_if_it_is_long() -> None:
    authenticator = Authenticator(MemoryCredentials(), lambda: 2.0)
    assert (await authenticator.user({"x-api-key": CHOSEN})).name == "chosen"
    for bad, words in [
        (CHOSEN[:20], "begins with 'st_'"),
        (CHOSEN + " x", "whitespace"),
        (ADMIN[:-1], "cut or mistyped"),
        ("y" * 600, "Invalid token"),
    ]:
        with pytest.raises(InvalidToken, match=words):
            await authenticator.user({"x-api-key": bad})
    with pytest.raises(Unauthenticated):
        await authenticator.user({"authorization": "Bearer"})


async def test_remembered_credentials_are_looked_up_once_and_forgotten_at_once() -> None:
    source = MemoryCredentials()
    cached = CachedCredentials(source)
    authenticator = Authenticator(cached, lambda: 2.0)
    headers = {"x-worker-token": WORKER_TOKEN}
    for _ in range(5):
        await authenticator.worker(headers)
    assert source.lookups == 1
    source.workers.clear()
    cached.forget(tokens.hashed(WORKER_TOKEN))
    with pytest.raises(InvalidToken):
        await authenticator.worker(headers)
    for _ in range(3):
        await authenticator.user({"x-api-key": ADMIN})
    source.api_tokens.clear()
    cached.forget_all()
    with pytest.raises(InvalidToken):
        await authenticator.user({"x-api-key": ADMIN})


class SlowCredentials(MemoryCredentials):
    """Answers only when told to, with what was true when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def worker(self, token_hash: str) -> Worker | None:
        worker = await super().worker(token_hash)
        await self.go.wait()
        return worker


async def test_a_look_up_that_a_rotation_overtook_is_not_remembered() -> None:
    source = SlowCredentials()
    cached = CachedCredentials(source)
    token_hash = tokens.hashed(WORKER_TOKEN)
    under_way = asyncio.create_task(cached.worker(token_hash))
    for _ in range(3):
        await asyncio.sleep(0)
    source.workers.clear()
    cached.forget(token_hash)
    source.go.set()
    assert await under_way is not None
    assert await cached.worker(token_hash) is None


async def test_the_memory_of_credentials_is_bounded() -> None:
    source = MemoryCredentials()
    cached = CachedCredentials(source, max_entries=2)
    for token_hash in list(source.api_tokens):
        await cached.api_token(token_hash)
    before = source.lookups
    await cached.api_token(list(source.api_tokens)[-1])
    assert source.lookups == before
    await cached.api_token(next(iter(source.api_tokens)))
    assert source.lookups == before + 1


async def test_the_use_of_a_token_is_noted_once_an_hour_however_often_it_is_used() -> None:
    source, clock = MemoryCredentials(), {"now": 1000.0}
    remembered = CachedCredentials(source)
    authenticator = Authenticator(remembered, lambda: clock["now"])
    headers = {"authorization": f"Bearer {ADMIN}"}
    for clock["now"] in (1000.0, 1001.0, 4599.0, 4600.0, 4601.0):
        await authenticator.user(headers)
    assert source.noted == [(tokens.hashed(ADMIN), 1000.0), (tokens.hashed(ADMIN), 4600.0)]
    assert source.lookups == 1


async def test_a_token_goes_on_while_the_store_cannot_note_its_use() -> None:
    class FullDisk(MemoryCredentials):
        async def note_token_use(self, token_hash: str, now: float) -> None:
            self.noted.append((token_hash, now))
            raise StoreUnavailable

    source = FullDisk()
    authenticator = Authenticator(CachedCredentials(source), lambda: 1000.0)
    for _ in range(3):
        assert (await authenticator.user({"authorization": f"Bearer {ADMIN}"})).id == "t_admin"
    assert len(source.noted) == 1, "not with every request"


async def test_attempts_are_never_remembered() -> None:
    source = MemoryCredentials()
    cached = CachedCredentials(source)
    token_hash = tokens.hashed(UPLOAD_TOKEN)
    assert await cached.attempt(token_hash) is not None
    source.attempts.clear()
    assert await cached.attempt(token_hash) is None
