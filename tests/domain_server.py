"""slapd with those habits of Active Directory that it can have: names of attributes, memberOf, a reference below the base.

People and groups come by the protocol, as memberOf is written by an overlay that sees changes alone.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from simpletuner_fleet.core.people.sign_in.directories import Directory
from tests.directory_server import (
    BASE,
    CONFIG,
    WITHIN_S,
    DirectoryServer,
    directory_server,
    environment_of,
    slapd_files,
)

ROOT, ROOT_PASSWORD = f"cn=root,{BASE}", "the root's own"
USER_FILTER = (
    "(&(objectClass=domainUser)(|(sAMAccountName={name})(userPrincipalName={name}))"
    "(!(userAccountControl:1.2.840.113556.1.4.803:=2)))"
)
ATTRIBUTES = """
attributetype ( 1.2.840.113556.1.4.221 NAME 'sAMAccountName'
  EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.656 NAME 'userPrincipalName'
  EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.2 NAME 'objectGUID'
  EQUALITY octetStringMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.8 NAME 'userAccountControl'
  EQUALITY integerMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.27 SINGLE-VALUE )
objectclass ( 1.3.6.1.4.1.4203.666.1 NAME 'domainUser' SUP top AUXILIARY
  MUST ( sAMAccountName $ objectGUID $ userAccountControl ) MAY userPrincipalName )
"""
_BEFORE, _DATABASE, _AFTER = CONFIG.partition("database mdb")
DOMAIN_CONFIG = (
    _BEFORE.replace("moduleload back_mdb", "moduleload back_mdb\nmoduleload memberof")
    + ATTRIBUTES
    + _DATABASE
    + _AFTER.replace("directory {folder}", 'rootpw "' + ROOT_PASSWORD + '"\ndirectory {folder}')
    + "overlay memberof\n"
)
FIRST = """
dn: {base}
objectClass: domain
dc: example

dn: {reader}
objectClass: person
cn: reader
sn: reader
userPassword: {reader_password}
"""
GUID = "AAECA/8FBgcICQoLDA0ODw=="
LATER = f"""
dn: ou=Staff,{BASE}
objectClass: organizationalUnit
ou: Staff

dn: cn=Lovelace\\, Ada,ou=Staff,{BASE}
objectClass: inetOrgPerson
objectClass: domainUser
cn: Lovelace, Ada
sn: Lovelace
sAMAccountName: ada
userPrincipalName: ada@corp.example
objectGUID:: {GUID}
userAccountControl: 512
userPassword: engine no 1

dn: cn=Gone,ou=Staff,{BASE}
objectClass: inetOrgPerson
objectClass: domainUser
cn: Gone
sn: Gone
sAMAccountName: gone
objectGUID:: EBESExQVFhcYGRobHB0eHw==
userAccountControl: 514
userPassword: still right

dn: cn=ML,ou=Staff,{BASE}
objectClass: groupOfNames
cn: ML
member: cn=Lovelace\\, Ada,ou=Staff,{BASE}
member: cn=Gone,ou=Staff,{BASE}

dn: cn=Bosses,ou=Staff,{BASE}
objectClass: groupOfNames
cn: Bosses
member: {ROOT}

dn: dc=child,{BASE}
objectClass: referral
objectClass: extensibleObject
dc: child
ref: ldap://127.0.0.1:1/dc=child,{BASE}
"""
ADA = f"cn=Lovelace\\, Ada,ou=Staff,{BASE}"


class DomainServer(Struct):
    slapd: DirectoryServer
    files: Path

    def settings(self, **changed: object) -> Directory:
        usual: dict[str, object] = {
            "user_filter": USER_FILTER,
            "subject_attribute": "objectGUID",
            "name_attribute": "sAMAccountName",
            "groups_attribute": "memberOf",
        }
        return self.slapd.settings(**{**usual, **changed})

    def change(self, ldif: str, tool: str = "ldapmodify") -> None:
        """By the protocol, as the directory's own administrator would."""
        words = [str(self.files / "usr" / "bin" / tool), "-x", "-M", "-D", ROOT, "-w", ROOT_PASSWORD]
        subprocess.run(
            [*words, "-H", f"ldap://127.0.0.1:{self.slapd.port}"],
            input=ldif.encode(),
            env=environment_of(self.files),
            check=True,
            capture_output=True,
            timeout=WITHIN_S,
        )


@contextmanager
def domain_server(folder: Path) -> Iterator[DomainServer | None]:
    """None where the packages cannot be had."""
    with directory_server(folder, DOMAIN_CONFIG, FIRST) as slapd:
        files = slapd_files()
        if slapd is None or files is None:
            yield None
            return
        domain = DomainServer(slapd, files)
        domain.change(LATER, "ldapadd")
        yield domain
