"""Lets administrators manage the providers that people log in with, both those of the file and added ones."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from simpletuner_fleet.core.bounds import Name, Path, Seconds
from simpletuner_fleet.core.errors import Conflict
from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.people.sign_in.providers import Provider, RoleRules, TeamGroups
from simpletuner_fleet.core.people.sign_in.stored import StoredProvider
from simpletuner_fleet.core.people.sign_in.trial import Trial, TrialCheck
from simpletuner_fleet.http.api.admin.accounts import require_role
from simpletuner_fleet.http.api.deps import Deps, deps_of
from simpletuner_fleet.http.edge.routes import KIB, Call, Route, rfc3339
from simpletuner_fleet.http.views.fields import view_of
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator.sign_in import administering
from simpletuner_fleet.orchestrator.sign_in.administering import ProviderChange, existing_provider
from simpletuner_fleet.ports import View

TAGS = ("administration",)
PERMISSION = "admin.users"
PROVIDERS = "/api/admin/sign-in/providers"
MAX_BODY_BYTES = 64 * KIB
Names = Annotated[tuple[Name, ...], Meta(max_length=50)]


class ProviderBody(Struct, kw_only=True, forbid_unknown_fields=True):
    id: Name
    """Small letters, digits and '-'; it stands in the addresses that the provider knows."""
    issuer: Path
    client_id: Name
    client_secret: Path = ""
    """It is never shown again. Empty: a public client, which PKCE alone protects."""
    title: Name = ""
    scopes: Names = ("openid", "profile", "email")
    groups_claim: Name = "groups"
    name_claim: Name = "preferred_username"
    subject_claim: Name = "sub"
    roles: RoleRules
    """Which groups have which role."""
    teams: dict[Name, TeamGroups] = {}
    new_users: bool = True
    leeway_s: Seconds = 60.0
    hosts: Names = ()
    """Further hosts that the server may ask in the provider's name."""
    enabled: bool = False
    """Whether somebody may log in with it: test it first."""


class ProviderChangeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Describes a change of a provider that people log in with. What is left out stays as it is."""

    issuer: Path | UnsetType = UNSET
    client_id: Name | UnsetType = UNSET
    client_secret: Path | UnsetType = UNSET
    title: Name | UnsetType = UNSET
    scopes: Names | UnsetType = UNSET
    groups_claim: Name | UnsetType = UNSET
    name_claim: Name | UnsetType = UNSET
    subject_claim: Name | UnsetType = UNSET
    roles: RoleRules | UnsetType = UNSET
    teams: dict[Name, TeamGroups] | UnsetType = UNSET
    new_users: bool | UnsetType = UNSET
    leeway_s: Seconds | UnsetType = UNSET
    hosts: Names | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class ProviderTrialView(Struct, kw_only=True):
    at: str | None
    state: str
    """`good` only where every check was made and is good; else `bad` or `not_made`."""
    redirect_uri: str
    checks: list[TrialCheck]


class SignInProviderView(Struct, kw_only=True):
    id: str
    title: str
    source: str
    """`file`: it stands in the server's own file; `added`: here."""
    enabled: bool
    problem: str
    """Why nobody can log in with it though it is switched on."""
    issuer: str
    client_id: str
    has_secret: bool
    scopes: list[str]
    groups_claim: str
    name_claim: str
    subject_claim: str
    roles: RoleRules
    teams: dict[str, TeamGroups]
    new_users: bool
    leeway_s: float
    hosts: list[str]
    redirect_uri: str
    """To be registered at the provider."""
    logout_uri: str
    """Where its own log-out leads back to."""
    backchannel_uri: str
    """Where it says that somebody has logged out."""
    sessions: int
    """They end when it is switched off or deleted."""
    created_at: str | None
    changed_at: str | None
    trial: ProviderTrialView | None
    """What came of the last test; null where it was not tested as it is now."""


class SignInProvidersView(Struct):
    providers: list[SignInProviderView]


async def list_providers(call: Call[Any]) -> SignInProvidersView:
    deps = deps_of(call)
    filed, added = deps.sign_in.filed, deps.fleet.organisation.providers

    def count(view: View) -> dict[str, int]:
        issuers = {one.issuer for one in filed} | {one.provider.issuer for one in added}
        return {issuer: len(view.sessions_of_issuer(issuer)) for issuer in issuers}

    sessions = await deps.fleet.read(count)
    rows = [_view(call, one, None, sessions[one.issuer]) for one in filed]
    rows += [_view(call, one.provider, one, sessions[one.provider.issuer]) for one in added]
    return SignInProvidersView(rows)


async def get_provider(call: Call[Any]) -> SignInProviderView:
    wanted = call.path["provider"]
    for one in (await list_providers(call)).providers:
        if one.id == wanted:
            return one
    raise administering.unknown(wanted)


async def add_provider(call: Call[ProviderBody]) -> SignInProviderView:
    require_role(call, Role.ADMIN)  # whom a provider may make of anybody
    deps, asked = deps_of(call), asdict(call.body)
    secret, enabled = asked.pop("client_secret"), asked.pop("enabled")
    provider = Provider(**_plain(asked))
    row = await administering.add_provider(
        deps.fleet, deps.sign_in, provider, secret, call.actor, enabled=enabled
    )
    return _view(call, row.provider, row, 0)


async def change_provider(call: Call[ProviderChangeBody]) -> SignInProviderView:
    require_role(call, Role.ADMIN)  # whom a provider may make of anybody
    deps = deps_of(call)
    given = {name: value for name, value in asdict(call.body).items() if value is not UNSET}
    secret, enabled = given.pop("client_secret", UNSET), given.pop("enabled", UNSET)
    change = ProviderChange(**_plain(given))
    saved = await administering.change_provider(
        deps.fleet, deps.sign_in, call.path["provider"], change, call.actor, secret=secret, enabled=enabled
    )
    deps.revoke(saved.ended)
    return await get_provider(call)


async def delete_provider(call: Call[None]) -> Done:
    require_role(call, Role.ADMIN)  # whom a provider may make of anybody
    deps, wanted = deps_of(call), call.path["provider"]
    deps.revoke(await administering.delete_provider(deps.fleet, deps.sign_in, wanted, call.actor))
    return Done(id=wanted)


async def test_provider(call: Call[Any]) -> ProviderTrialView:
    deps, wanted = deps_of(call), call.path["provider"]
    deps.noted_trials.spend(f"provider {wanted}")
    filed = next((one for one in deps.sign_in.filed if one.id == wanted), None)
    row = None if filed else existing_provider(deps.fleet, wanted)
    provider = deps.sign_in.made_for_test(filed, row)
    if provider is None:
        raise Conflict(
            "The secret of this provider cannot be opened: the server's key for secrets is another one.",
            next_step="Give the provider its secret again.",
        )
    trial = await deps.sign_in.try_out(provider, f"{_base(call)}/login/back/{wanted}")
    await administering.note_trial(deps.fleet, provider.settings, trial, call.actor)
    return _trial_view(trial)


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings as they are stored: without teams and roles that no group is named for."""
    if "hosts" in given:
        given["hosts"] = tuple(one.strip().lower() for one in given["hosts"])
    if "teams" in given:
        given["teams"] = {name: one for name, one in given["teams"].items() if one != TeamGroups()}
    if "roles" in given:
        roles: RoleRules = given["roles"]
        own = {name: groups for name, groups in roles.own.items() if groups}
        given["roles"] = RoleRules(**{**asdict(roles), "own": own})
    return given


def _view(
    call: Call[Any], provider: Provider, row: StoredProvider | None, sessions: int
) -> SignInProviderView:
    deps, base = deps_of(call), _base(call)
    trial = deps.sign_in.trial_of(provider, row)
    return view_of(
        SignInProviderView,
        provider,
        source="added" if row else "file",
        enabled=row.enabled if row else True,
        problem=_problem(deps, row) if row else "",
        has_secret=bool(row.sealed_secret if row else provider.client_secret),
        redirect_uri=f"{base}/login/back/{provider.id}",
        logout_uri=f"{base}/login",
        backchannel_uri=f"{base}/api/login/providers/{provider.id}/logout",
        sessions=sessions,
        created_at=rfc3339(row.created_at) if row else None,
        changed_at=rfc3339(row.changed_at) if row else None,
        trial=_trial_view(trial) if trial else None,
    )


def _problem(deps: Deps, row: StoredProvider) -> str:
    if deps.sign_in.is_in_file(row.provider):
        return "The server's own file has a provider of this name or issuer, which is used instead."
    if deps.sign_in.added.opened(row) is None:
        return "Its secret cannot be opened: the server's key for secrets is another one."
    return ""


def _trial_view(trial: Trial) -> ProviderTrialView:
    return ProviderTrialView(
        at=rfc3339(trial.at),
        state=trial.state,
        redirect_uri=trial.redirect_uri,
        checks=list(trial.checks),
    )


def _base(call: Call[Any]) -> str:
    return deps_of(call).base_url(call).rstrip("/")


ROUTES = [
    Route(
        "GET",
        PROVIDERS,
        list_providers,
        PERMISSION,
        answer=SignInProvidersView,
        summary="The OpenID providers of the server's file and those that were added",
        tags=TAGS,
    ),
    Route(
        "POST",
        PROVIDERS,
        add_provider,
        PERMISSION,
        ProviderBody,
        SignInProviderView,
        "Add an OpenID provider to log in with",
        status=201,
        max_body_bytes=MAX_BODY_BYTES,
        tags=TAGS,
    ),
    Route(
        "GET",
        f"{PROVIDERS}/{{provider}}",
        get_provider,
        PERMISSION,
        answer=SignInProviderView,
        summary="One provider, with the addresses to register there",
        tags=TAGS,
    ),
    Route(
        "PATCH",
        f"{PROVIDERS}/{{provider}}",
        change_provider,
        PERMISSION,
        ProviderChangeBody,
        SignInProviderView,
        "Change a provider that was added, or switch it on or off; switched off, its sessions end",
        max_body_bytes=MAX_BODY_BYTES,
        tags=TAGS,
    ),
    Route(
        "DELETE",
        f"{PROVIDERS}/{{provider}}",
        delete_provider,
        PERMISSION,
        answer=Done,
        summary="Delete a provider that was added; its sessions end, its users stay",
        tags=TAGS,
    ),
    Route(
        "POST",
        f"{PROVIDERS}/{{provider}}/test",
        test_provider,
        PERMISSION,
        answer=ProviderTrialView,
        summary="Ask a provider all that a log-in would ask it, and say what came of each check",
        tags=TAGS,
    ),
]
