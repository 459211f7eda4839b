"""A real OpenLDAP (slapd) on this machine, from Debian's package, which is unpacked and not installed."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from devtools.ports import free_port
from simpletuner_fleet.core.people.sign_in.directories import Directory
from simpletuner_fleet.core.people.sign_in.providers import RoleRules
from tests.docs.debian_tools import unpacked
from tests.e2e.certificates import own_certificate
from tests.e2e.processes import wait_until

WITHIN_S = 90.0
BASE = "dc=example,dc=org"
READER, READER_PASSWORD = f"cn=reader,{BASE}", "the reader's own"
CONFIG = """
modulepath {modules}
moduleload back_mdb
include {schema}/core.schema
include {schema}/cosine.schema
include {schema}/inetorgperson.schema
pidfile {folder}/slapd.pid
TLSCACertificateFile {folder}/own.pem
TLSCertificateFile {folder}/own.pem
TLSCertificateKeyFile {folder}/own.key
database mdb
suffix "{base}"
rootdn "cn=root,{base}"
directory {folder}/db
maxsize 10485760
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="{reader}" read by * none
"""
PEOPLE = """
dn: {base}
objectClass: domain
dc: example

dn: {reader}
objectClass: person
cn: reader
sn: reader
userPassword: {reader_password}

dn: ou=people,{base}
objectClass: organizationalUnit
ou: people

dn: uid=ada,ou=people,{base}
objectClass: inetOrgPerson
uid: ada
cn: Ada
sn: Lovelace
mail: ada@example.org
userPassword: engine no 1

dn: uid=bob,ou=people,{base}
objectClass: inetOrgPerson
uid: bob
cn: Bob
sn: Bob
mail: team@example.org
userPassword: bob's password

dn: uid=eve*,ou=people,{base}
objectClass: inetOrgPerson
uid: eve*
cn: Eve (x)
sn: Eve
mail: team@example.org
userPassword: eve's password

dn: cn=ml,{base}
objectClass: groupOfNames
cn: ml
member: uid=ada,ou=people,{base}

dn: cn=vision\\, leads,{base}
objectClass: groupOfNames
cn: vision, leads
member: uid=ada,ou=people,{base}

dn: cn=staff,{base}
objectClass: groupOfNames
cn: staff
member: uid=bob,ou=people,{base}
member: uid=eve*,ou=people,{base}
"""


class DirectoryServer(Struct):
    folder: Path
    port: int
    tls_port: int

    def settings(self, **changed: Any) -> Directory:
        usual: dict[str, Any] = {
            "id": "corp",
            "title": "Corp",
            "host": "localhost",
            "port": self.tls_port,
            "tls_from_the_start": True,
            "ca_file": str(self.folder / "own.pem"),
            "bind_dn": READER,
            "bind_password": READER_PASSWORD,
            "base": BASE,
            "user_filter": "(&(objectClass=inetOrgPerson)(uid={name}))",
            "groups_attribute": "",
            "roles": RoleRules(member=("ml",), viewer=(f"cn=staff,{BASE}",)),
        }
        return Directory(**{**usual, **changed})


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True


def slapd_files() -> Path | None:
    """Returns where the packages are unpacked; None where they cannot be had."""
    return unpacked("slapd-and-tools", ("slapd", "ldap-utils"))


def environment_of(files: Path) -> dict[str, str]:
    libraries = os.pathsep.join(str(one.parent) for one in files.glob("usr/lib/*/lib*.so*"))
    return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": libraries}


@contextmanager
def directory_server(
    folder: Path, config: str = CONFIG, people: str = PEOPLE
) -> Iterator[DirectoryServer | None]:
    """None where the packages cannot be had."""
    files = slapd_files()
    if files is None:
        yield None
        return
    own_certificate(folder)
    (folder / "db").mkdir()
    names = {"base": BASE, "reader": READER, "reader_password": READER_PASSWORD, "folder": folder}
    modules, schema = files / "usr" / "lib" / "ldap", files / "etc" / "ldap" / "schema"
    (folder / "slapd.conf").write_text(config.format(modules=modules, schema=schema, **names))
    (folder / "people.ldif").write_text(people.format(**names))
    environment = environment_of(files)
    program = [str(files / "usr" / "sbin" / "slapd"), "-f", str(folder / "slapd.conf")]
    subprocess.run(
        [*program[:1], "-T", "add", "-f", str(folder / "slapd.conf"), "-l", str(folder / "people.ldif")],
        check=True,
        env=environment,
        capture_output=True,
        timeout=WITHIN_S,
    )
    server = DirectoryServer(folder, free_port(), free_port())
    addresses = f"ldap://127.0.0.1:{server.port} ldaps://127.0.0.1:{server.tls_port}"
    with (folder / "slapd.log").open("wb") as log:
        process = subprocess.Popen(
            [*program, "-d", "256", "-h", addresses], env=environment, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: _listens(server.tls_port), "slapd listens", WITHIN_S)
        yield server
    finally:
        process.terminate()
        process.wait(WITHIN_S)
        shutil.rmtree(folder / "db", ignore_errors=True)
