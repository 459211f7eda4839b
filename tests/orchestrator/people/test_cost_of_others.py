"""What a change of one user, their role, team or token reads does not grow with all the others and their tokens.

Rows are counted, not seconds, so that the figure is the same on every machine.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devtools.fuzz.in_process_server import InProcessServer
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.scim.filters import OF_GROUPS, read_filter
from simpletuner_fleet.core.people.scim.resources import ScimKind, ScimSource
from simpletuner_fleet.core.people.sign_in.ci import CiAdmission, CiIssuer, CiRule
from simpletuner_fleet.core.people.sign_in.providers import RoleRules
from simpletuner_fleet.orchestrator.scim import groups, users
from simpletuner_fleet.orchestrator.scim.entries import page_of
from simpletuner_fleet.orchestrator.sign_in.exchanging import exchange
from simpletuner_fleet.orchestrator.sign_in.following import IdentitySource
from simpletuner_fleet.ports import ScimEntry, Tx
from simpletuner_fleet.store.sql.database import Params, Row
from simpletuner_fleet.store.sql.people.scim import ScimRows
from simpletuner_fleet.store.sqlite import SqliteSession
from simpletuner_fleet.web.pages.people.tokens import TokenRow
from tests.store.samples import token, user

BY = Actor("t_1", "scim")
SOURCE = IdentitySource(
    id="corp",
    issuer="https://id",
    roles=RoleRules(member=("ml",)),
    new_users=True,
    scim=ScimSource(provider="corp"),
)
RULE = CiRule(claims={"sub": "repo"}, user="ci", permissions=("jobs.read",))
CI = CiIssuer(id="ci", issuer="https://ci", audience="fleet", rules=(RULE,))
READ = re.compile(r"FROM (users|api_tokens)\b")
FEW, MANY = 3, 60


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many rows of users and tokens were read, by any connection."""
    seen: Counter[str] = Counter()
    rows, row = SqliteSession.rows, SqliteSession.row

    def noted_rows(self: SqliteSession, sql: str, params: Params) -> list[Row]:
        read = rows(self, sql, params)
        seen.update({table: len(read) for table in READ.findall(sql)})
        return read

    def noted_row(self: SqliteSession, sql: str, params: Params) -> Row | None:
        read = row(self, sql, params)
        seen.update(READ.findall(sql))
        return read

    monkeypatch.setattr(SqliteSession, "rows", noted_rows)
    monkeypatch.setattr(SqliteSession, "row", noted_row)
    return seen


async def _with_others(server: InProcessServer, others: int) -> None:
    def step(tx: Tx) -> None:
        for number in range(100, 100 + others):
            tx.add_user(user(number, role="viewer"))
            tx.add_api_token(token(number, owner=f"u_{number}"))
            tx.add_api_token(token(number + 1_000, owner="u_ci", name=f"ci of another {number}"))

    await server.fleet.store.write(step)


async def _read_by_each(folder: Path, others: int, rows_read: Counter[str]) -> dict[str, dict[str, int]]:
    server = await InProcessServer(folder, 1).open()
    try:
        await server.store.write(lambda tx: tx.add_user(user(1, id="u_ci", name="ci")))
        bob = await server.good(
            "POST", "/api/admin/users", {"name": "bob", "role": "viewer", "password": "correct horse battery"}
        )
        boss = await server.good(
            "POST",
            "/api/admin/users",
            {"name": "boss", "role": "admin", "password": "correct horse battery"},
        )
        await server.good(
            "POST",
            "/api/admin/users",
            {"name": "chief", "role": "admin", "password": "correct horse battery"},
        )
        made = (await users.create(server.fleet, SOURCE, {"userName": "a", "externalId": "s"}, BY)).resource
        team = await server.good("POST", "/api/teams", {"name": "lab"})
        await server.good("PUT", "/api/admin/roles/helper", {"permissions": ["jobs.read"]})
        await server.good("PATCH", f"/api/admin/users/{bob['id']}", {"role": "helper"})
        await server.store.write(
            lambda tx: tx.add_api_token(token(7, owner=bob["id"], token_hash=tokens.hashed("st_x")))
        )
        await _with_others(server, others)
        seen: dict[str, dict[str, int]] = {}

        async def count(what: str, act: Callable[[], Awaitable[Any]]) -> None:
            rows_read.clear()
            await act()
            seen[what] = dict(rows_read)

        admission = CiAdmission(rule=RULE, token_name="ci ci: repo")
        members = [{"value": made.id}]
        group = {"displayName": "ml", "members": members}
        await count("exchange", lambda: exchange(server.fleet, CI, admission, "10.0.0.1"))
        await count("scim", lambda: groups.create(server.fleet, SOURCE, group, BY))
        await count(
            "own role",
            lambda: server.good("PUT", "/api/admin/roles/helper", {"permissions": ["configs.read"]}),
        )
        await count("team", lambda: server.good("PATCH", f"/api/teams/{team['id']}", {"name": "labs"}))
        member = f"/api/teams/{team['id']}/members/{bob['id']}"
        await count("member", lambda: server.good("PUT", member, {"role": "lead"}))
        await count("no team", lambda: server.good("DELETE", f"/api/teams/{team['id']}"))
        for what, whose, change in (
            ("role", bob["id"], {"role": "member"}),
            ("admin no more", boss["id"], {"role": "member"}),
            ("disabled", bob["id"], {"disabled": True}),
        ):
            await count(what, partial(server.good, "PATCH", f"/api/admin/users/{whose}", change))
        secret = {"value": "x", "users": ["bob"]}
        await count("secret", lambda: server.good("PUT", "/api/secrets/hf", secret))
        await count("page", lambda: server.good("GET", "/api/admin/users?limit=2"))
        return seen
    finally:
        await server.close()


async def test_a_change_reads_only_those_whom_it_concerns(tmp_path: Path, rows_read: Counter[str]) -> None:
    few = await _read_by_each(tmp_path / "few", FEW, rows_read)
    many = await _read_by_each(tmp_path / "many", MANY, rows_read)
    assert many == few
    assert all(sum(read.values()) < 15 for read in few.values()), few


async def test_a_secret_for_many_tokens_by_name_reads_all_tokens_once(
    tmp_path: Path, rows_read: Counter[str]
) -> None:
    server = await InProcessServer(tmp_path / "server", 1).open()
    try:
        await _with_others(server, MANY)
        rows_read.clear()
        names = [f"ci of another {number}" for number in range(100, 100 + MANY)]
        saved = await server.good("PUT", "/api/secrets/hf", {"value": "x", "users": names})
        assert len(saved["users"]) == MANY
        assert rows_read["api_tokens"] < 5 * MANY
    finally:
        await server.close()


async def test_a_filter_by_groups_reads_the_groups_once_for_each_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await InProcessServer(tmp_path / "server", 1).open()
    read = Counter[str]()
    entry = ScimRows.scim_entry

    def counted(self: ScimRows, kind: ScimKind, entry_id: str) -> ScimEntry | None:
        read["entries"] += 1
        return entry(self, kind, entry_id)

    try:
        known = (await users.create(server.fleet, SOURCE, {"userName": "a", "externalId": "s"}, BY)).resource
        members = [{"value": known.id}]
        for number in range(MANY):
            group = {"displayName": f"group {number}", "members": members}
            await groups.create(server.fleet, SOURCE, group, BY)
        term = f'members eq "{known.id}"'
        terms = read_filter(f'{term} and {term} and displayName eq "group 7"', OF_GROUPS)
        monkeypatch.setattr(ScimRows, "scim_entry", counted)
        page = await server.fleet.read(lambda view: page_of(view, ScimKind.GROUP, terms, 0, 10))
        assert (page.total, [one.name for one in page.entries]) == (1, ["group 7"])
        assert read["entries"] == 2 * MANY
    finally:
        await server.close()


async def test_a_page_of_tokens_compares_no_two_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten thousand tokens each with each, that would hold up everybody for many seconds."""
    server = await InProcessServer(tmp_path / "server", 1).open()
    compared = Counter[str]()

    def same(one: TokenRow, other: object) -> bool:
        compared["times"] += 1
        return one is other

    monkeypatch.setattr(TokenRow, "__eq__", same)
    try:
        await _with_others(server, FEW)
        await server.store.write(
            lambda tx: tx.add_api_token(token(1, name="token-that-is-over", revoked_at=1.0))
        )
        answer = await server.ask("GET", "/admin/tokens", None, server.admin)
        assert answer.status == 200
        assert b"token-that-is-over" in answer.body
        assert not compared
    finally:
        await server.close()
