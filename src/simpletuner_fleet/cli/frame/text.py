"""Makes text from elsewhere harmless for a terminal."""

import codecs
import re
from functools import cache

DANGEROUS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""C0, DEL, C1, bidirectional and invisible marks, line separators, lone surrogates, tags."""
SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
STRINGS = "\x90\x98\x9d\x9e\x9f"
"""Begin DCS, SOS, OSC, PM and APC, as ESC with a letter does; within one of these they end it and begin another."""
STRING = f"(?:\x1b[\\]PX^_]|[{STRINGS}])[^\x07\x1b\x9c{STRINGS}]*"
"""Holds no further beginning, so that a text of many that never end is not read anew from each of them."""
SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erase, modes
    f"|{STRING}(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]*[0-Z\\\\^-~]"
)
UNFINISHED = re.compile(f"(?:(?:\x1b\\[|\x9b)[0-?]*[ -/]*|{STRING}\x1b?|\x1b[ -/]*)$")
MAX_UNFINISHED_CHARS = 4096
COLOUR = re.compile("\x1b\\[[0-9;:]{0,64}m")
"""Colours and weights of letters, which do no harm."""


def _escape(match: re.Match[str]) -> str:
    return _escaped(match[0])


@cache
def _escaped(char: str) -> str:
    return SHORT.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")


def clean(text: object) -> str:
    """Returns one line in which every character that could control a terminal is written as an escape."""
    return DANGEROUS.sub(_escape, str(text))


def clean_lines(text: str) -> str:
    return "\n".join(clean(line) for line in text.split("\n"))


def harmless_json(text: str) -> str:
    """Writes dangerous characters as \\uXXXX, so that the JSON means the same. Its own newlines stay."""

    def escaped(match: re.Match[str]) -> str:
        if match[0] == "\n":
            return "\n"
        units = match[0].encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))

    return DANGEROUS.sub(escaped, text)


class TerminalLogText:
    """Turns the bytes of a log, cut anywhere, into lines that cannot control a terminal; CR ends a line, too."""

    def __init__(self, *, colours: bool = False) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._colours = colours

    def feed(self, chunk: bytes, *, last: bool = False) -> str:
        text = self._held + self._decode.decode(chunk, last)
        self._held = ""
        if not last:
            text = self._hold_back(text)
        if not self._colours:
            return _harmless(text)
        colours = [*COLOUR.findall(text), ""]
        return "".join(
            _harmless(part) + colour for part, colour in zip(COLOUR.split(text), colours, strict=True)
        )

    def _hold_back(self, text: str) -> str:
        """Keeps what may begin an escape sequence, or CR LF, until the next chunk."""
        cut = UNFINISHED.search(text)
        start = cut.start() if cut and cut[0] else len(text) - text.endswith("\r")
        if len(text) - start > MAX_UNFINISHED_CHARS:
            return text
        self._held = text[start:]
        return text[:start]


def _harmless(text: str) -> str:
    text = SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return DANGEROUS.sub(lambda match: match[0] if match[0] in "\n\t" else _escaped(match[0]), text)
