"""Holds all ways to log in beside the password, as the settings name them. Without any it asks nobody."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from simpletuner_fleet.core.errors import NotFound, NotVouchedFor
from simpletuner_fleet.core.people.scim.resources import ScimSource
from simpletuner_fleet.core.people.sign_in.ci import CiIssuer
from simpletuner_fleet.core.people.sign_in.claims import LogoutOrder
from simpletuner_fleet.core.people.sign_in.directories import LDAP, Directory
from simpletuner_fleet.core.people.sign_in.providers import PROXY, Provider, ProxyIdentity
from simpletuner_fleet.core.people.sign_in.stored import StoredProvider
from simpletuner_fleet.core.people.sign_in.trial import Trial
from simpletuner_fleet.orchestrator.sign_in.added import AddedProviders
from simpletuner_fleet.orchestrator.sign_in.asking import DEADLINE_S
from simpletuner_fleet.orchestrator.sign_in.following import IdentitySource
from simpletuner_fleet.orchestrator.sign_in.journeys import Journeys
from simpletuner_fleet.orchestrator.sign_in.terminals import Terminals

if TYPE_CHECKING:
    from simpletuner_fleet.orchestrator.sign_in.directory import AskedDirectory
    from simpletuner_fleet.orchestrator.sign_in.provider import Issuer, OpenIdProvider

MOST_ORDERS = 100_000


class SignInSettings(Struct, frozen=True, kw_only=True):
    providers: tuple[Provider, ...] = ()
    proxy: ProxyIdentity | None = None
    ci: tuple[CiIssuer, ...] = ()
    directories: tuple[Directory, ...] = ()
    scim: ScimSource | None = None
    """Whose users and groups are told of before they log in."""


class Way(Struct, frozen=True, kw_only=True):
    """Describes a way to log in beside the password, which is a button on the log-in page."""

    id: str
    title: str


class SignIn:
    def __init__(
        self,
        settings: SignInSettings | None = None,
        now: Callable[[], float] = time.time,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        settings = settings or SignInSettings()
        self._deadline_s = deadline_s
        self._filed = _made(settings.providers, deadline_s)
        self.added = AddedProviders()
        """Those beside the file; whoever puts the server together says where they are kept."""
        self._trials: dict[str, tuple[Provider | StoredProvider, Trial]] = {}
        """What came of the last test of each, and of which settings."""
        self._cis = {one.id: one for one in settings.ci}
        self._ci_issuers = _issuers(settings.ci, deadline_s)
        self.proxy = settings.proxy
        self._scim = settings.scim
        self.directories = _asked(settings.directories, deadline_s)
        """Whose names and passwords are taken where those of a local user are, in the order of the settings."""
        self._obeyed: dict[tuple[str, str], float] = {}
        """Logout tokens that were used, until they would have expired anyway."""
        self._now = now
        self.journeys = Journeys(now)
        self.terminals = Terminals(now)

    @property
    def filed(self) -> list[Provider]:
        return [one.settings for one in self._filed.values()]

    def is_in_file(self, provider: Provider) -> bool:
        """Tells whether the file has a provider of this name or issuer, which takes precedence over an added one."""
        return any(provider.id == one.id or provider.issuer == one.issuer for one in self.filed)

    @property
    def _providers(self) -> "dict[str, OpenIdProvider]":
        if not self.added:
            return self._filed
        added = self.added.current(self._deadline_s)
        return self._filed | {name: one for name, one in added.items() if not self.is_in_file(one.settings)}

    def made_for_test(self, filed: Provider | None, row: StoredProvider | None) -> "OpenIdProvider | None":
        """Returns a provider without cached state; None where the secret of an added one cannot be unsealed."""
        if filed is not None:
            return _made((filed,), self._deadline_s)[filed.id]
        return self.added.made_for(row, self._deadline_s) if row else None

    async def try_out(self, provider: "OpenIdProvider", redirect_uri: str) -> Trial:
        from simpletuner_fleet.orchestrator.sign_in.trial import try_provider  # as below

        begun = self.journeys.begin("nobody", "/")
        trial = await try_provider(provider, begun, redirect_uri, self._now())
        await provider.asker.close()
        self._trials[provider.settings.id] = (provider.stored or provider.settings, trial)
        return trial

    def trial_of(self, provider: Provider, row: StoredProvider | None) -> Trial | None:
        """Returns the result of the provider's last test; None where it was never tested with its present settings."""
        of, trial = self._trials.get(provider.id, (None, None))
        return trial if of == (row or provider) else None

    def ways(self, headers: Mapping[str, str]) -> list[Way]:
        """Returns the ways to log in, beside the password, for a caller who sent these headers."""
        offered = [Way(id=one.settings.id, title=one.settings.title) for one in self._providers.values()]
        if self.proxy and headers.get(self.proxy.user_header):
            offered.insert(0, Way(id=PROXY, title=self.proxy.title))
        return offered

    def title_of(self, issuer: str) -> str:
        """Returns the log-in page's name for the issuer that vouches for a user."""
        if issuer == PROXY and self.proxy:
            return self.proxy.title
        known = self.provider_of(issuer) or self._directory_of(issuer)
        return known.settings.title if known else issuer

    def provider(self, provider_id: str) -> "OpenIdProvider":
        provider = self._providers.get(provider_id)
        if provider is None:
            raise NotFound("There is no such provider to log in with.")
        return provider

    def provider_of(self, issuer: str) -> "OpenIdProvider | None":
        return next((one for one in self._providers.values() if one.settings.issuer == issuer), None)

    def vouches(self, issuer: str) -> bool:
        """Tells whether people log in through this issuer: it is named by the file, or was added and is enabled."""
        if issuer == PROXY:
            return self.proxy is not None
        by_file = any(one.issuer == issuer for one in self.filed) or self._directory_of(issuer) is not None
        return by_file or self.added.has_enabled(issuer)

    def _directory_of(self, issuer: str) -> "AskedDirectory | None":
        return next((one for one in self.directories if one.settings.issuer == issuer), None)

    def identity_source(
        self, provider: Provider | Directory, stored: StoredProvider | None = None
    ) -> IdentitySource:
        """Returns the way in through a provider. `stored` is its row, if it is one that was added."""
        return IdentitySource(
            id=provider.id,
            issuer=provider.issuer,
            roles=provider.roles,
            teams=provider.teams,
            new_users=provider.new_users,
            scim=self._scim_of(provider.id),
            stored=stored,
        )

    def proxy_identity_source(self, proxy: ProxyIdentity) -> IdentitySource:
        return IdentitySource(
            id=PROXY,
            issuer=PROXY,
            roles=proxy.roles,
            teams=proxy.teams,
            new_users=proxy.new_users,
            scim=self._scim_of(PROXY),
        )

    def scim_identity_source(self) -> IdentitySource:
        """Returns the way in whose users and groups come by SCIM. Raises NotFound where the settings name none."""
        named = self._scim.provider if self._scim else ""
        if named == PROXY and self.proxy:
            return self.proxy_identity_source(self.proxy)
        provider = self._providers.get(named) or self._directory_of(LDAP + named)
        if provider is None:
            raise NotFound(
                "This server takes no users and groups by SCIM.",
                next_step="Name a provider under [scim] in the file of --sign-in-file.",
            )
        return self.identity_source(provider.settings)

    def scim_groups_identity_source(self) -> IdentitySource:
        source = self.scim_identity_source()
        if source.scim and not source.scim.groups:
            raise NotFound("This server takes users by SCIM, and no groups: those of each log-in count.")
        return source

    def _scim_of(self, provider_id: str) -> ScimSource | None:
        return self._scim if self._scim and self._scim.provider == provider_id else None

    def ci(self, ci_id: str) -> CiIssuer:
        ci = self._cis.get(ci_id)
        if ci is None:
            raise NotFound("There is no such issuer whose tokens could be exchanged.")
        return ci

    async def read_ci(self, ci: CiIssuer, token: str) -> dict[str, Any]:
        """Returns the claims of a token that this issuer has signed."""
        claims, _ = await self._ci_issuers[ci.id].read(token)
        return claims

    @contextmanager
    def obey_once(self, provider_id: str, order: LogoutOrder) -> Iterator[None]:
        """Raises NotVouchedFor for a logout token that was used before: each is valid for one log-out.

        One that could not be obeyed was not used: the provider sends it again.
        """
        now = self._now()
        while self._obeyed and (len(self._obeyed) >= MOST_ORDERS or next(iter(self._obeyed.values())) <= now):
            del self._obeyed[next(iter(self._obeyed))]
        named = (provider_id, order.token_id)
        if named in self._obeyed:
            raise NotVouchedFor("This logout token has been used.")
        self._obeyed[named] = order.expires_at
        try:
            yield
        except BaseException:
            self._obeyed.pop(named, None)
            raise

    async def close(self) -> None:
        for one in (*self._filed.values(), *self._ci_issuers.values()):
            await one.asker.close()


def _made(providers: tuple[Provider, ...], deadline_s: float) -> dict[str, "OpenIdProvider"]:
    if not providers:
        return {}
    # Whoever has no provider need not pay for the import of what reads tokens.
    from simpletuner_fleet.orchestrator.sign_in.provider import OpenIdProvider

    return {one.id: OpenIdProvider(one, deadline_s) for one in providers}


def _asked(directories: tuple[Directory, ...], deadline_s: float) -> "list[AskedDirectory]":
    if not directories:
        return []
    from simpletuner_fleet.orchestrator.sign_in.directory import AskedDirectory  # for the same reason

    return [AskedDirectory(one, deadline_s) for one in directories]


def _issuers(cis: tuple[CiIssuer, ...], deadline_s: float) -> dict[str, "Issuer"]:
    if not cis:
        return {}
    from simpletuner_fleet.orchestrator.sign_in.provider import Issuer  # for the same reason

    return {
        one.id: Issuer(one.issuer, one.hosts, one.ca_file, for_people=False, deadline_s=deadline_s)
        for one in cis
    }
