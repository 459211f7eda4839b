"""Serves `simpletuner login`: a terminal asks, a person allows it in a browser, and it gets a token of theirs."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from simpletuner_fleet.core.errors import Forbidden
from simpletuner_fleet.core.events import ORCHESTRATOR, Actor
from simpletuner_fleet.core.people.permissions import EVERYTHING
from simpletuner_fleet.core.people.sign_in.loopback import Loopback
from simpletuner_fleet.http.access.limits import address_key
from simpletuner_fleet.http.api.admin.logins import NotAUser
from simpletuner_fleet.http.api.admin.sessions import require_fresh_login
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import ANY_USER, KIB, PUBLIC, Call, Route
from simpletuner_fleet.orchestrator.people import accounts, api_tokens
from simpletuner_fleet.orchestrator.people.api_tokens import CreateToken
from simpletuner_fleet.orchestrator.sign_in.terminals import LIFE_S, POLL_S, WaitingTerminal, lost

TAGS = ("account",)
MAX_BODY_BYTES = 4 * KIB
TOKEN_LIFE_S = 90 * 86_400.0
TERMINALS = "/api/login/terminals"
Short = Annotated[str, Meta(max_length=256)]


class AskBody(Struct, kw_only=True, forbid_unknown_fields=True):
    name: Short = ""
    """What the terminal's machine is called."""
    loopback: Loopback | None = None
    """Given by a terminal whose browser runs on the same machine and can lead back to it."""


class AskedView(Struct, kw_only=True):
    code: str
    """What the person compares."""
    secret: str
    """With this the terminal asks for its token; empty where the browser brings it a code instead."""
    page: str
    """Where the person goes."""
    expires_in_s: float
    poll_s: float


class ClaimBody(Struct, kw_only=True, forbid_unknown_fields=True):
    secret: Short


class ClaimView(Struct, kw_only=True):
    token: str | None
    """Null: nobody has answered yet."""
    name: str | None
    """Who let it in."""


class CodeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    code: Short
    """What the browser brought."""
    verifier: Short


class GivenView(Struct, kw_only=True):
    token: str
    name: str
    """Who let it in."""


class AnsweredView(Struct, kw_only=True):
    next: str
    """Where the browser goes on."""


class AnswerBody(Struct, kw_only=True, forbid_unknown_fields=True):
    code: Short
    allow: bool


async def ask(call: Call[AskBody]) -> AskedView:
    deps = deps_of(call)
    deps.sign_in_rate.spend(address_key(call.ip))
    body = call.body
    terminal, secret = deps.sign_in.terminals.ask(body.name, call.ip, address_key(call.ip), body.loopback)
    page = f"{deps.base_url(call).rstrip('/')}/login/terminal?code={terminal.code}"
    return AskedView(code=terminal.code, secret=secret, page=page, expires_in_s=LIFE_S, poll_s=POLL_S)


async def answer(call: Call[AnswerBody]) -> AnsweredView:
    """Takes a person's answer. A token may not give it: it must not make further tokens of its user."""
    deps, caller = deps_of(call), call.principal
    if caller.kind != "user":
        raise NotAUser
    require_fresh_login(call)
    deps.sign_in_rate.spend(caller.id)
    return AnsweredView(next=deps.sign_in.terminals.answer(call.body.code, caller.id, allow=call.body.allow))


async def claim(call: Call[ClaimBody]) -> ClaimView:
    deps = deps_of(call)
    deps.sign_in_rate.spend(f"claim {address_key(call.ip)}")
    terminal = deps.sign_in.terminals.claimed(call.body.secret)
    if not terminal.granted_to:
        return ClaimView(token=None, name=None)
    if terminal.token and await _is_in_use(call, terminal):
        await _take_back(call, terminal)
        raise lost()
    given = await _given(call, terminal)
    return ClaimView(token=given.token, name=given.name)


async def exchange(call: Call[CodeBody]) -> GivenView:
    deps = deps_of(call)
    deps.sign_in_rate.spend(f"claim {address_key(call.ip)}")
    terminals = deps.sign_in.terminals
    replayed = terminals.replayed(call.body.code)
    if replayed is not None:
        await _take_back(call, replayed)
        raise lost()
    return await _given(call, terminals.exchanged(call.body.code, call.body.verifier))


async def _is_in_use(call: Call[Any], terminal: WaitingTerminal) -> bool:
    """Tells whether the token is used already: then whoever asks again is not the one who has it."""
    token = await deps_of(call).fleet.read_now(lambda view: view.api_token(terminal.token_id))
    return token is None or token.last_used_at is not None


async def _take_back(call: Call[Any], terminal: WaitingTerminal) -> None:
    """Revokes the token that a code gave when the code comes a second time (RFC 6749, 4.1.2).

    Nobody knows which of the two callers was meant.
    """
    deps = deps_of(call)
    async with deps.sign_in.terminals.giving:
        terminal.is_refused = True
        if terminal.token_id:
            actor = Actor(ORCHESTRATOR.id, ORCHESTRATOR.name, call.ip)
            token = await api_tokens.revoke_token(deps.fleet, terminal.token_id, actor, why="replayed")
            deps.revoke([token.token_hash])


async def _given(call: Call[Any], terminal: WaitingTerminal) -> GivenView:
    """Returns a token of the user who let the terminal in; it is made once."""
    deps = deps_of(call)
    user = await deps.fleet.read(lambda view: accounts.existing_user(view, terminal.granted_to))
    if user.disabled_at is not None:
        raise Forbidden(EVERYTHING)
    async with deps.sign_in.terminals.giving:
        if terminal.is_refused:
            raise lost()
        if not terminal.token:
            # It may do what its user may, at every moment: a token is never more than whom it acts for.
            wanted = CreateToken(
                name=f"login on {terminal.name}", permissions=[EVERYTHING], expires_in_s=TOKEN_LIFE_S
            )
            actor = Actor(user.id, user.name, call.ip)
            made, terminal.token = await api_tokens.create_token(deps.fleet, wanted, actor, user.id)
            terminal.token_id = made.id
    return GivenView(token=terminal.token, name=user.name)


ROUTES = [
    Route(
        "POST",
        TERMINALS,
        ask,
        PUBLIC,
        AskBody,
        AskedView,
        "A terminal asks a person to let it in",
        max_body_bytes=MAX_BODY_BYTES,
        tags=TAGS,
    ),
    Route(
        "POST",
        f"{TERMINALS}/answer",
        answer,
        ANY_USER,
        AnswerBody,
        AnsweredView,
        "Let a terminal in, or refuse it",
        max_body_bytes=MAX_BODY_BYTES,
        tags=TAGS,
    ),
    Route(
        "POST",
        f"{TERMINALS}/claim",
        claim,
        PUBLIC,
        ClaimBody,
        ClaimView,
        "A terminal asks whether it was let in; the answer may be asked for again until its token is used",
        max_body_bytes=MAX_BODY_BYTES,
        tags=TAGS,
    ),
    Route(
        "POST",
        f"{TERMINALS}/exchange",
        exchange,
        PUBLIC,
        CodeBody,
        GivenView,
        "A terminal exchanges the code that the browser brought, once",
        max_body_bytes=MAX_BODY_BYTES,
        tags=TAGS,
    ),
]
