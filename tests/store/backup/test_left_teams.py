"""A restore gives nobody back the place in a team that was taken from them since, nor a way in."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from simpletuner_fleet.core.people.own_roles import ROLE_PREFIX, OwnRole
from simpletuner_fleet.core.people.revocations import Withdrawn
from simpletuner_fleet.core.people.sign_in.providers import Provider
from simpletuner_fleet.core.people.sign_in.stored import PROVIDER_PREFIX, StoredProvider
from simpletuner_fleet.core.people.teams import TEAM_PREFIX, Membership, Team, TeamRole
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.store.backup import postgres_copy, sqlite_copy
from simpletuner_fleet.store.postgres import PostgresStore
from simpletuner_fleet.store.sqlite import SqliteStore

WITHDRAWN = Withdrawn(
    members={"tm_1": {"u_left": "", "u_lowered": "viewer", "u_joined_later": "lead"}, "tm_3": {"u_1": ""}},
    teams=frozenset({"tm_2"}),
    own_roles={"narrowed": '{"name":"narrowed","permissions":["jobs.read"],"all_jobs":false}', "gone": ""},
    providers={"changed": False, "gone": True},
)


def fill(tx: Tx) -> None:
    people = {"u_stays": TeamRole.MEMBER, "u_left": TeamRole.LEAD, "u_lowered": TeamRole.LEAD}
    members = {user: Membership(role, 5.0) for user, role in people.items()}
    for name in ("narrowed", "gone", "kept"):
        role = OwnRole(name=name, permissions=("jobs.read", "admin.audit"))
        tx.put_setting(ROLE_PREFIX + name, msgspec.json.encode(role).decode())
    for name in ("changed", "gone", "kept"):
        corp = Provider(id=name, title=name, issuer=f"https://{name}", client_id="x")
        row = StoredProvider(provider=corp, sealed_secret="sealed", enabled=True)
        tx.put_setting(PROVIDER_PREFIX + name, msgspec.json.encode(row).decode())
    for team_id in ("tm_1", "tm_2"):
        team = Team(id=team_id, name=team_id, created_at=1.0, members=members, weight=3.0)
        tx.put_setting(TEAM_PREFIX + team_id, msgspec.json.encode(team).decode())


def teams_in(settings: list[tuple[Any, ...]]) -> list[Team]:
    own = [msgspec.json.decode(text, type=OwnRole) for key, text in settings if key.startswith(ROLE_PREFIX)]
    assert {role.name: role.permissions for role in own} == {
        "narrowed": ("jobs.read",),
        "kept": ("jobs.read", "admin.audit"),
    }
    providers = [
        msgspec.json.decode(text, type=StoredProvider)
        for key, text in settings
        if key.startswith(PROVIDER_PREFIX)
    ]
    assert {one.provider.id: (one.enabled, one.sealed_secret) for one in providers} == {
        "changed": (False, "sealed"),
        "kept": (True, "sealed"),
    }
    return [msgspec.json.decode(text, type=Team) for key, text in settings if key.startswith(TEAM_PREFIX)]


async def restored_sqlite(folder: Path) -> list[Team]:
    store = SqliteStore(folder / "fleet.db")
    await store.write(fill)
    await store.close()
    out = folder / "out"
    out.mkdir()
    sqlite_copy.copy_out(folder / "fleet.db", out, "1.2.3", 1000.0)
    sqlite_copy.put_back(out, folder / "fleet.db", WITHDRAWN, "one_time_key:", 2000.0, "{}", replace=True)
    with closing(sqlite3.connect(folder / "fleet.db")) as connection:
        return teams_in(connection.execute("SELECT key, value FROM settings").fetchall())


async def restored_postgres(folder: Path, url: str) -> list[Team]:
    store = PostgresStore(url)
    await store.write(fill)
    await store.close()
    manifest = postgres_copy.copy_out(url, folder, "1.2.3", 1000.0)
    postgres_copy.put_back(folder, url, manifest, WITHDRAWN, "one_time_key:", 2000.0, "{}", replace=True)
    with psycopg.connect(url) as connection:
        return teams_in(connection.execute(b"SELECT key, value FROM settings").fetchall())


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_who_left_stays_out_and_a_team_that_is_gone_stays_gone(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "postgres":
        url = request.getfixturevalue("postgres_database")
        (team,) = await restored_postgres(tmp_path, url)
    else:
        (team,) = await restored_sqlite(tmp_path)
    assert (team.id, team.weight) == ("tm_1", 3.0)
    assert team.members == {
        "u_stays": Membership(TeamRole.MEMBER, 5.0),
        "u_lowered": Membership(TeamRole.VIEWER, 5.0),
    }


async def test_a_backup_is_put_back_though_a_team_and_a_provider_in_it_cannot_be_read(tmp_path: Path) -> None:
    broken = {
        TEAM_PREFIX + "tm_1": "cut",
        PROVIDER_PREFIX + "changed": "cut",
        PROVIDER_PREFIX + "gone": "cut",
    }
    store = SqliteStore(tmp_path / "fleet.db")
    for key, text in broken.items():
        await store.write(partial(_put, key=key, text=text))
    await store.close()
    out = tmp_path / "out"
    out.mkdir()
    sqlite_copy.copy_out(tmp_path / "fleet.db", out, "1.2.3", 1000.0)
    sqlite_copy.put_back(out, tmp_path / "fleet.db", WITHDRAWN, "one_time_key:", 2000.0, "{}", replace=True)
    with closing(sqlite3.connect(tmp_path / "fleet.db")) as connection:
        settings = dict(connection.execute("SELECT key, value FROM settings"))
    assert {key: settings.get(key) for key in broken} == {**broken, PROVIDER_PREFIX + "gone": None}


def _put(tx: Tx, key: str, text: str) -> None:
    tx.put_setting(key, text)
