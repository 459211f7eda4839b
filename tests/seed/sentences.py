"""Splits the seed document into its smallest statements, always the same way."""

import re
from pathlib import Path
from typing import NamedTuple

SEED = Path(__file__).with_name("seed.txt")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z*`(])")


class Statement(NamedTuple):
    """`section` is the nearest heading; `text` a sentence, a list item, a table row or a whole code block."""

    section: str
    text: str


def statements(document: str | None = None) -> list[Statement]:
    """Headings are no statements, nor are the two lines that make a table's head."""
    lines = (SEED.read_text(encoding="utf-8") if document is None else document).splitlines()
    statements: list[Statement] = []
    section, at = "", 0
    while at < len(lines):
        line = lines[at].strip()
        at += 1
        if line.startswith("```"):
            end = next(number for number in range(at, len(lines)) if lines[number].strip() == "```")
            statements.append(Statement(section, "\n".join(lines[at:end])))
            at = end + 1
        elif line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("|"):
            if at < len(lines) and re.fullmatch(r"[|\s:-]+", lines[at].strip()):
                at += 1
            else:
                statements.append(Statement(section, line))
        elif item := re.match(r"(?:[-*]|\d+\.)\s+(.*)", line):
            statements.append(Statement(section, item[1]))
        elif line:
            statements += [Statement(section, part) for part in _SENTENCE_END.split(line)]
    return statements


def code_blocks() -> list[str]:
    """What stands between fences, with the line break at its end."""
    return re.findall(r"^```[a-z]*\n(.*?)^```$", SEED.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
