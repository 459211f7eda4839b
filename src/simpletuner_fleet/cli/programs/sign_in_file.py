"""The file that names the OpenID providers: read and checked before the server starts."""

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from simpletuner_fleet.cli.frame.errors import CliError, usage
from simpletuner_fleet.core.people.permissions import is_permission
from simpletuner_fleet.core.people.sign_in.ci import CiIssuer, CiRule
from simpletuner_fleet.core.people.sign_in.providers import (
    PROXY,
    Provider,
    ProxyIdentity,
    RoleRules,
    TeamGroups,
    is_safe,
)
from simpletuner_fleet.languages import _
from simpletuner_fleet.orchestrator.sign_in.ways import SignInSettings

ID = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
RESERVED_HEADERS = frozenset(
    {"authorization", "cookie", "host", "x-api-key", "x-worker-token", "x-forwarded-for"}
)
Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class _ProviderEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    issuer: Text
    client_id: Text
    title: Text = ""
    client_secret_file: Text = ""
    client_secret_env: Text = ""
    scopes: tuple[Text, ...] = ("openid", "profile", "email")
    groups_claim: Text = "groups"
    name_claim: Text = "preferred_username"
    roles: RoleRules = RoleRules()
    teams: dict[str, TeamGroups] = {}
    new_users: bool = True
    leeway: Annotated[float, Meta(ge=0, le=300)] = 60.0
    hosts: tuple[Text, ...] = ()
    ca_file: Text = ""


class _ProxyEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    user_header: Text
    title: Text = "the proxy"
    groups_header: Text = ""
    name_header: Text = ""
    roles: RoleRules = RoleRules()
    teams: dict[str, TeamGroups] = {}
    new_users: bool = True


class _CiEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    issuer: Text
    audience: Text
    rules: tuple[CiRule, ...]
    token_life: Annotated[float, Meta(ge=60, le=86_400)] = 900.0
    leeway: Annotated[float, Meta(ge=0, le=300)] = 60.0
    hosts: tuple[Text, ...] = ()
    ca_file: Text = ""


class _SignInFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ci: dict[str, _CiEntry] = {}
    providers: dict[str, _ProviderEntry] = {}
    proxy: _ProxyEntry | None = None


def read_sign_in_file(path: str | None, trusted_proxies: Sequence[str] = ()) -> SignInSettings:
    if not path:
        return SignInSettings()
    try:
        document: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        read = msgspec.convert(document, _SignInFile)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise _unusable(path, str(error)) from None
    issuers = [entry.issuer for entry in read.providers.values()]
    if len(set(issuers)) != len(issuers):
        raise _unusable(path, _("two providers have the same issuer"))
    if read.proxy and not trusted_proxies:
        raise _unusable(path, _("a proxy may say who somebody is only where --trusted-proxies names it"))
    return SignInSettings(
        providers=tuple(_provider(path, name, entry) for name, entry in read.providers.items()),
        proxy=_proxy(path, read.proxy) if read.proxy else None,
        ci=tuple(_ci(path, name, entry) for name, entry in read.ci.items()),
    )


def _ci(path: str, name: str, entry: _CiEntry) -> CiIssuer:
    _check_place(path, name, entry.issuer)
    for rule in entry.rules:
        unknown = next((one for one in rule.permissions if not is_permission(one)), None)
        if unknown or not rule.claims:
            raise _unusable(
                path,
                _("a rule of '%(name)s' names no claims, or an unknown permission", name=name),
            )
    return CiIssuer(
        id=name,
        issuer=entry.issuer,
        audience=entry.audience,
        rules=entry.rules,
        token_life_s=entry.token_life,
        leeway_s=entry.leeway,
        hosts=tuple(one.lower() for one in entry.hosts),
        ca_file=entry.ca_file,
    )


def _proxy(path: str, entry: _ProxyEntry) -> ProxyIdentity:
    headers = [entry.user_header.lower(), entry.groups_header.lower(), entry.name_header.lower()]
    if any(name in RESERVED_HEADERS for name in headers):
        raise _unusable(path, _("the proxy needs headers of its own to say who somebody is"))
    if entry.roles == RoleRules():
        raise _unusable(
            path, _("no group of '%(name)s' has a role, so nobody could log in with it", name=PROXY)
        )
    return ProxyIdentity(
        title=entry.title,
        user_header=headers[0],
        groups_header=headers[1],
        name_header=headers[2],
        roles=entry.roles,
        teams=entry.teams,
        new_users=entry.new_users,
    )


def _check_place(path: str, name: str, issuer: str) -> None:
    if not ID.fullmatch(name) or name == PROXY:
        raise _unusable(
            path, _("'%(name)s' is no name for a provider: use small letters, digits and '-'", name=name)
        )
    if not is_safe(issuer):
        raise _unusable(
            path,
            _("the issuer of '%(name)s' must be an https address without '?' and '#'", name=name),
        )


def _provider(path: str, name: str, entry: _ProviderEntry) -> Provider:
    _check_place(path, name, entry.issuer)
    if "openid" not in entry.scopes:
        raise _unusable(path, _("the scopes of '%(name)s' must name openid", name=name))
    if entry.roles == RoleRules():
        raise _unusable(
            path, _("no group of '%(name)s' has a role, so nobody could log in with it", name=name)
        )
    return Provider(
        id=name,
        title=entry.title or name,
        issuer=entry.issuer,
        client_id=entry.client_id,
        client_secret=_secret(path, name, entry),
        scopes=entry.scopes,
        groups_claim=entry.groups_claim,
        name_claim=entry.name_claim,
        roles=entry.roles,
        teams=entry.teams,
        new_users=entry.new_users,
        leeway_s=entry.leeway,
        hosts=tuple(one.lower() for one in entry.hosts),
        ca_file=entry.ca_file,
    )


def _secret(path: str, name: str, entry: _ProviderEntry) -> str:
    if entry.client_secret_file:
        try:
            return Path(entry.client_secret_file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(path, str(error)) from None
    if entry.client_secret_env:
        secret = os.environ.get(entry.client_secret_env, "")
        if not secret:
            raise _unusable(
                path,
                _(
                    "the variable %(variable)s with the secret of '%(name)s' is not set",
                    variable=entry.client_secret_env,
                    name=name,
                ),
            )
        return secret
    return ""


def _unusable(path: str, why: str) -> CliError:
    return usage(_("%(file)s cannot be used", file=path), why, _("see docs/sign-in.md for an example"))
