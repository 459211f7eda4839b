"""Shows Administration → API tokens: credentials for programs. A token is shown once, when it is made."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.orchestrator.people.api_tokens import ADMIN_ID
from simpletuner_fleet.ports import ApiToken
from simpletuner_fleet.web.frame.page import page, with_query
from simpletuner_fleet.web.parts.permission_names import GROUPS, PRESETS

PAGE_SIZE = 100
DAY_S = 86_400
SOON_S = 7 * DAY_S
GOOD = ("active", "ending")
LIVES = (7 * DAY_S, 30 * DAY_S, 90 * DAY_S, 365 * DAY_S)
USUAL_LIFE_S = 90 * DAY_S


class TokensQuery(Struct, kw_only=True):
    page: Annotated[int, Meta(ge=1, le=10_000)] = 1


class TokenRow(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    permissions: tuple[str, ...]
    state: Literal["active", "ending", "expired", "revoked"]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None
    is_first: bool
    """The admin's own token, which the server keeps in a file."""


async def tokens(call: Call[None]) -> Reply:
    deps, query = deps_of(call), call.query
    now = deps.fleet.clock.now()
    all_tokens = await deps.fleet.read(lambda view: view.api_tokens())
    rows = [token_row(token, now) for token in reversed(all_tokens)]
    good = [row for row in rows if row.state in GOOD]
    first = (query.page - 1) * PAGE_SIZE
    return page(
        call,
        "access/tokens.html",
        rows=good[first : first + PAGE_SIZE],
        over=[row for row in rows if row.state not in GOOD][:PAGE_SIZE],
        before=with_query("/admin/tokens", page=query.page - 1) if query.page > 1 else None,
        after=with_query("/admin/tokens", page=query.page + 1) if len(good) > first + PAGE_SIZE else None,
        groups=[
            (title, [one for one in group if call.principal.can(one[0])])
            for title, group in GROUPS
            if any(call.principal.can(name) for name, _ in group)
        ],
        presets=[(title, " ".join(names)) for title, names in PRESETS if all(map(call.principal.can, names))],
        lives=[life // DAY_S for life in LIVES],
        usual_life=USUAL_LIFE_S // DAY_S,
        day_s=DAY_S,
        server_url=deps.base_url(call),
    )


def token_row(token: ApiToken, now: float) -> TokenRow:
    return TokenRow(
        id=token.id,
        name=token.name,
        permissions=token.permissions,
        state=_state(token, now),
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        last_used_at=token.last_used_at,
        is_first=token.id == ADMIN_ID,
    )


def _state(token: ApiToken, now: float) -> Literal["active", "ending", "expired", "revoked"]:
    if token.revoked_at is not None:
        return "revoked"
    if token.expires_at is None:
        return "active"
    if token.expires_at <= now:
        return "expired"
    return "ending" if token.expires_at <= now + SOON_S else "active"


ROUTES = (Route("GET", "/admin/tokens", tokens, "admin.tokens", summary="API tokens", query=TokensQuery),)
