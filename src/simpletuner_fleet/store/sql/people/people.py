"""Stores configs, API tokens and settings in any SQL database, and reads remembered answers from it."""

from typing import Any

from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.ports import ApiToken, ConcurrentChange, ConfigVersion, IdempotentAnswer
from simpletuner_fleet.store.rows.codec import json_list, strings
from simpletuner_fleet.store.rows.text import storable
from simpletuner_fleet.store.sql import statements as sql
from simpletuner_fleet.store.sql.database import Database, Params, Row
from simpletuner_fleet.store.sql.jobs import NOTHING


class PeopleView:
    _db: Database

    def config(self, name: str, version: int | None = None) -> ConfigVersion | None:
        if version is None:
            row = self._db.row(sql.NEWEST_CONFIG, {"name": name})
        else:
            row = self._db.row(sql.CONFIG, {"name": name, "version": version})
        return None if row is None else _config_of(row)

    def configs(self) -> list[ConfigVersion]:
        # Sorted here, since each database has its own idea of the alphabet.
        return sorted(map(_config_of, self._db.rows(sql.CONFIGS, NOTHING)), key=lambda config: config.name)

    def config_versions(self, name: str) -> list[ConfigVersion]:
        return [_config_of(row) for row in self._db.rows(sql.CONFIG_VERSIONS, {"name": name})]

    def api_token(self, token_id: str) -> ApiToken | None:
        return self._token(sql.API_TOKEN, {"id": token_id})

    def api_token_by_hash(self, token_hash: str) -> ApiToken | None:
        return self._token(sql.API_TOKEN_BY_HASH, {"token_hash": token_hash})

    def _token(self, statement: str, params: Params) -> ApiToken | None:
        row = self._db.row(statement, params)
        return None if row is None else _token_of(row)

    def api_tokens(self) -> list[ApiToken]:
        return [_token_of(row) for row in self._db.rows(sql.API_TOKENS, NOTHING)]

    def api_tokens_of(self, owner: str, name: str | None = None) -> list[ApiToken]:
        if name is None:
            rows = self._db.rows(sql.API_TOKENS_OF, {"owner": owner})
        else:
            rows = self._db.rows(sql.API_TOKENS_OF_NAME, {"owner": owner, "name": storable(name)})
        return [_token_of(row) for row in rows]

    def idempotent_answer(self, key: str, owner: str) -> IdempotentAnswer | None:
        row = self._db.row(sql.ANSWER, {"key": key, "owner": owner})
        if row is None:
            return None
        return IdempotentAnswer(key=row[0], owner=row[1], request_hash=row[2], job_id=row[3], at=row[4])

    def setting(self, key: str) -> str | None:
        row = self._db.row(sql.SETTING, {"key": key})
        return None if row is None else row[0]

    def settings_with_prefix(self, prefix: str) -> dict[str, str]:
        settings = self._db.rows(sql.SETTINGS_WITH_PREFIX, {"prefix": prefix, "length": len(prefix)})
        return {row[0]: row[1] for row in sorted(settings, key=lambda row: row[0])}


class PeopleTx(PeopleView):
    def add_config(self, config: ConfigVersion) -> None:
        params = {
            "name": storable(config.name),
            "version": config.version,
            "bundle": config.bundle,
            "created_at": config.created_at,
            "created_by": storable(config.created_by),
            "owner": config.owner,
            "team": config.team,
            "visibility": config.visibility.value,
        }
        if not self._db.run(sql.ADD_CONFIG, params):
            raise ConcurrentChange(f"config '{config.name}' has a version {config.version} already")

    def delete_config(self, name: str, at: float) -> None:
        self._db.run(sql.DELETE_CONFIG, {"name": name, "at": at})

    def add_api_token(self, token: ApiToken) -> None:
        if not self._db.run(sql.ADD_API_TOKEN, _token_params(token)):
            raise ConcurrentChange(f"there is an API token {token.id} or one with its secret already")

    def save_api_token(self, token: ApiToken) -> None:
        if not self._db.run(sql.SAVE_API_TOKEN, _token_params(token)):
            raise ConcurrentChange(f"there is no API token {token.id}")

    def note_token_use(self, token_hash: str, at: float) -> None:
        self._db.run(sql.NOTE_TOKEN_USE, {"token_hash": token_hash, "at": at})

    def put_setting(self, key: str, value: str) -> None:
        self._db.run(sql.PUT_SETTING, {"key": key, "value": storable(value)})

    def delete_setting(self, key: str) -> None:
        self._db.run(sql.DELETE_SETTING, {"key": key})


def _config_of(row: Row) -> ConfigVersion:
    return ConfigVersion(
        name=row[0],
        version=row[1],
        bundle=bytes(row[2]),
        created_at=row[3],
        created_by=row[4],
        owner=row[5],
        team=row[6],
        visibility=Visibility(row[7]),
    )


def _token_params(token: ApiToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": storable(token.name),
        "token_hash": token.token_hash,
        "permissions": json_list(token.permissions),
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "last_used_at": token.last_used_at,
        "owner": token.owner,
    }


def _token_of(row: Row) -> ApiToken:
    return ApiToken(
        id=row[0],
        name=row[1],
        token_hash=row[2],
        permissions=strings(row[3]),
        created_at=row[4],
        expires_at=row[5],
        revoked_at=row[6],
        last_used_at=row[7],
        owner=row[8],
    )
