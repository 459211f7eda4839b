"""Encodes and decodes BER as LDAP restricts it (RFC 4511, 5.1): definite lengths only, and bounded sizes."""

MAX_MESSAGE_BYTES = 1024 * 1024
SEQUENCE, SET, INTEGER, OCTETS, ENUMERATED, BOOLEAN = 0x30, 0x31, 0x02, 0x04, 0x0A, 0x01


class GarbledLdap(Exception):
    """What the directory sent is no LDAP, or more of it than is allowed."""


def encoded(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def number(value: int, tag: int = INTEGER) -> bytes:
    """Encodes a number that is not negative."""
    return encoded(tag, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def octets(text: str | bytes, tag: int = OCTETS) -> bytes:
    return encoded(tag, text.encode() if isinstance(text, str) else text)


class BerReader:
    """Reads BER elements one after the other from complete bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def element(self) -> tuple[int, bytes]:
        try:
            begins, size = head_at(self._data, self._at)
        except IndexError:
            raise GarbledLdap from None
        ends = begins + size
        if ends > len(self._data):
            raise GarbledLdap
        tag, self._at = self._data[self._at], ends
        return tag, self._data[begins:ends]

    def content(self, tag: int) -> bytes:
        """Returns the content of the next element, which must have this tag."""
        each, content = self.element()
        if each != tag:
            raise GarbledLdap
        return content

    def number(self, tag: int = INTEGER) -> int:
        content = self.content(tag)
        if not 1 <= len(content) <= 8:
            raise GarbledLdap
        return int.from_bytes(content, "big", signed=True)


def head_at(data: bytes, at: int) -> tuple[int, int]:
    """Returns where the content of the element at this place begins, and its size.

    Raises IndexError where bytes are missing.
    """
    first = data[at + 1]
    if first < 0x80:
        return at + 2, first
    count = first & 0x7F
    if not 1 <= count <= 4:
        raise GarbledLdap
    if at + 2 + count > len(data):
        raise IndexError
    size = int.from_bytes(data[at + 2 : at + 2 + count], "big")
    if size > MAX_MESSAGE_BYTES:
        raise GarbledLdap
    return at + 2 + count, size
