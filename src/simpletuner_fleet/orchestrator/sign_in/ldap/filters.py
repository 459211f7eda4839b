"""Parses the filters of the settings (RFC 4515) once.

What a person typed is put into a filter that was parsed already: whatever characters it has, it is a value, and not a
part of the filter.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

from simpletuner_fleet.orchestrator.sign_in.ldap.ber import encoded, octets

AND, OR, NOT, EQUAL, PRESENT, EXTENSIBLE = 0xA0, 0xA1, 0xA2, 0xA3, 0x87, 0xA9
MAX_DEPTH = 10
COMPARISON = re.compile(r"\(([A-Za-z][A-Za-z0-9;-]*)(?::([0-9.]+):)?=([^()]*)\)")
HEX = re.compile(rb"\\([0-9A-Fa-f]{2})")
PLACE = re.compile(r"(\{[a-z]+\})")


class UnreadableFilter(ValueError):
    """An LDAP filter of the settings that cannot be used."""


class LdapFilter(Struct, frozen=True):
    tag: int
    attribute: str = ""
    value: str = ""
    """As written, with places like {name}."""
    rule: str = ""
    """The matching rule of an extensible match, as Active Directory has one for nested groups."""
    parts: "tuple[LdapFilter, ...]" = ()

    def message(self, values: Mapping[str, str]) -> bytes:
        if self.parts:
            return encoded(self.tag, *(part.message(values) for part in self.parts))
        if self.tag == PRESENT:
            return octets(self.attribute, PRESENT)
        value = _filled(self.value, values)
        if self.tag == EXTENSIBLE:
            return encoded(
                EXTENSIBLE, octets(self.rule, 0x81), octets(self.attribute, 0x82), octets(value, 0x83)
            )
        return encoded(EQUAL, octets(self.attribute), octets(value))


def read_ldap_filter(text: str, places: tuple[str, ...]) -> LdapFilter:
    """Returns the parsed filter. `places` are the names that may be in braces.

    Comparisons are `=`, presence `=*`, and `:RULE:=`.
    """
    parsed, at = _read(text, 0, 0)
    if at != len(text):
        raise UnreadableFilter(f"something follows the filter at character {at}")
    unknown = [one for one in PLACE.findall(text) if one[1:-1] not in places]
    if unknown:
        raise UnreadableFilter(
            f"there is no {unknown[0]}; there is {', '.join(f'{{{one}}}' for one in places)}"
        )
    return parsed


def _read(text: str, at: int, depth: int) -> tuple[LdapFilter, int]:
    if depth > MAX_DEPTH:
        raise UnreadableFilter("the filter is nested too deep")
    joined = {"(&": AND, "(|": OR, "(!": NOT}.get(text[at : at + 2])
    if joined is None:
        match = COMPARISON.match(text, at)
        if match is None:
            raise UnreadableFilter(f"no comparison in brackets at character {at}")
        return _comparison(match), match.end()
    parts: list[LdapFilter] = []
    at += 2
    while text[at : at + 1] == "(":
        part, at = _read(text, at, depth + 1)
        parts.append(part)
    if text[at : at + 1] != ")" or not parts or (joined == NOT and len(parts) != 1):
        raise UnreadableFilter(f"a bracket is missing at character {at}")
    return LdapFilter(joined, parts=tuple(parts)), at + 1


def _comparison(match: "re.Match[str]") -> LdapFilter:
    attribute, rule, value = match[1], match[2] or "", match[3]
    if value == "*" and not rule:
        return LdapFilter(PRESENT, attribute)
    if "*" in value:
        raise UnreadableFilter("only a whole value may be *")
    return LdapFilter(EXTENSIBLE if rule else EQUAL, attribute, value, rule)


def _filled(template: str, values: Mapping[str, str]) -> bytes:
    pieces = PLACE.split(template)
    return b"".join(
        values[piece[1:-1]].encode() if PLACE.fullmatch(piece) else _unescaped(piece) for piece in pieces
    )


def _unescaped(text: str) -> bytes:
    return HEX.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode())
