"""Stores users and their sessions in any SQL database."""

from typing import Any

from simpletuner_fleet.core.errors import NameTaken
from simpletuner_fleet.core.people.accounts import Session, User
from simpletuner_fleet.ports import ConcurrentChange
from simpletuner_fleet.store.failures import Duplicate
from simpletuner_fleet.store.rows.text import name_key, storable
from simpletuner_fleet.store.sql import statements as sql
from simpletuner_fleet.store.sql.database import Database, Params, Row
from simpletuner_fleet.store.sql.jobs import NOTHING


class AccountsView:
    _db: Database

    def user(self, user_id: str) -> User | None:
        return self._user(sql.USER, {"id": user_id})

    def user_by_name(self, name: str) -> User | None:
        return self._user(sql.USER_BY_NAME, {"name_key": name_key(name)})

    def user_by_subject(self, issuer: str, subject: str) -> User | None:
        return self._user(sql.USER_BY_SUBJECT, {"issuer": storable(issuer), "subject": storable(subject)})

    def _user(self, statement: str, params: Params) -> User | None:
        row = self._db.row(statement, params)
        return None if row is None else _user_of(row)

    def users(self) -> list[User]:
        return [_user_of(row) for row in self._db.rows(sql.USERS, NOTHING)]

    def users_page(self, after: tuple[float, str] | None, limit: int) -> list[User]:
        if after is None:
            rows = self._db.rows(sql.USERS_START, {"limit": limit})
        else:
            place = {"created_at": float(after[0]), "id": after[1]}
            rows = self._db.rows(sql.USERS_AFTER, {**place, "limit": limit})
        return [_user_of(row) for row in rows]

    def session(self, token_hash: str) -> Session | None:
        row = self._db.row(sql.SESSION, {"token_hash": token_hash})
        return None if row is None else _session_of(row)

    def sessions_of_user(self, user_id: str) -> list[Session]:
        return [_session_of(row) for row in self._db.rows(sql.SESSIONS_OF_USER, {"user_id": user_id})]

    def sessions_of_issuer(self, issuer: str) -> list[Session]:
        return [_session_of(row) for row in self._db.rows(sql.SESSIONS_OF_ISSUER, {"issuer": issuer})]

    def sessions_by_sid(self, issuer: str, sid: str) -> list[Session]:
        asked = {"issuer": storable(issuer), "sid": storable(sid)}
        return [_session_of(row) for row in self._db.rows(sql.SESSIONS_BY_SID, asked)]


class AccountsTx(AccountsView):
    def add_user(self, user: User) -> None:
        if self._db.run(sql.ADD_USER, _user_params(user)):
            return
        if self.user(user.id) is None:
            raise user_name_taken(user)
        raise ConcurrentChange(f"there is a user {user.id} already")

    def save_user(self, user: User) -> None:
        try:
            saved = self._db.run(sql.SAVE_USER, _user_params(user))
        except Duplicate:
            raise user_name_taken(user) from None
        if not saved:
            raise ConcurrentChange(f"there is no user {user.id}")

    def add_session(self, session: Session) -> None:
        params = {
            "token_hash": session.token_hash,
            "user_id": session.user_id,
            "created_at": float(session.created_at),
            "seen_at": float(session.seen_at),
            "ip": storable(session.ip),
            "issuer": storable(session.issuer),
            "sid": storable(session.sid),
            "id_token": session.id_token,
        }
        if not self._db.run(sql.ADD_SESSION, params):
            raise ConcurrentChange("there is a session with this secret already")

    def renew_session(self, token_hash: str, at: float) -> None:
        self._db.run(sql.RENEW_SESSION, {"token_hash": token_hash, "at": float(at)})

    def delete_session(self, token_hash: str) -> None:
        self._db.run(sql.DELETE_SESSION, {"token_hash": token_hash})

    def delete_sessions_before(self, created_before: float, seen_before: float) -> None:
        self._db.run(
            sql.DELETE_SESSIONS_BEFORE,
            {"created_before": float(created_before), "seen_before": float(seen_before)},
        )


def user_name_taken(user: User) -> NameTaken:
    return NameTaken(f"The name '{user.name}' is already taken.", next_step="Choose another name.")


def _user_params(user: User) -> dict[str, Any]:
    return {
        "id": user.id,
        "name": storable(user.name),
        "name_key": name_key(user.name),
        "role": str(user.role),
        "created_at": float(user.created_at),
        "password_hash": user.password_hash,
        "language": storable(user.language),
        "disabled_at": user.disabled_at,
        "last_login_at": user.last_login_at,
        "issuer": storable(user.issuer),
        "subject": storable(user.subject),
        "shut_out": int(user.shut_out),
    }


def _user_of(row: Row) -> User:
    return User(
        id=row[0],
        name=row[1],
        role=row[2],
        created_at=row[3],
        password_hash=row[4],
        language=row[5],
        disabled_at=row[6],
        last_login_at=row[7],
        issuer=row[8],
        subject=row[9],
        shut_out=bool(row[10]),
    )


def _session_of(row: Row) -> Session:
    return Session(
        token_hash=row[0],
        user_id=row[1],
        created_at=row[2],
        seen_at=row[3],
        ip=row[4],
        issuer=row[5],
        sid=row[6],
        id_token=row[7],
    )
