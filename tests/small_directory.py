"""A small LDAP server with those habits of Active Directory that slapd cannot have.

Long lists come in pieces under names with a range, groups are followed into groups by a matching rule, nobody is answered
before they have bound, every length is written with five bytes, the root refers elsewhere, and a wrong password and a
disabled account differ in a remark alone. Nothing of the code under test is used to speak.
"""

import re
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PIECE = 3
"""Active Directory: 1500."""
IN_CHAIN, BIT_AND = "1.2.840.113556.1.4.1941", "1.2.840.113556.1.4.803"
DISABLED = 2
ASKED_RANGE = re.compile(r"(\w+);range=(\d+)-\*", re.ASCII | re.IGNORECASE)
Entry = Mapping[str, list[str]]


def element(tag: int, *content: bytes) -> bytes:
    whole = b"".join(content)
    return bytes((tag, 0x84)) + len(whole).to_bytes(4, "big") + whole


def elements(data: bytes) -> list[tuple[int, bytes]]:
    read = []
    while data:
        tag, size, begins = data[0], data[1], 2
        if size & 0x80:
            begins = 2 + (size & 0x7F)
            size = int.from_bytes(data[2:begins], "big")
        read.append((tag, data[begins : begins + size]))
        data = data[begins + size :]
    return read


def text(raw: bytes) -> str:
    return raw.decode()


class SmallDirectory:
    def __init__(self, entries: Mapping[str, Entry], passwords: Mapping[str, str]) -> None:
        self.entries, self.passwords = entries, passwords
        self.remarks: list[str] = []

    def bind(self, dn: str, password: str) -> int:
        right = self.passwords.get(dn) == password
        account = int(self.entries.get(dn, {}).get("userAccountControl", ["512"])[0])
        if right and not account & DISABLED:
            return 0
        self.remarks.append("data 533" if right else "data 52e")
        return 49

    def search(self, content: bytes) -> Iterator[bytes]:
        base, scope, _, _, _, _, wanted, asked = elements(content)
        names = [text(name) for _, name in elements(asked[1])]
        for dn, entry in self.entries.items():
            here = dn.lower() == text(base[1]).lower()
            below = dn.lower().endswith(text(base[1]).lower())
            if (here if scope[1] == b"\0" else below) and self.fits(dn, entry, wanted):
                yield element(0x64, element(4, dn.encode()), element(0x30, *self.attributes(entry, names)))
        if text(base[1]).lower().startswith("dc="):
            yield element(0x73, element(4, b"ldap://DomainDnsZones.corp.example/"))

    def attributes(self, entry: Entry, names: list[str]) -> Iterator[bytes]:
        for name in names:
            ranged = ASKED_RANGE.fullmatch(name)
            attribute, begins = (ranged[1], int(ranged[2])) if ranged else (name, 0)
            known = next((one for one in entry if one.lower() == attribute.lower()), None)
            if known is None:
                continue
            values = entry[known]
            if len(values) <= PIECE:
                yield self.attribute(known, values)
                continue
            ends = begins + PIECE
            last = "*" if ends >= len(values) else str(ends - 1)
            yield self.attribute(known, [])
            yield self.attribute(f"{known};range={begins}-{last}", values[begins:ends])

    def attribute(self, name: str, values: list[str]) -> bytes:
        raw = (bytes.fromhex(value) if name == "objectGUID" else value.encode() for value in values)
        return element(0x30, element(4, name.encode()), element(0x31, *(element(4, one) for one in raw)))

    def fits(self, dn: str, entry: Entry, wanted: tuple[int, bytes]) -> bool:
        tag, content = wanted
        if tag == 0x87:
            return True
        parts = elements(content)
        if tag == 0xA0:
            return all(self.fits(dn, entry, part) for part in parts)
        if tag == 0xA1:
            return any(self.fits(dn, entry, part) for part in parts)
        if tag == 0xA2:
            return not self.fits(dn, entry, parts[0])
        if tag == 0xA3:
            name, value = text(parts[0][1]), text(parts[1][1])
            return value.lower() in [one.lower() for one in self.values(entry, name)]
        assert tag == 0xA9, hex(tag)
        rule, name, value = (text(dict(parts)[each]) for each in (0x81, 0x82, 0x83))
        if rule == BIT_AND:
            return any(int(one) & int(value) == int(value) for one in self.values(entry, name))
        assert rule == IN_CHAIN
        return value.lower() in self.chain(dn, name, set())

    def chain(self, dn: str, name: str, seen: set[str]) -> set[str]:
        """Returns all who are in this group, or in one that is in it."""
        for one in self.values(self.entries.get(dn, {}), name):
            if one.lower() not in seen:
                seen.add(one.lower())
                self.chain(one, name, seen)
        return seen

    def values(self, entry: Entry, name: str) -> list[str]:
        return next((values for known, values in entry.items() if known.lower() == name.lower()), [])


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        directory: SmallDirectory = self.server.directory  # type: ignore[attr-defined]
        is_bound = False
        while head := self.rfile.read(2):
            size = head[1]
            if size & 0x80:
                size = int.from_bytes(self.rfile.read(size & 0x7F), "big")
            (_, number), (tag, content) = elements(self.rfile.read(size))[:2]
            if tag == 0x60:
                _, (_, dn), (_, password) = elements(content)
                code = directory.bind(text(dn), text(password))
                is_bound = code == 0
                self.say(number, element(0x61, _result(code)))
            elif tag == 0x63:
                for answer in directory.search(content) if is_bound else ():
                    self.say(number, answer)
                self.say(number, element(0x65, _result(0 if is_bound else 1)))

    def say(self, number: bytes, operation: bytes) -> None:
        self.wfile.write(element(0x30, element(2, number), operation))


def _result(code: int) -> bytes:
    return element(0x0A, bytes((code,))) + element(4) + element(4, b"80090308: LdapErr")


@contextmanager
def small_directory(directory: SmallDirectory) -> Iterator[int]:
    """Yields the port on which it listens."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Connection) as server:
        server.daemon_threads = True
        server.directory = directory  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()
