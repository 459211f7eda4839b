"""What was taken away is gone, also where the commit was not answered or the disk took no note of it."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from devtools.fuzz.in_process_server import Headers, InProcessServer, request_bytes
from devtools.fuzz.line import Line
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.people.revocations import Revocation
from simpletuner_fleet.store.failures import BatchLost
from simpletuner_fleet.store.sqlite import SqliteSession
from tests.http.api_kit import until


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[InProcessServer]:
    server = await InProcessServer(tmp_path / "server", 1).open()
    yield server
    await server.close()


def lose_the_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = SqliteSession.commit

    def stored_and_not_answered(self: SqliteSession) -> None:
        if not self._writes:
            commit(self)
            return
        monkeypatch.setattr(SqliteSession, "commit", commit)
        commit(self)
        raise BatchLost("The connection was lost while committing, so the outcome is unknown.")

    monkeypatch.setattr(SqliteSession, "commit", stored_and_not_answered)


async def own_token(server: InProcessServer, by: Headers, *permissions: str) -> Headers:
    made = await server.good("POST", "/api/me/tokens", {"name": "own", "permissions": list(permissions)}, by)
    return {"authorization": f"Bearer {made['token']}"}


async def id_of(server: InProcessServer, name: str) -> str:
    users = (await server.good("GET", "/api/admin/users"))["users"]
    return next(str(one["id"]) for one in users if one["name"] == name)


async def status(server: InProcessServer, method: str, target: str, by: Headers, **body: object) -> int:
    return (await server.ask(method, target, body or None, by)).status


async def test_a_user_who_was_disabled_by_a_commit_that_was_not_answered(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await server.user("ann", "member")
    token = await own_token(server, session, "jobs.read")
    user = f"/api/admin/users/{await id_of(server, 'ann')}"
    assert [await status(server, "GET", "/api/jobs", by) for by in (session, token)] == [200, 200]
    lose_the_next_answer(monkeypatch)
    assert await status(server, "PATCH", user, server.admin, disabled=True) == 503
    assert (await server.good("PATCH", user, {"disabled": True}))["disabled_at"], "said again, it is so"
    assert [await status(server, "GET", "/api/jobs", by) for by in (session, token)] == [401, 401]


async def test_what_a_commit_that_was_not_answered_has_taken_away_is_noted_for_a_restore(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup from before would give back what the journal does not know of."""
    noted: list[Revocation] = []
    server.fleet.on_revoked = noted.extend
    await server.user("ann", "member")
    ann, bob = await id_of(server, "ann"), await server.user("bob", "member")
    lose_the_next_answer(monkeypatch)
    assert await status(server, "PATCH", f"/api/admin/users/{ann}", server.admin, disabled=True) == 503
    assert await status(server, "POST", "/api/me/tokens", bob, name="own", permissions=["jobs.read"]) == 201
    assert [(one.event, one.id) for one in noted] == [("user.disabled", ann)]


async def test_a_lead_who_was_taken_out_of_the_team_by_a_commit_that_was_not_answered(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = await server.user("ann", "member")
    await server.user("bob", "member")
    await server.good("POST", "/api/teams", {"name": "vision"})
    await server.good("PUT", "/api/teams/vision/members/ann", {"role": "lead"})
    assert "queue.approve" in (await server.good("GET", "/api/whoami", None, lead))["permissions"]
    lose_the_next_answer(monkeypatch)
    assert await status(server, "DELETE", "/api/teams/vision/members/ann", server.admin) == 503
    assert await status(server, "DELETE", "/api/teams/vision/members/ann", server.admin) == 404
    assert await status(server, "GET", "/api/teams/vision", lead) == 404
    assert await status(server, "PUT", "/api/teams/vision/members/bob", lead, role="lead") == 404
    assert "queue.approve" not in (await server.good("GET", "/api/whoami", None, lead))["permissions"]


async def open_stream(server: InProcessServer, target: str, by: Headers) -> Line:
    line, before = Line(server.http_server), len(server.edge._streams)
    await line.send([request_bytes("GET", target, b"", by)])
    await until(lambda: len(server.edge._streams) > before)
    return line


async def test_streams_of_those_who_lost_their_rights_by_a_commit_that_was_not_answered(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = await server.user("ann", "member"), await server.user("bob", "member")
    token = await own_token(server, ann, "jobs.read")
    lines = [await open_stream(server, "/api/events", by) for by in (ann, token, bob, server.admin)]
    user = f"/api/admin/users/{await id_of(server, 'ann')}"
    lose_the_next_answer(monkeypatch)
    assert await status(server, "PATCH", user, server.admin, role="viewer") == 503
    await server.good("POST", "/api/teams", {"name": "vision"})
    await until(lambda: lines[0].transport.closed)
    assert [line.transport.closed for line in lines] == [True, False, False, False]
    lose_the_next_answer(monkeypatch)
    assert await status(server, "PATCH", user, server.admin, disabled=True) == 503
    await server.good("POST", "/api/teams", {"name": "speech"})
    await until(lambda: lines[1].transport.closed)
    assert [line.transport.closed for line in lines] == [True, True, False, False]


async def test_a_worker_whose_token_was_rotated_by_a_commit_that_was_not_answered_hears_no_more_with_the_old_one(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await server.good("POST", "/api/admin/workers", {"name": name}) for name in ("a", "b")]
    lines = [
        await open_stream(server, "/api/workers/stream", {"x-worker-token": str(one["token"])})
        for one in made
    ]
    lose_the_next_answer(monkeypatch)
    rotate = f"/api/admin/workers/{made[0]['worker_id']}/token"
    assert await status(server, "POST", rotate, server.admin) == 503
    await server.good("POST", "/api/teams", {"name": "vision"})
    await until(lambda: lines[0].transport.closed)
    assert not lines[1].transport.closed


async def test_a_user_who_was_disabled_while_the_disk_was_full(server: InProcessServer) -> None:
    """The journal of what was revoked lies beside the database, which may be on another disk."""
    session = await server.user("ann", "member")
    token = await own_token(server, session, "jobs.read")
    user = f"/api/admin/users/{await id_of(server, 'ann')}"
    assert [await status(server, "GET", "/api/jobs", by) for by in (session, token)] == [200, 200]

    def full(taken: Sequence[Revocation]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    server.fleet.on_revoked = full
    assert await status(server, "PATCH", user, server.admin, disabled=True) == 503
    assert [await status(server, "GET", "/api/jobs", by) for by in (session, token)] == [401, 401]


async def test_a_lead_who_was_taken_out_of_the_team_while_nothing_could_be_read(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL is read by a connection of its own, which may be lost by itself."""
    lead = await server.user("ann", "member")
    await server.good("POST", "/api/teams", {"name": "vision"})
    await server.good("PUT", "/api/teams/vision/members/ann", {"role": "lead"})
    assert "queue.approve" in (await server.good("GET", "/api/whoami", None, lead))["permissions"]

    async def lost(look: object) -> None:
        raise StoreUnavailable("The connection was lost.")

    with monkeypatch.context() as away:
        away.setattr(server.fleet.store, "read", lost)
        assert await status(server, "DELETE", "/api/teams/vision/members/ann", server.admin) == 503
    assert "queue.approve" not in (await server.good("GET", "/api/whoami", None, lead))["permissions"]


async def test_a_token_that_is_revoked_while_a_request_with_it_is_on_its_way(server: InProcessServer) -> None:
    """Whoever holds the end of a body back would act with a token that is gone, and make a new one."""
    made = await server.good("POST", "/api/admin/tokens", {"name": "leaked", "permissions": ["admin.tokens"]})
    headers = {"authorization": f"Bearer {made['token']}"}
    body = json.dumps({"name": "next", "permissions": ["admin.tokens"]}).encode()
    request = request_bytes("POST", "/api/admin/tokens", body, headers)
    line = Line(server.http_server)
    await line.send([request[:-1]])
    await until(lambda: line.wants_more)
    await server.good("DELETE", f"/api/admin/tokens/{made['id']}")
    await line.send([request[-1:]])
    assert (await line.answer("POST")).status == 401
    names = [one["name"] for one in (await server.good("GET", "/api/admin/tokens"))["tokens"]]
    assert "next" not in names


async def test_a_token_that_is_revoked_while_a_request_with_it_waits_for_its_turn(
    server: InProcessServer,
) -> None:
    made = await server.good("POST", "/api/admin/tokens", {"name": "leaked", "permissions": ["admin.tokens"]})
    headers, gate = {"authorization": f"Bearer {made['token']}"}, server.edge._gate
    while gate.enter_at_once(made["id"]):
        pass  # its other requests take their time
    asked = server.ask(
        "POST", "/api/admin/tokens", {"name": "next", "permissions": ["admin.tokens"]}, headers
    )
    waiting = asyncio.create_task(asked)
    await until(lambda: gate._waiting)
    await server.good("DELETE", f"/api/admin/tokens/{made['id']}")
    gate.leave(made["id"])
    assert (await waiting).status == 401
