"""Asks an LDAP directory who somebody is: looks up the name they typed, then binds as them with the password."""

import asyncio
import logging
import ssl
from concurrent.futures import ThreadPoolExecutor

from simpletuner_fleet.core.errors import ProviderUnusable, WrongPassword
from simpletuner_fleet.core.people.sign_in.claims import MAX_GROUPS, MAX_SUBJECT_CHARS, Person
from simpletuner_fleet.core.people.sign_in.directories import Directory
from simpletuner_fleet.orchestrator.sign_in.asking import DEADLINE_S
from simpletuner_fleet.orchestrator.sign_in.ldap.ber import GarbledLdap
from simpletuner_fleet.orchestrator.sign_in.ldap.connection import (
    INVALID_CREDENTIALS,
    DirectoryEntry,
    DirectoryRefused,
    LdapConnection,
)
from simpletuner_fleet.orchestrator.sign_in.ldap.filters import read_ldap_filter

MOST_AT_ONCE = 8
"""People are looked up in threads of their own: a directory that hangs holds up nobody else's work."""
OBJECT_GUID = "objectguid"
log = logging.getLogger(__name__)


class AskedDirectory:
    def __init__(self, settings: Directory, deadline_s: float = DEADLINE_S) -> None:
        self.settings = settings
        self._deadline_s = deadline_s
        self._users = read_ldap_filter(settings.user_filter, ("name",))
        self._groups = read_ldap_filter(settings.group_filter, ("dn", "name"))
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="ldap")

    async def person(self, name: str, password: str) -> Person:
        """Returns the person. Raises WrongPassword, also where nobody or more than one has the name."""
        if not name or not password or "\0" in name or "\0" in password:
            raise WrongPassword
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._person, name, password)
        except DirectoryRefused as refused:
            log.warning("the directory %s refuses with the result code %d", self.settings.id, refused.code)
            raise ProviderUnusable(
                f"The directory refuses the server, with the result code {refused.code}."
            ) from None
        except GarbledLdap:
            raise ProviderUnusable("The directory's answer cannot be read.") from None
        except TimeoutError:
            raise ProviderUnusable(f"The directory did not answer within {self._deadline_s:g} s.") from None
        except (OSError, UnicodeError) as error:
            raise ProviderUnusable(f"The directory cannot be reached: {type(error).__name__}.") from None

    def _person(self, name: str, password: str) -> Person:
        settings = self.settings
        with LdapConnection(settings.host, settings.port, self._deadline_s) as connection:
            self._secure(connection)
            if settings.bind_dn:
                connection.bind(settings.bind_dn, settings.bind_password)
            entry = self._entry(connection, name)
            groups = self._groups_of(connection, entry, name)
            try:
                connection.bind(entry.dn, password)
            except DirectoryRefused as refused:
                if refused.code == INVALID_CREDENTIALS:
                    raise WrongPassword from None
                raise
        return Person(
            issuer=settings.issuer,
            subject=_subject(settings.subject_attribute, entry),
            name=entry.first(settings.name_attribute).decode("utf-8", "replace") or name,
            groups=groups,
        )

    def _secure(self, connection: LdapConnection) -> None:
        settings = self.settings
        if settings.tls_from_the_start:
            connection.secure(_trust(settings.ca_file))
        elif not settings.plain:
            connection.start_tls(_trust(settings.ca_file))

    def _entry(self, connection: LdapConnection, name: str) -> DirectoryEntry:
        settings = self.settings
        attributes = [settings.subject_attribute, settings.name_attribute]
        attributes += [settings.groups_attribute] if settings.groups_attribute else []
        entries = connection.search(settings.base, self._users.message({"name": name}), attributes, 2)
        if len(entries) != 1 or not entries[0].dn:
            if len(entries) > 1:
                log.warning("the directory %s has several people for one name", settings.id)
            raise WrongPassword
        return entries[0]

    def _groups_of(self, connection: LdapConnection, entry: DirectoryEntry, name: str) -> frozenset[str]:
        settings = self.settings
        if settings.groups_attribute:
            values = connection.all_values(entry, settings.groups_attribute, MAX_GROUPS)
            names = [value.decode("utf-8", "replace") for value in values]
        else:
            wanted = self._groups.message({"dn": entry.dn, "name": name})
            at = settings.group_base or settings.base
            names = [group.dn for group in connection.search(at, wanted, ["1.1"], MAX_GROUPS)]
        return settings.groups_of(names)


def _subject(attribute: str, entry: DirectoryEntry) -> str:
    """Returns the person's id. Active Directory's objectGUID is not text: it becomes its hexadecimal digits."""
    value = entry.first(attribute)
    text = value.hex() if attribute.lower() == OBJECT_GUID else value.decode("utf-8", "replace")
    if not 1 <= len(text) <= MAX_SUBJECT_CHARS or not text.isprintable():
        raise ProviderUnusable(
            f"The directory does not say of whom it speaks: it has no fit '{attribute}'.",
            next_step="Name another subject_attribute in the settings of this directory.",
        )
    return text


def _trust(ca_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file:
        context.load_verify_locations(cafile=ca_file)
    return context
