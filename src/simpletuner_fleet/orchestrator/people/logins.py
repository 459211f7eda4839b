"""Logs users in and out, by a password or by a link that works once."""

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import LinkUsed, NotFound, UsersExist, WrongCurrentPassword, WrongPassword
from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.people import accounts, tokens
from simpletuner_fleet.core.people.accounts import (
    SESSION_IDLE_S,
    SESSION_LIFE_S,
    OneTimeKey,
    Role,
    Session,
    User,
)
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.people.accounts import (
    add_user,
    any_user,
    drop_keys,
    end_sessions,
    existing_user,
    good_key,
    user_event,
)
from simpletuner_fleet.orchestrator.people.passwords import Passwords
from simpletuner_fleet.ports import View

NOBODY = Actor("anonymous", "anonymous")
UNKNOWN = "unknown"
SESSION_ID_CHARS = 16


class LoggedIn(Struct, frozen=True, kw_only=True):
    user: User
    secret: str
    """It goes into the cookie and is nowhere else."""
    ended: list[str] = []


class Vouched(Struct, frozen=True, kw_only=True):
    """Names the provider through which somebody logged in, and the provider's id of the session."""

    provider: str
    issuer: str
    sid: str = ""
    id_token: str = ""


class StartKey(Struct, frozen=True, kw_only=True):
    key: OneTimeKey
    user: User | None


async def log_in(
    fleet: Fleet, passwords: Passwords, name: str, password: str, ip: str, before: str | None = None
) -> LoggedIn:
    """Logs a user in by a password.

    It ends the session that the same browser had `before`, whoever it belonged to: its cookie is gone after this.
    """
    user = await fleet.read(lambda view: view.user_by_name(name))
    known = user.password_hash if user and user.can_log_in else ""
    if not await passwords.fits(password, known) or user is None:
        raise WrongPassword
    fresh = await passwords.hashed(password) if passwords.outdated(known) else known
    secret = fleet.ids.token(tokens.SESSION)

    def step(transaction: Transaction) -> LoggedIn:
        current_user = existing_user(transaction.tx, user.id)
        if not current_user.can_log_in or current_user.password_hash != known:
            raise WrongPassword
        ended = leave(transaction, before, ip)
        entered = enter(transaction, replace(current_user, password_hash=fresh), secret, ip)
        return LoggedIn(user=entered, secret=secret, ended=ended)

    return await fleet.act(step)


async def note_failure(fleet: Fleet, name: str, ip: str) -> None:
    """Records a failed log-in, but not an unknown name: people type passwords into the wrong field."""

    def step(transaction: Transaction) -> None:
        user = transaction.tx.user_by_name(name)
        actor = replace(NOBODY, ip=ip)
        about = {"name": user.name} if user else {}
        transaction.record(
            user_event(EventType.USER_LOGIN_FAILED, user.id if user else UNKNOWN, actor, **about)
        )

    await fleet.act(step)


async def log_out(fleet: Fleet, user_id: str, token_hash: str, actor: Actor, everywhere: bool) -> list[str]:
    """Logs a user out; returns the hashes of the sessions that ended."""

    def step(transaction: Transaction) -> list[str]:
        ended = end_sessions(transaction, user_id) if everywhere else [token_hash]
        transaction.tx.delete_session(token_hash)
        transaction.record(user_event(EventType.USER_LOGOUT, user_id, actor, everywhere=everywhere))
        return ended

    return await fleet.act(step)


def session_id(session: Session) -> str:
    """Returns an id by which a user names their own session, but which does not open it."""
    return session.token_hash[:SESSION_ID_CHARS]


async def sessions_of(fleet: Fleet, user_id: str) -> list[Session]:
    """Returns the user's valid sessions, the last seen first."""
    now = fleet.clock.now()
    sessions = await fleet.read(lambda view: view.sessions_of_user(user_id))
    return sorted((one for one in sessions if one.good_at(now)), key=lambda one: one.seen_at, reverse=True)


async def end_session(fleet: Fleet, user_id: str, wanted: str, actor: Actor) -> str:
    """Ends one of the user's own sessions, and returns its hash."""

    def step(transaction: Transaction) -> str:
        for session in transaction.tx.sessions_of_user(user_id):
            if session_id(session) == wanted:
                transaction.tx.delete_session(session.token_hash)
                transaction.record(user_event(EventType.USER_LOGOUT, user_id, actor, session=wanted))
                return session.token_hash
        raise NotFound("This session no longer exists.")

    return await fleet.act(step)


async def start_key(fleet: Fleet, secret: str) -> StartKey:
    """Says what a link is for. Looking does not use it up: previews of links look, too."""

    def look(view: View) -> StartKey:
        key = good_key(view, secret, fleet.clock.now())
        user = view.user(key.user_id) if key and key.user_id else None
        if key is None or (key.user_id and user is None):
            raise LinkUsed
        return StartKey(key=key, user=user)

    return await fleet.read(look)


async def start(
    fleet: Fleet,
    passwords: Passwords,
    secret: str,
    *,
    name: str,
    password: str,
    language: str,
    ip: str,
    before: str | None = None,
) -> LoggedIn:
    """Uses the link up: makes the first admin, or sets the password of the user it was made for.

    It ends the session that the same browser had `before`.
    """
    link = await start_key(fleet, secret)
    name = link.user.name if link.user else accounts.checked_name(name)
    language = accounts.checked_language(language)
    hashed = await passwords.hashed(accounts.checked_password(password, name))
    session = fleet.ids.token(tokens.SESSION)

    def step(transaction: Transaction) -> LoggedIn:
        key = good_key(transaction.tx, secret, transaction.now)
        if key is None:
            raise LinkUsed
        drop_keys(transaction, key.user_id)
        if key.user_id is None:
            user, ended = _first_admin(transaction, name, hashed, language, ip), list[str]()
        else:
            user, ended = _new_password(transaction, existing_user(transaction.tx, key.user_id), hashed, ip)
            user = replace(user, language=language or user.language)
        ended += leave(transaction, before, ip)
        return LoggedIn(user=enter(transaction, user, session, ip), secret=session, ended=ended)

    return await fleet.act(step)


async def change_password(
    fleet: Fleet, passwords: Passwords, user_id: str, current: str, new_password: str, ip: str
) -> LoggedIn:
    """Changes the password, ends every session and begins a new one."""
    user = await fleet.read(lambda view: existing_user(view, user_id))
    accounts.checked_password(new_password, user.name)
    if not await passwords.fits(current, user.password_hash):
        raise WrongCurrentPassword
    hashed = await passwords.hashed(new_password)
    secret = fleet.ids.token(tokens.SESSION)

    def step(transaction: Transaction) -> LoggedIn:
        current_user = existing_user(transaction.tx, user_id)
        if current_user.password_hash != user.password_hash:
            raise WrongCurrentPassword
        after, ended = _new_password(transaction, current_user, hashed, ip)
        return LoggedIn(user=enter(transaction, after, secret, ip), secret=secret, ended=ended)

    return await fleet.act(step)


def _first_admin(transaction: Transaction, name: str, password_hash: str, language: str, ip: str) -> User:
    if any_user(transaction.tx):
        raise UsersExist
    return add_user(
        transaction, None, name=name, role=Role.ADMIN, language=language, password_hash=password_hash, ip=ip
    )


def _new_password(
    transaction: Transaction, user: User, password_hash: str, ip: str
) -> tuple[User, list[str]]:
    if user.disabled_at is not None:
        raise LinkUsed
    drop_keys(transaction, user.id)
    transaction.record(user_event(EventType.USER_PASSWORD_SET, user.id, Actor(user.id, user.name, ip)))
    return replace(user, password_hash=password_hash), end_sessions(transaction, user.id)


def leave(transaction: Transaction, secret: str | None, ip: str) -> list[str]:
    """Ends the session of this secret, if there is one, and returns the hashes of what ended."""
    session = transaction.tx.session(tokens.hashed(secret)) if secret else None
    if session is None:
        return []
    transaction.tx.delete_session(session.token_hash)
    actor = Actor(session.user_id, session.user_id, ip)
    transaction.record(user_event(EventType.USER_LOGOUT, session.user_id, actor, session=session_id(session)))
    return [session.token_hash]


def enter(transaction: Transaction, user: User, secret: str, ip: str, vouched: Vouched | None = None) -> User:
    transaction.tx.delete_sessions_before(transaction.now - SESSION_LIFE_S, transaction.now - SESSION_IDLE_S)
    after = replace(user, last_login_at=transaction.now)
    transaction.tx.save_user(after)
    transaction.tx.add_session(
        Session(
            token_hash=tokens.hashed(secret),
            user_id=user.id,
            created_at=transaction.now,
            seen_at=transaction.now,
            ip=ip,
            issuer=vouched.issuer if vouched else "",
            sid=vouched.sid if vouched else "",
            id_token=vouched.id_token if vouched else "",
        )
    )
    by = {"provider": vouched.provider} if vouched else {}
    transaction.record(
        user_event(EventType.USER_LOGIN, user.id, Actor(user.id, user.name, ip), name=user.name, **by)
    )
    return after
