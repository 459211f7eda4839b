"""Chance that can be repeated: from one seed the same values come, from the well-formed to the mad."""

import json
import random
from collections.abc import Sequence
from typing import Any

NASTY_TEXTS = (
    "",
    " ",
    "\0",
    "\ud800",
    "\u202egnp.exe",
    "\x1b[2J",
    "a\r\nSet-Cookie: x=y",
    "../../etc/passwd",
    "..%2f..%2f",
    "%00",
    "%",
    "'; DROP TABLE jobs; --",
    "{{7*7}}",
    "<script>alert(1)</script>",
    "\U0001d54f" * 50,
    "A" * 300,
    "A" * 5000,
    "-1",
    "NaN",
    "1e999",
    "9" * 20,
    "9" * 400,
    "null",
    "true",
    "[]",
    "{}",
    "j_",
    "w_",
    "sha256:",
    "2026-01-01T00:00:00Z",
    "0000-00-00T99:99:99Z",
    "(a+)+$",
    "[",
    "\u0130\u0131\ufb03",
    "e\u0301" * 40,
    "=cmd|' /C calc'!A0",
    "*",
    "admin",
    "0" * 64,
    "f" * 64,
)
NASTY_NUMBERS: tuple[int | float, ...] = (
    *(0, -1, 1, 2, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64),
    *(-(2**31) - 1, -(2**63), -(2**63) - 1, 10**20, 10**40, -(10**40)),
    *(1.5, -0.0, 1e-9, 1e16, 1e300, -1e300, 1e308, 5e-324, 253402300800.0, -62135596801.0),
)
SPLICES = (
    b"\0",
    b"\r\n",
    b"\n\n",
    b"\xff\xfe",
    b"{",
    b"}",
    b'"',
    b"[",
    b"%",
    b":",
    b",",
    b"\xf0\x9f",
    b"1e999",
)
MAD_DEPTH = 2000


class Chance(random.Random):
    def happens(self, one_in: float) -> bool:
        return self.random() * one_in < 1

    def text(self) -> str:
        if self.happens(1.5):
            return self.choice(NASTY_TEXTS)
        return "".join(
            chr(self.choice((self.randrange(32, 127), self.randrange(0x10FFFF))))
            for _ in range(self.randrange(12))
        )

    def number(self) -> int | float:
        dice = self.random()
        if dice < 0.5:
            return self.choice(NASTY_NUMBERS)
        return self.randrange(-3, 300) if dice < 0.9 else self.uniform(-1e6, 1e12)

    def scalar(self) -> Any:
        dice = self.random()
        if dice < 0.5:
            return self.text()
        return self.number() if dice < 0.85 else self.choice((None, True, False))

    def garbage(self, depth: int = 3) -> Any:
        dice = self.random()
        if depth == 0 or dice < 0.6:
            return self.scalar()
        if dice < 0.8:
            return [self.garbage(depth - 1) for _ in range(self.randrange(4))]
        return {self.text(): self.garbage(depth - 1) for _ in range(self.randrange(4))}

    def encoded(self, value: Any) -> bytes:
        """As JSON; sometimes it is cut, spliced, nested or spoiled afterwards."""
        raw = json.dumps(value).encode()
        return self.mangled(raw) if self.happens(12) else raw

    def mangled(self, raw: bytes) -> bytes:
        at, until = sorted((self.randrange(len(raw) + 1), self.randrange(len(raw) + 1)))
        match self.randrange(8):
            case 0:
                return raw[:at]
            case 1:
                return raw[:at] + self.choice(SPLICES) + raw[at:]
            case 2:
                return raw[:at] + raw[until:]
            case 3:
                return raw[:at] + raw[at:until] * self.randrange(2, 40) + raw[until:]
            case 4:
                return self.randbytes(self.randrange(64))
            case 5:
                return self.choice((b"[", b'{"a":')) * self.randrange(1, MAD_DEPTH)
            case 6:
                return b"\xef\xbb\xbf" + raw
        return raw[:at] + bytes([self.randrange(256)]) + raw[at + 1 :]

    def cut(self, raw: bytes) -> list[bytes]:
        """The same bytes in pieces, as a line might deliver them."""
        cuts = sorted(self.randrange(len(raw) + 1) for _ in range(self.choice((0, 0, 0, 1, 2, 5))))
        return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]

    def one_of(self, known: Sequence[Any]) -> Any:
        return self.choice(known) if known else self.text()
