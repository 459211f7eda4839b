"""Holds the providers that administrators have added, as last committed, so that no change has to be announced."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from simpletuner_fleet.core.errors import Conflict
from simpletuner_fleet.core.people.sign_in.providers import Provider
from simpletuner_fleet.core.people.sign_in.stored import StoredProvider
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.ports import Vault

if TYPE_CHECKING:
    from simpletuner_fleet.orchestrator.sign_in.provider import OpenIdProvider

Committed = Callable[[], tuple[StoredProvider, ...]]


class AddedProviders:
    def __init__(
        self,
        committed: Committed = lambda: (),
        vault: Vault | None = None,
        outbound: OutboundConnector | None = None,
    ) -> None:
        self._committed, self._vault, self._outbound = committed, vault, outbound
        self._made: dict[str, tuple[StoredProvider, OpenIdProvider | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._committed())

    def row_of(self, provider_id: str) -> StoredProvider | None:
        return next((one for one in self._committed() if one.provider.id == provider_id), None)

    def has_enabled(self, issuer: str) -> bool:
        return any(one.enabled and one.provider.issuer == issuer for one in self._committed())

    def current(self, deadline_s: float) -> "dict[str, OpenIdProvider]":
        """Returns the enabled providers. One that was changed is made anew, without what it had cached."""
        made = {}
        for row in self._committed():
            known = self._made.get(row.provider.id)
            if known is None or known[0] != row or (row.enabled and known[1] is None):
                fresh = self.made_for(row, deadline_s) if row.enabled else None
                known = (row, fresh)
            made[row.provider.id] = known
        self._made = made
        return {name: provider for name, (_, provider) in made.items() if provider is not None}

    def made_for(self, row: StoredProvider, deadline_s: float) -> "OpenIdProvider | None":
        """Returns the provider of a row; None where its secret cannot be unsealed, or nobody may be called."""
        settings = self.opened(row)
        if settings is None or self._outbound is None:
            return None
        # Whoever has no provider need not pay for the import of what reads tokens.
        from simpletuner_fleet.orchestrator.sign_in.provider import OpenIdProvider

        return OpenIdProvider(settings, deadline_s, self._outbound, row)

    def opened(self, row: StoredProvider) -> Provider | None:
        """Returns the provider with its secret; None where the secret was sealed with another key than the server's."""
        if not row.sealed_secret:
            return row.provider
        try:
            secret = self._vault.unseal(seal_of(row.provider), row.sealed_secret) if self._vault else None
        except Conflict:  # a damaged key must not take the log-in page with it
            secret = None
        return None if secret is None else replace(row.provider, client_secret=secret)


def seal_of(provider: Provider) -> str:
    """Returns the name under which a provider's secret is sealed, which binds it to that provider and its issuer."""
    return f"sign-in provider {provider.id} at {provider.issuer}"
