"""A fleet whose people log in with a provider: real server, real provider, a browser that follows redirects by hand."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx2
from msgspec.structs import replace

from simpletuner_fleet.core.people.scim.resources import ScimSource
from simpletuner_fleet.core.people.sign_in.ci import CiIssuer, CiRule
from simpletuner_fleet.core.people.sign_in.directories import Directory
from simpletuner_fleet.core.people.sign_in.providers import Provider, ProxyIdentity, RoleRules
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.http.edge.edge import EdgeSettings
from simpletuner_fleet.orchestrator.sign_in.added import AddedProviders
from simpletuner_fleet.orchestrator.sign_in.ways import SignIn, SignInSettings
from simpletuner_fleet.ports import Store
from simpletuner_fleet.store.sealing import SealedVault
from simpletuner_fleet.web import routes
from simpletuner_fleet.web.frame.problems import problem_page
from tests.http.api_kit import Running, TurnedClock, orchestrator
from tests.openid_provider import CLIENT, SECRET, TestProvider, openid_provider

ROLES = RoleRules(admin=("ml-admins",), member=("ml",), viewer=("staff",))
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}


class Scene:
    def __init__(self, running: Running, provider: TestProvider) -> None:
        self.running, self.provider = running, provider

    def browser(self) -> httpx2.AsyncClient:
        return self.running.as_user(None)

    async def to_provider(
        self, browser: httpx2.AsyncClient, following: str = "/jobs", at: str = "corp"
    ) -> str:
        """Returns the address at the provider to which the server sends the browser."""
        answer = await browser.get(f"/login/with/{at}", params={"next": following})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    async def through_provider(self, address: str) -> str:
        """Returns the address to which the provider sends the browser back."""
        async with self.running.as_user(None) as anywhere:
            answer = await anywhere.get(address)
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]

    async def log_in(self, browser: httpx2.AsyncClient, following: str = "/jobs") -> httpx2.Response:
        return await browser.get(await self.through_provider(await self.to_provider(browser, following)))

    async def audited(self, event_type: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = (await self.running.get("/api/audit", event_type=event_type))[
            "entries"
        ]
        return entries


def settings_of(provider: TestProvider, **changed: Any) -> Provider:
    usual = Provider(
        id="corp", title="Corp", issuer=provider.issuer, client_id=CLIENT, client_secret=SECRET, roles=ROLES
    )
    return replace(usual, **changed)


def edge_of(proxy: ProxyIdentity, trusted: str) -> EdgeSettings:
    return EdgeSettings(
        trusted_proxies=trusted, asserted_headers=proxy.headers, user_header=proxy.user_header
    )


@asynccontextmanager
async def scene(
    settings: EdgeSettings | None = None,
    names_itself: bool = True,
    deadline_s: float = 5.0,
    proxy: ProxyIdentity | None = None,
    ci: Sequence[CiRule] = (),
    scim: ScimSource | None = None,
    directories: Sequence[Directory] = (),
    more_providers: Sequence[Provider] = (),
    store: Store | None = None,
    **changed: Any,
) -> AsyncIterator[Scene]:
    clock = TurnedClock()
    with openid_provider(clock.now, names_itself) as provider:
        providers = (settings_of(provider, **changed), *more_providers)
        cis = (CiIssuer(id="ci", issuer=provider.issuer, audience="https://fleet", rules=tuple(ci)),)
        named = SignInSettings(
            providers=providers, proxy=proxy, ci=cis, scim=scim, directories=tuple(directories)
        )
        sign_in = SignIn(named, clock.now, deadline_s)
        pages: dict[str, Any] = {"pages": routes.ROUTES, "problem_page": problem_page}
        async with orchestrator(store, settings=settings, clock=clock, sign_in=sign_in, **pages) as running:
            provider.redirect_uris.add(f"{running.listening.url}/login/back/corp")
            yield Scene(running, provider)
            await sign_in.close()


@asynccontextmanager
async def added_scene(
    folder: Path,
    networks: Sequence[str] = ("127.0.0.0/8",),
    filed: Sequence[Provider] = (),
    store: Store | None = None,
) -> AsyncIterator[Scene]:
    """A server whose administrators add the provider themselves; it may call the networks that are named."""
    clock, outbound = TurnedClock(), OutboundConnector([ip_network(one) for one in networks])
    vault = SealedVault.at(folder / "secrets.key")
    with openid_provider(clock.now) as provider:
        sign_in = SignIn(SignInSettings(providers=tuple(filed)), clock.now, 5.0)
        pages: dict[str, Any] = {"pages": routes.ROUTES, "problem_page": problem_page}
        async with orchestrator(store, clock=clock, sign_in=sign_in, vault=vault, **pages) as running:
            fleet = running.deps.fleet
            sign_in.added = AddedProviders(lambda: fleet.organisation.providers, vault, outbound)
            provider.redirect_uris.add(f"{running.listening.url}/login/back/corp")
            yield Scene(running, provider)
            await sign_in.close()
    outbound.close()


def wanted(provider: TestProvider, **changed: Any) -> dict[str, Any]:
    """What an administrator sends to add this provider."""
    usual = {
        "id": "corp",
        "title": "Corp",
        "issuer": provider.issuer,
        "client_id": CLIENT,
        "client_secret": SECRET,
        "roles": {"admin": ["ml-admins"], "member": ["ml"], "viewer": ["staff"]},
        "enabled": True,
    }
    return usual | changed


def problem(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]
