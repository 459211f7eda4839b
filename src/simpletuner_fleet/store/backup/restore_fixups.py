"""Changes a restored database before anybody uses it, so that nothing outdated becomes valid again."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from simpletuner_fleet.core.people.own_roles import ROLE_PREFIX
from simpletuner_fleet.core.people.revocations import Withdrawn
from simpletuner_fleet.core.people.sign_in.stored import PROVIDER_PREFIX, StoredProvider
from simpletuner_fleet.core.people.teams import TEAM_PREFIX, Membership, Team, TeamRole
from simpletuner_fleet.core.restoring import HANDS_OFF, LEAP, RESTORED, least_epoch

UNUSABLE = "restored:"
"""Begins what stands in place of a hash: no secret has it."""

Run = Callable[[str, Mapping[str, Any]], Iterable[tuple[Any, ...]]]


def apply_fixups(run: Run, withdrawn: Withdrawn, link_prefix: str, now: float, note: str) -> None:
    """Runs statements that both databases understand, in the caller's transaction."""
    run(
        "UPDATE counters SET epoch = CASE WHEN epoch + :leap > :least THEN epoch + :leap ELSE :least END",
        {"least": least_epoch(now), "leap": LEAP},
    )
    # Which agent was the newest then says nothing about now: one that was started since must not be sent away.
    run("UPDATE workers SET incarnation = ''", {})
    run("DELETE FROM sessions", {})
    run(
        "DELETE FROM settings WHERE substr(key, 1, :chars) = :prefix",
        {"chars": len(link_prefix), "prefix": link_prefix},
    )
    if withdrawn.everything:
        run("UPDATE api_tokens SET revoked_at = :now WHERE revoked_at IS NULL", {"now": now})
        run("UPDATE users SET password_hash = ''", {})
        run("UPDATE workers SET token_hash = :begin || id", {"begin": f"{UNUSABLE}{secrets.token_hex(16)}:"})
    for token_id in withdrawn.tokens:
        run(
            "UPDATE api_tokens SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL",
            {"now": now, "id": token_id},
        )
    _fix_people(run, withdrawn, now)
    for worker_id in withdrawn.workers:
        run(
            "UPDATE workers SET token_hash = :hash WHERE id = :id",
            {"hash": f"{UNUSABLE}{secrets.token_hex(16)}", "id": worker_id},
        )
    _fix_providers(run, withdrawn)
    for team_id in withdrawn.teams:
        run("DELETE FROM settings WHERE key = :key", {"key": TEAM_PREFIX + team_id})
    for team_id, since in withdrawn.members.items():
        _fix_team(run, TEAM_PREFIX + team_id, since)
    for key, value in ((RESTORED, note), (HANDS_OFF, repr(now))):
        _put_setting(run, key, value)


def _fix_people(run: Run, withdrawn: Withdrawn, now: float) -> None:
    for user_id in withdrawn.passwords:
        run("UPDATE users SET password_hash = '' WHERE id = :id", {"id": user_id})
    for user_id in withdrawn.disabled:
        run(
            "UPDATE users SET disabled_at = :now WHERE id = :id AND disabled_at IS NULL",
            {"now": now, "id": user_id},
        )
    for user_id, role in withdrawn.roles.items():
        run("UPDATE users SET role = :role WHERE id = :id", {"role": role, "id": user_id})
    for name, document in withdrawn.own_roles.items():
        _put_setting(run, ROLE_PREFIX + name, document)


def _fix_providers(run: Run, withdrawn: Withdrawn) -> None:
    """Switches off providers that were changed since the backup, until somebody has checked them.

    The change may have been what kept somebody out, so nobody logs in with them before that.
    """
    rows = run(
        "SELECT key, value FROM settings WHERE substr(key, 1, :chars) = :prefix",
        {"chars": len(PROVIDER_PREFIX), "prefix": PROVIDER_PREFIX},
    )
    for key, document in list(rows):
        gone = withdrawn.providers.get(key.removeprefix(PROVIDER_PREFIX))
        if gone:
            _put_setting(run, key, "")
            continue
        try:
            row = msgspec.json.decode(document, type=StoredProvider)
        except (ValueError, TypeError, RecursionError):
            continue  # nobody logs in with one that cannot be read
        if withdrawn.everything or gone is not None:
            _put_setting(run, key, msgspec.json.encode(replace(row, enabled=False)).decode())


def _put_setting(run: Run, key: str, document: str) -> None:
    run("DELETE FROM settings WHERE key = :key", {"key": key})
    if document:
        run("INSERT INTO settings (key, value) VALUES (:key, :value)", {"key": key, "value": document})


def _fix_team(run: Run, key: str, since: Mapping[str, str]) -> None:
    """Brings the members of a team up to date as far as the backup has them.

    Who joined after the backup is not in it; who has left, or has another role by now, stays as they are now.
    """
    for (document,) in list(run("SELECT value FROM settings WHERE key = :key", {"key": key})):
        try:
            team = msgspec.json.decode(document, type=Team)
        except (ValueError, TypeError, RecursionError):
            continue  # nobody belongs to one that cannot be read
        members = {
            user_id: Membership(TeamRole(since.get(user_id, membership.role)), membership.since)
            for user_id, membership in team.members.items()
            if since.get(user_id, membership.role)
        }
        fixed = msgspec.json.encode(replace(team, members=members)).decode()
        run("UPDATE settings SET value = :value WHERE key = :key", {"value": fixed, "key": key})
