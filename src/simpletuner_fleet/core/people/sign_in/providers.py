"""Describes an OpenID provider as the settings name it, and checks the document in which it describes itself."""

import re
from collections.abc import Collection

from msgspec import Struct

from simpletuner_fleet.core.bounds import Name
from simpletuner_fleet.core.errors import ProviderUnusable
from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.people.teams import TeamRole

SIGNATURES = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""Signatures that only the holder of a private key can make. `none` and those of a shared secret are not among them."""
USUAL_SIGNATURE = "RS256"
PLACE = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(/[^\s?#]*)?", re.ASCII)
LOOPBACK = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]", re.ASCII)
DISCOVERY = "/.well-known/openid-configuration"


class RoleRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Maps groups to roles; whoever is in several groups has the highest role."""

    admin: tuple[Name, ...] = ()
    member: tuple[Name, ...] = ()
    viewer: tuple[Name, ...] = ()
    everybody: Role | None = None
    """The role of those who are in none of them; None: they are not let in."""
    own: dict[Name, tuple[Name, ...]] = {}
    """Roles of one's own by name: below admin and above member, in the order in which they are written."""

    def role_for(self, groups: frozenset[str], known: Collection[str] = ()) -> str | None:
        """Returns the highest role of these groups; `known` are the custom roles that exist.

        A custom role that was deleted gives nobody anything.
        """
        ranked: list[tuple[str, tuple[str, ...]]] = [(Role.ADMIN, self.admin)]
        ranked += [(name, named) for name, named in self.own.items() if name in known]
        ranked += [(Role.MEMBER, self.member), (Role.VIEWER, self.viewer)]
        for role, named in ranked:
            if not groups.isdisjoint(named) or self.everybody == role:
                return role
        return None


class TeamGroups(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Maps groups to roles in a team: the highest one counts, and without a group there is no membership."""

    lead: tuple[Name, ...] = ()
    member: tuple[Name, ...] = ()
    viewer: tuple[Name, ...] = ()

    def role_for(self, groups: frozenset[str]) -> TeamRole | None:
        ranked = ((TeamRole.LEAD, self.lead), (TeamRole.MEMBER, self.member), (TeamRole.VIEWER, self.viewer))
        return next((role for role, named in ranked if not groups.isdisjoint(named)), None)


class Provider(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    """Its name in the settings, and in the addresses of ours that the provider knows."""
    title: str
    issuer: str
    client_id: str
    client_secret: str = ""
    """Empty: a public client, which PKCE alone protects."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    groups_claim: str = "groups"
    name_claim: str = "preferred_username"
    subject_claim: str = "sub"
    """Who somebody is. Entra's `sub` differs from client to client; its `oid` does not."""
    roles: RoleRules = RoleRules()
    teams: dict[str, TeamGroups] = {}
    """By the name of the team."""
    new_users: bool = True
    """Users are made at their first log-in."""
    leeway_s: float = 60.0
    hosts: tuple[str, ...] = ()
    """Further hosts that the server may ask in the provider's name; its issuer's own is always one."""
    ca_file: str = ""
    """Trusted beside the machine's own authorities."""


PROXY = "proxy"
"""The name of the way in by a trusted proxy, and whom its users have as their issuer: no address is called so."""


class ProxyIdentity(Struct, frozen=True, kw_only=True):
    """Holds the settings of a trusted proxy that logs people in and names them to us in headers.

    Names of headers are in lower case.
    """

    title: str
    user_header: str
    groups_header: str = ""
    name_header: str = ""
    roles: RoleRules = RoleRules()
    teams: dict[str, TeamGroups] = {}
    """By the name of the team."""
    new_users: bool = True

    @property
    def headers(self) -> frozenset[str]:
        return frozenset({self.user_header, self.groups_header, self.name_header} - {""})


class ProviderDocument(Struct, frozen=True, kw_only=True):
    """Holds the document in which a provider describes itself; fields not listed here are ignored."""

    issuer: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    jwks_uri: str
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    id_token_signing_alg_values_supported: tuple[str, ...] = (USUAL_SIGNATURE,)
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    code_challenge_methods_supported: list[str] | None = None
    scopes_supported: list[str] | None = None
    authorization_response_iss_parameter_supported: bool = False


class Described(Struct, frozen=True, kw_only=True):
    """Holds what is used of a provider's description of itself, after it was checked."""

    authorize: str
    token: str
    keys: str
    userinfo: str
    end_session: str
    signatures: tuple[str, ...]
    secret_in_body: bool
    """The client's secret goes into the form, for the provider takes no header."""
    names_itself: bool
    """It names itself in every answer by the browser (RFC 9207)."""


def place_of(url: str) -> tuple[str, str, str] | None:
    """Returns scheme, host and port as written; None where it is no plain address."""
    match = PLACE.fullmatch(url)
    return (match[1], match[2].lower(), match[3] or "") if match else None


def is_safe(url: str) -> bool:
    """Tells whether nobody on the way can read along: the URL uses TLS, or is on this very machine."""
    place = place_of(url)
    return place is not None and (place[0] == "https" or LOOPBACK.fullmatch(place[1]) is not None)


def may_be_asked(url: str, issuer: str, hosts: tuple[str, ...]) -> bool:
    """Tells whether the server may send requests there: to the issuer's own address, or by TLS to a named host.

    Otherwise a document could direct our requests into the internal network.
    """
    asked, own = place_of(url), place_of(issuer)
    if asked is None or own is None or not is_safe(url):
        return False
    return asked == own or (asked[0] == "https" and asked[2] in ("", "443") and asked[1] in hosts)


def described(
    document: ProviderDocument, issuer: str, hosts: tuple[str, ...], *, for_people: bool
) -> Described:
    """Checks the document of this issuer; with `for_people`, it must be able to log somebody in by a browser."""
    check_issuer(document, issuer)
    check_places(document, issuer, hosts, for_people=for_people)
    signatures = signatures_of(document)
    if for_people:
        check_pkce(document)
    return Described(
        authorize=document.authorization_endpoint,
        token=document.token_endpoint,
        keys=document.jwks_uri,
        userinfo=document.userinfo_endpoint
        if may_be_asked(document.userinfo_endpoint, issuer, hosts)
        else "",
        end_session=document.end_session_endpoint if is_safe(document.end_session_endpoint) else "",
        signatures=signatures,
        secret_in_body="client_secret_basic" not in document.token_endpoint_auth_methods_supported,
        names_itself=document.authorization_response_iss_parameter_supported,
    )


def check_issuer(document: ProviderDocument, issuer: str) -> None:
    if document.issuer != issuer:
        raise ProviderUnusable(
            f"The provider says that it is '{document.issuer[:200]}', and the settings say '{issuer}'.",
            next_step="Write the issuer in the settings exactly as the provider does, to the last slash.",
        )


def check_places(
    document: ProviderDocument, issuer: str, hosts: tuple[str, ...], *, for_people: bool = True
) -> None:
    asked = {"jwks_uri": document.jwks_uri}
    if for_people:
        asked["token_endpoint"] = document.token_endpoint
    for name, url in asked.items():
        if not may_be_asked(url, issuer, hosts):
            raise ProviderUnusable(
                f"The provider names a {name} that this server may not ask: '{url[:200]}'.",
                next_step="If that is right, name its host under 'hosts' in the settings of this provider.",
            )
    if for_people and not is_safe(document.authorization_endpoint):
        raise ProviderUnusable("The provider names no authorization_endpoint with https.")


def signatures_of(document: ProviderDocument) -> tuple[str, ...]:
    signatures = tuple(one for one in document.id_token_signing_alg_values_supported if one in SIGNATURES)
    if not signatures:
        raise ProviderUnusable(
            "The provider signs in no way that can be trusted: it needs RS256, ES256 or the like."
        )
    return signatures


def check_pkce(document: ProviderDocument) -> None:
    """Refuses a document without S256; one that does not mention PKCE is accepted, since S256 is sent anyway."""
    methods = document.code_challenge_methods_supported
    if methods is not None and "S256" not in methods:
        raise ProviderUnusable("The provider does not support PKCE with S256.")
