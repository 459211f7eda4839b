"""Reads the filters that providers really send: attributes that equal something, joined by `and`."""

import re

from msgspec import Struct

from simpletuner_fleet.core.errors import ScimRefused
from simpletuner_fleet.core.people.scim.resources import GROUP_SCHEMA, USER_SCHEMA

MAX_FILTER_CHARS = 1_024
MAX_TERMS = 5
TERM = re.compile(r'\s*([A-Za-z][A-Za-z0-9.:_-]*)\s+(?i:eq)\s+("(?:[^"\\]|\\["\\])*"|true|false)\s*')
AND = re.compile(r"(?i:and)(?=\s)")
ESCAPED = re.compile(r"\\(.)")
OF_USERS = frozenset({"id", "username", "externalid"})
OF_GROUPS = frozenset({"id", "displayname", "externalid", "members", "members.value"})


class FilterTerm(Struct, frozen=True):
    attribute: str
    """In lower case."""
    value: str


def read_filter(text: str, known: frozenset[str]) -> tuple[FilterTerm, ...]:
    """Reads a filter, where an empty text is none, or raises ScimRefused with what may be asked."""
    if not text.strip():
        return ()
    if len(text) > MAX_FILTER_CHARS:
        raise ScimRefused(f"The filter is longer than {MAX_FILTER_CHARS} characters.", kind="invalidFilter")
    terms: list[FilterTerm] = []
    at = 0
    while True:
        match = TERM.match(text, at)
        if match is None or len(terms) == MAX_TERMS:
            raise _unknown(known)
        terms.append(FilterTerm(attribute_name(match[1]), unquoted(match[2])))
        at = match.end()
        if at == len(text):
            break
        joined = AND.match(text, at)
        if joined is None:
            raise _unknown(known)
        at = joined.end()
    if any(term.attribute not in known for term in terms):
        raise _unknown(known)
    return tuple(terms)


def attribute_name(path: str) -> str:
    """Returns the attribute's name in lower case, without the prefix of our own schemas."""
    return without_schema(path).lower()


def without_schema(path: str) -> str:
    for schema in (USER_SCHEMA, GROUP_SCHEMA):
        if path.lower().startswith(f"{schema.lower()}:"):
            return path[len(schema) + 1 :]
    return path


def unquoted(text: str) -> str:
    return ESCAPED.sub(r"\1", text[1:-1]) if text.startswith('"') else text


def _unknown(known: frozenset[str]) -> ScimRefused:
    return ScimRefused(
        f"A filter is ATTRIBUTE eq \"VALUE\", joined by 'and'; attributes are {', '.join(sorted(known))}.",
        kind="invalidFilter",
    )
