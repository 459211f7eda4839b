"""Reads and checks the file of sign-in providers (OpenID, LDAP, a proxy, CI, SCIM) before the server starts."""

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from simpletuner_fleet.cli.frame.errors import CliError, usage
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.people.permissions import is_permission
from simpletuner_fleet.core.people.scim.resources import ScimSource, SubjectSource
from simpletuner_fleet.core.people.sign_in.ci import CiIssuer, CiRule
from simpletuner_fleet.core.people.sign_in.directories import Directory
from simpletuner_fleet.core.people.sign_in.providers import (
    LOOPBACK,
    PROXY,
    Provider,
    ProxyIdentity,
    RoleRules,
    TeamGroups,
)
from simpletuner_fleet.core.people.sign_in.stored import (
    check_issuer_address,
    check_provider_id,
    check_some_role,
    checked_provider,
)
from simpletuner_fleet.languages import _, current
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.orchestrator.sign_in.ldap.filters import UnreadableFilter, read_ldap_filter
from simpletuner_fleet.orchestrator.sign_in.ways import SignInSettings

LDAP_URL = re.compile(r"(ldaps?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?/?", re.ASCII)
RESERVED_HEADERS = frozenset(
    {"authorization", "cookie", "host", "x-api-key", "x-worker-token", "x-forwarded-for"}
)
Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class _Admitting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what each way to sign in says of its users: their roles and teams, and whether new ones are let in."""

    roles: RoleRules = RoleRules()
    teams: dict[str, TeamGroups] = {}
    new_users: bool = True


class _ProviderEntry(_Admitting, frozen=True, kw_only=True, forbid_unknown_fields=True):
    issuer: Text
    client_id: Text
    title: Text = ""
    client_secret_file: Text = ""
    client_secret_env: Text = ""
    scopes: tuple[Text, ...] = ("openid", "profile", "email")
    groups_claim: Text = "groups"
    name_claim: Text = "preferred_username"
    subject_claim: Text = "sub"
    leeway: Annotated[float, Meta(ge=0, le=300)] = 60.0
    hosts: tuple[Text, ...] = ()
    ca_file: Text = ""


class _ProxyEntry(_Admitting, frozen=True, kw_only=True, forbid_unknown_fields=True):
    user_header: Text
    title: Text = "the proxy"
    groups_header: Text = ""
    name_header: Text = ""


class _CiEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    issuer: Text
    audience: Text
    rules: tuple[CiRule, ...]
    token_life: Annotated[float, Meta(ge=60, le=86_400)] = 900.0
    leeway: Annotated[float, Meta(ge=0, le=300)] = 60.0
    hosts: tuple[Text, ...] = ()
    ca_file: Text = ""


class _LdapEntry(_Admitting, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Text
    base: Text
    title: Text = ""
    start_tls: bool = True
    ca_file: Text = ""
    bind_dn: Text = ""
    bind_password_file: Text = ""
    bind_password_env: Text = ""
    user_filter: Text = "(uid={name})"
    subject_attribute: Text = "entryUUID"
    name_attribute: Text = "uid"
    groups_attribute: Annotated[str, Meta(max_length=1024)] = "memberOf"
    group_base: Text = ""
    group_filter: Text = "(member={dn})"


class _ScimEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    provider: Text
    subject: SubjectSource = SubjectSource.EXTERNAL_ID
    groups: bool = True


class _SignInFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ci: dict[str, _CiEntry] = {}
    providers: dict[str, _ProviderEntry] = {}
    proxy: _ProxyEntry | None = None
    ldap: dict[str, _LdapEntry] = {}
    scim: _ScimEntry | None = None


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
    try:
        return SignInSettings(
            providers=tuple(_provider(path, name, entry) for name, entry in read.providers.items()),
            proxy=_proxy(path, read.proxy) if read.proxy else None,
            ci=tuple(_ci(path, name, entry) for name, entry in read.ci.items()),
            directories=tuple(_directory(path, name, entry) for name, entry in read.ldap.items()),
            scim=_scim(path, read),
        )
    except Invalid as error:
        raise _unusable(path, detail_text(current(), error.detail)) from None


def _scim(path: str, read: _SignInFile) -> ScimSource | None:
    if read.scim is None:
        return None
    known = [*read.providers, *read.ldap, *([PROXY] if read.proxy else [])]
    if read.scim.provider not in known:
        raise _unusable(
            path,
            _("[scim] names '%(name)s', and no provider of this file is called so", name=read.scim.provider),
        )
    return ScimSource(provider=read.scim.provider, subject=read.scim.subject, groups=read.scim.groups)


def _ci(path: str, name: str, entry: _CiEntry) -> CiIssuer:
    check_provider_id(name)
    check_issuer_address(name, entry.issuer)
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
    check_some_role(PROXY, entry.roles)
    return ProxyIdentity(
        title=entry.title,
        user_header=headers[0],
        groups_header=headers[1],
        name_header=headers[2],
        roles=entry.roles,
        teams=entry.teams,
        new_users=entry.new_users,
    )


def _directory(path: str, name: str, entry: _LdapEntry) -> Directory:
    check_provider_id(name)
    place = LDAP_URL.fullmatch(entry.url)
    if place is None or not 0 < int(place[3] or 389) < 65_536:
        raise _unusable(
            path,
            _("the url of '%(name)s' must be ldaps://HOST or ldap://HOST, with a port if need be", name=name),
        )
    scheme, host, port = place[1], place[2], place[3]
    by_tls = scheme == "ldaps"
    if not by_tls and not entry.start_tls and not LOOPBACK.fullmatch(host):
        raise _unusable(
            path, _("'%(name)s' would send passwords in plain: use ldaps:// or start_tls = true", name=name)
        )
    check_some_role(name, entry.roles)
    for text, places in ((entry.user_filter, ("name",)), (entry.group_filter, ("dn", "name"))):
        try:
            read_ldap_filter(text, places)
        except UnreadableFilter as error:
            raise _unusable(path, f"{text}: {error}") from None
    if "{name}" not in entry.user_filter:
        raise _unusable(path, _("the user_filter of '%(name)s' must name {name}", name=name))
    return Directory(
        id=name,
        title=entry.title or name,
        host=host.strip("[]"),
        port=int(port or (636 if by_tls else 389)),
        tls_from_the_start=by_tls,
        plain=not by_tls and not entry.start_tls,
        ca_file=entry.ca_file,
        bind_dn=entry.bind_dn,
        bind_password=_secret_in(path, name, entry.bind_password_file, entry.bind_password_env),
        base=entry.base,
        user_filter=entry.user_filter,
        subject_attribute=entry.subject_attribute,
        name_attribute=entry.name_attribute,
        groups_attribute=entry.groups_attribute,
        group_base=entry.group_base,
        group_filter=entry.group_filter,
        roles=entry.roles,
        teams=entry.teams,
        new_users=entry.new_users,
    )


def _provider(path: str, name: str, entry: _ProviderEntry) -> Provider:
    provider = Provider(
        id=name,
        title=entry.title or name,
        issuer=entry.issuer,
        client_id=entry.client_id,
        client_secret=_secret_in(path, name, entry.client_secret_file, entry.client_secret_env),
        scopes=entry.scopes,
        groups_claim=entry.groups_claim,
        name_claim=entry.name_claim,
        subject_claim=entry.subject_claim,
        roles=entry.roles,
        teams=entry.teams,
        new_users=entry.new_users,
        leeway_s=entry.leeway,
        hosts=tuple(one.lower() for one in entry.hosts),
        ca_file=entry.ca_file,
    )
    return checked_provider(provider)


def _secret_in(path: str, name: str, file: str, variable: str) -> str:
    if file:
        try:
            return Path(os.path.expanduser(file)).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(path, str(error)) from None
    if variable:
        secret = os.environ.get(variable, "")
        if not secret:
            raise _unusable(
                path,
                _(
                    "the variable %(variable)s with the secret of '%(name)s' is not set",
                    variable=variable,
                    name=name,
                ),
            )
        return secret
    return ""


def _unusable(path: str, why: str) -> CliError:
    return usage(_("%(file)s cannot be used", file=path), why, _("see docs/sign-in.md for an example"))
