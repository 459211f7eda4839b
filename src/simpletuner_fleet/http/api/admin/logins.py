"""Logs users in and out, by a password or a one-time link, and tells callers who they are."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import FreeText
from simpletuner_fleet.core.errors import Conflict, Invalid, ProviderUnusable, WrongPassword
from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.core.people.accounts import MAX_NAME_CHARS, User, checked_language, plain_name
from simpletuner_fleet.engine.memory.owners import permissions_of
from simpletuner_fleet.http.access.sessions import no_session_cookie, session_cookie, session_secret
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.sign_in.providers import arrive_by, logout_address
from simpletuner_fleet.http.edge.routes import ANY_USER, KIB, PUBLIC, Call, Reply, Route, rfc3339
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator.people import accounts, logins
from simpletuner_fleet.orchestrator.people.logins import LoggedIn

TAGS = ("account",)
MAX_BODY_BYTES = 8 * KIB


class MeView(Struct, kw_only=True):
    id: str
    name: str
    kind: str
    permissions: list[str]
    role: str | None = None
    """The user's role; an API token has none."""
    language: str = ""
    """Empty: as the browser says."""


class LoginBody(Struct, kw_only=True, forbid_unknown_fields=True):
    name: FreeText
    password: FreeText


class LogoutBody(Struct, kw_only=True, forbid_unknown_fields=True):
    everywhere: bool = False


class LogoutView(Done, kw_only=True):
    next: str
    """Where the browser goes now: the log-in page, or the provider's own log-out."""


class StartLinkQuery(Struct, kw_only=True):
    k: str


class StartView(Struct, kw_only=True):
    purpose: str
    """`first_admin` or `choose_password`."""
    name: str | None
    """Whose password it sets."""
    expires_at: str | None


class StartBody(Struct, kw_only=True, forbid_unknown_fields=True):
    k: FreeText
    password: FreeText
    name: FreeText = ""
    """The name of the first admin; a link for a known user needs none."""
    language: FreeText = ""


class MeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Describes a change of the caller's own account. What is left out stays as it is."""

    language: FreeText | UnsetType = UNSET
    password: FreeText | UnsetType = UNSET
    current_password: FreeText | UnsetType = UNSET


class NotAUser(Conflict):
    """Only users have a language and a password."""

    code = "not_a_user"


async def login(call: Call[LoginBody]) -> Reply:
    deps, name = deps_of(call), plain_name(call.body.name)[: MAX_NAME_CHARS + 1]
    deps.login_door.knock(call.ip, name)
    try:
        login = await logins.log_in(
            deps.fleet, deps.passwords, name, call.body.password, call.ip, _session_before(call)
        )
    except WrongPassword:
        by_directory = await _by_directory(call, name)
        if by_directory is None:
            if not deps.login_door.noted.take(""):
                await logins.note_failure(deps.fleet, name, call.ip)
            raise
        login = by_directory
    deps.login_door.welcome(call.ip, name)
    return _welcome(call, login)


async def _by_directory(call: Call[LoginBody], name: str) -> LoggedIn | None:
    """Logs in through the directories of the settings. A local user's password is never sent to them."""
    deps = deps_of(call)
    directories = deps.sign_in.directories
    if not directories:
        return None
    user = await deps.fleet.read(lambda view: view.user_by_name(name))
    if user and not user.issuer:
        return None
    trouble: ProviderUnusable | None = None
    for directory in directories:
        try:
            person = await directory.person(name, call.body.password)
        except WrongPassword:
            continue
        except ProviderUnusable as error:
            trouble = error
            continue
        return await arrive_by(call, deps.sign_in.identity_source(directory.settings), person)
    if trouble:
        raise trouble
    return None


async def logout(call: Call[LogoutBody | None]) -> Reply:
    """Logs a user out. It does nothing for an API token, which has nothing to log out of."""
    caller, deps = call.principal, deps_of(call)
    following = ""
    if caller.kind == "user":
        everywhere = call.body is not None and call.body.everywhere
        session = await deps.fleet.read_now(lambda view: view.session(caller.token_hash))
        deps.revoke(await logins.log_out(deps.fleet, caller.id, caller.token_hash, call.actor, everywhere))
        following = await logout_address(call, session)
    view = LogoutView(id=caller.id, next=following or "/login")
    return Reply(body=view, cookies=(no_session_cookie(call.secure),))


async def look_at_start(call: Call[None]) -> StartView:
    start_key = await logins.start_key(deps_of(call).fleet, call.query.k)
    return StartView(
        purpose="choose_password" if start_key.user else "first_admin",
        name=start_key.user.name if start_key.user else None,
        expires_at=rfc3339(start_key.key.expires_at),
    )


async def start(call: Call[StartBody]) -> Reply:
    deps, body = deps_of(call), call.body
    login = await logins.start(
        deps.fleet,
        deps.passwords,
        body.k,
        name=body.name,
        password=body.password,
        language=body.language,
        ip=call.ip,
        before=_session_before(call),
    )
    return _welcome(call, login)


async def me(call: Call[Any]) -> MeView:
    caller = call.principal
    if caller.kind == "user":
        return me_view(
            call, await deps_of(call).fleet.read_now(lambda view: accounts.existing_user(view, caller.id))
        )
    return MeView(id=caller.id, name=caller.name, kind=caller.kind, permissions=list(caller.permissions))


async def change_me(call: Call[MeBody]) -> MeView | Reply:
    deps, caller, body = deps_of(call), call.principal, call.body
    if body == MeBody():
        return await me(call)
    if caller.kind != "user":
        raise NotAUser
    if body.language is not UNSET:
        checked_language(body.language)
    login = None if body.password is UNSET else await _new_password(call, body.password)
    if body.language is not UNSET:
        await accounts.set_language(deps.fleet, caller.id, body.language)
        deps.credentials.forget_all()
    return _welcome(call, login, await me(call)) if login else await me(call)


async def _new_password(call: Call[MeBody], wanted: str) -> LoggedIn:
    deps, caller = deps_of(call), call.principal
    if call.body.current_password is UNSET:
        raise Invalid(N_("Setting a new password requires the current one."), path="$.current_password")
    deps.login_door.knock(call.ip, caller.name)
    login = await logins.change_password(
        deps.fleet, deps.passwords, caller.id, call.body.current_password, wanted, call.ip
    )
    deps.login_door.welcome(call.ip, caller.name)
    return login


def me_view(call: Call[Any], user: User) -> MeView:
    return MeView(
        id=user.id,
        name=user.name,
        kind="user",
        permissions=list(permissions_of(user, deps_of(call).fleet.organisation)),
        role=user.role,
        language=user.language,
    )


def _session_before(call: Call[Any]) -> str | None:
    return session_secret(call.headers.get("cookie"), call.secure)


def _welcome(call: Call[Any], done: LoggedIn, who: MeView | None = None) -> Reply:
    deps_of(call).revoke(done.ended)
    return Reply(body=who or me_view(call, done.user), cookies=(session_cookie(done.secret, call.secure),))


_OPEN = Route("POST", "", login, PUBLIC, answer=MeView, tags=TAGS, max_body_bytes=MAX_BODY_BYTES)
ROUTES = [
    replace(_OPEN, path="/api/login", body=LoginBody, summary="Log in with a name and a password"),
    Route(
        "POST",
        "/api/logout",
        logout,
        ANY_USER,
        LogoutBody,
        LogoutView,
        "Log out, here or everywhere",
        body_required=False,
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/start",
        look_at_start,
        PUBLIC,
        answer=StartView,
        summary="What a one-time link is good for; looking does not use it up",
        query=StartLinkQuery,
        tags=TAGS,
    ),
    replace(
        _OPEN,
        path="/api/start",
        handler=start,
        body=StartBody,
        summary="Use a one-time link: make the first admin, or choose a password",
    ),
    Route("GET", "/api/me", me, ANY_USER, answer=MeView, summary="Who the caller is", tags=TAGS),
    Route(
        "PATCH",
        "/api/me",
        change_me,
        ANY_USER,
        MeBody,
        MeView,
        "Change one's own language or password; a new password ends every other session",
        max_body_bytes=MAX_BODY_BYTES,
        tags=TAGS,
    ),
]
