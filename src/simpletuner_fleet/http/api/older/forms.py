"""Reads the fields of a form, in either of a form's encodings, in a time that grows with its size alone."""

import re
from urllib.parse import parse_qsl

from simpletuner_fleet.core.errors import Malformed
from simpletuner_fleet.http.edge.bodies import FORM_IN_PARTS

MAX_FIELDS = 500
MAX_PART_HEAD_BYTES = 1024
UNREADABLE = f"A form has at most {MAX_FIELDS} plain fields, in UTF-8, and no files."
END_OF_LINE = b"\r\n"
END_OF_HEAD = b"\r\n\r\n"
BOUNDARY = re.compile(
    r""";[ \t]*+boundary=(?:"([\w'()+,./:=? -]{1,70})"|([\w'()+,./:=?-]{1,70}))[ \t]*+(?:;|\Z)""",
    re.ASCII | re.IGNORECASE,
)
"""What separates the parts, as RFC 2046 limits it."""
FIELD = re.compile(
    rb"(?:^|\r\n)content-disposition:[ \t]*+form-data[ \t]*+;[ \t]*+"
    rb'name=(?:"([^"\\\r\n]*+)"|([\w.-]++))[ \t]*+(?:\r\n|\Z)',
    re.IGNORECASE,
)
"""A field has a name and nothing else; a file has a filename, too."""
ENCODED = re.compile(
    rb"(?:^|\r\n)content-transfer-encoding:(?![ \t]*+(?:7bit|8bit|binary)[ \t]*+(?:\r\n|\Z))", re.IGNORECASE
)


def form_fields(body: bytes, content_type: str) -> dict[str, str]:
    """Returns the fields. Raises Malformed for what is no form, has files, or has too many fields."""
    try:
        if content_type.lower().startswith(FORM_IN_PARTS):
            return dict(_field(part) for part in _parts(body, content_type))
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise Malformed(UNREADABLE) from None


def _parts(body: bytes, content_type: str) -> list[bytes]:
    """Returns the parts, each with its head. Raises ValueError where the body does not end as it has to."""
    said = BOUNDARY.search(content_type)
    if said is None:
        raise ValueError("the boundary is missing or too long")
    separator = b"\r\n--" + (said[1] or said[2]).encode("ascii")
    _, *parts, end = (END_OF_LINE + body).split(separator, MAX_FIELDS + 1)
    if not end.startswith(b"--"):
        raise ValueError("the last part is missing, or there are too many")
    return parts


def _field(part: bytes) -> tuple[str, str]:
    end = part.find(END_OF_HEAD, 0, MAX_PART_HEAD_BYTES)
    if end < 0 or not part.startswith(END_OF_LINE):
        raise ValueError("the head of a part has no end, or is too long")
    head = part[len(END_OF_LINE) : end]
    name = FIELD.search(head)
    if name is None or ENCODED.search(head):
        raise ValueError("a part is no plain field")
    return (name[1] or name[2] or b"").decode(), part[end + len(END_OF_HEAD) :].decode()
