"""Checks providers, whether from settings or added while the server runs, and defines how one is stored."""

import re

from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.people.sign_in.providers import PROXY, Provider, RoleRules, is_safe

PROVIDER_PREFIX = "sign_in_provider:"
MAX_PROVIDERS = 50
MAX_LEEWAY_S = 300.0
ID = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})", re.ASCII)


class StoredProvider(Struct, frozen=True, kw_only=True):
    provider: Provider
    """Without the client's secret, which is sealed."""
    sealed_secret: str = ""
    """Empty: a public client."""
    enabled: bool = False
    """Whether somebody may log in with it."""
    created_at: float = 0.0
    changed_at: float = 0.0


def checked_provider(provider: Provider) -> Provider:
    """Returns the provider, or refuses one that nobody could log in with, wherever it is configured."""
    check_provider_id(provider.id)
    check_issuer_address(provider.id, provider.issuer)
    if not provider.client_id.strip():
        raise Invalid(f"The provider '{provider.id}' needs a client id.", path="$.client_id")
    if "openid" not in provider.scopes:
        raise Invalid(f"The scopes of '{provider.id}' must name openid.", path="$.scopes")
    check_some_role(provider.id, provider.roles)
    if not 0 <= provider.leeway_s <= MAX_LEEWAY_S:
        raise Invalid(f"Clocks may differ by 0 to {MAX_LEEWAY_S:g} seconds.", path="$.leeway_s")
    unfit = next((one for one in provider.hosts if not HOST.fullmatch(one)), None)
    if unfit is not None:
        raise Invalid(f"'{unfit[:100]}' is no name of a host.", path="$.hosts")
    return provider


def check_provider_id(name: str) -> None:
    if not ID.fullmatch(name) or name == PROXY:
        raise Invalid(
            f"'{name[:50]}' is no name for a provider: use small letters, digits and '-'.", path="$.id"
        )


def check_issuer_address(name: str, issuer: str) -> None:
    if not is_safe(issuer):
        raise Invalid(
            f"The issuer of '{name}' must be an https address without '?' and '#'.", path="$.issuer"
        )


def check_some_role(name: str, roles: RoleRules) -> None:
    if roles == RoleRules():
        raise Invalid(f"No group of '{name}' has a role, so nobody could log in with it.", path="$.roles")
