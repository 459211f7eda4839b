"""Describes a directory (LDAP, Active Directory) as the settings name it, and reads the names it gives."""

import re
from collections.abc import Iterable

from msgspec import Struct

from simpletuner_fleet.core.people.sign_in.providers import RoleRules, TeamGroups

LDAP = "ldap:"
"""Begins the issuer of whoever a directory vouches for: no address is called so."""
FIRST_NAME = re.compile(r"[^=,+]+=((?:[^,+\\]|\\[0-9A-Fa-f]{2}|\\.)*)", re.DOTALL)
ESCAPED = re.compile(r"\\([0-9A-Fa-f]{2}|.)", re.DOTALL)


class Directory(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    host: str
    port: int
    tls_from_the_start: bool
    """Else it is asked for (StartTLS), unless the directory is on this very machine and `plain`."""
    plain: bool = False
    ca_file: str = ""
    bind_dn: str = ""
    """Who looks people up; empty: the directory lets anybody look."""
    bind_password: str = ""
    base: str
    user_filter: str = "(uid={name})"
    subject_attribute: str = "entryUUID"
    """What stays the same whatever else changes; Active Directory: objectGUID."""
    name_attribute: str = "uid"
    groups_attribute: str = "memberOf"
    """Where groups stand on the person; empty: they are looked for."""
    group_base: str = ""
    group_filter: str = "(member={dn})"
    roles: RoleRules = RoleRules()
    teams: dict[str, TeamGroups] = {}
    """By the name of the team."""
    new_users: bool = True

    @property
    def issuer(self) -> str:
        return LDAP + self.id

    def groups_of(self, dns: Iterable[str]) -> frozenset[str]:
        """Returns the names of these groups, also as the settings write them: a directory ignores case."""
        names = {each for dn in dns for each in group_names(dn)}
        folded = {one.casefold() for one in names}
        return frozenset(names | {one for one in self._named_groups() if one.casefold() in folded})

    def _named_groups(self) -> Iterable[str]:
        roles = self.roles
        for named in (roles.admin, roles.member, roles.viewer, *roles.own.values()):
            yield from named
        for team in self.teams.values():
            yield from (*team.lead, *team.member, *team.viewer)


def group_names(dn: str) -> tuple[str, ...]:
    """Returns how a group may be named in the settings: by its whole name, and by the first part of it."""
    match = FIRST_NAME.match(dn)
    return (dn, _plain(match[1])) if match else (dn,)


def _plain(value: str) -> str:
    """Returns the value without the escapes of RFC 4514."""
    pieces = ESCAPED.split(value.strip())
    data = b"".join(
        piece.encode() if at % 2 == 0 else bytes.fromhex(piece) if len(piece) == 2 else piece.encode()
        for at, piece in enumerate(pieces)
    )
    return data.decode("utf-8", "replace")
