"""What can be wrong with a catalogue: each finding is a line for whoever translates."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog

from devtools.languages.words import MARKED_CALL, PYTHON_MARKS, Sentence, is_translated

PLACEHOLDER = re.compile(r"%\((\w+)\)([-#0 +]?\d*(?:\.\d+)?[a-zA-Z])|%(.?)")
MARKS = frozenset(PYTHON_MARKS) - {"text", "plural", "gettext"}
COUNT = "n"
PUT_TOGETHER = (ast.JoinedStr, ast.BinOp, ast.Call)
SAYING = frozenset({"print", "tell", "warn", "say", "hint", "note", "fail", "usage", "ValueError"})
"""What commands tell people with."""
FOR_PROGRAMS = ("cli/mcp/*.py", "client/calls/*.py")
TWO_WORDS = re.compile(r"[A-Za-z]{2,}[,:]? [a-z]{2,}")
COMMAND = re.compile(r"(simpletuner|systemctl|journalctl|pip) |--")
UNREAD_WITHIN_A_STRING = (*PUT_TOGETHER, ast.Constant)


def missing(catalogue: Catalog) -> list[str]:
    return [_name_of(message) for message in _messages(catalogue) if not is_translated(message)]


def fuzzy(catalogue: Catalog) -> list[str]:
    return [_name_of(message) for message in _messages(catalogue) if message.fuzzy]


def unused(catalogue: Catalog, sentences: list[Sentence]) -> list[str]:
    spoken = {(_first(sentence.msgid), sentence.context) for sentence in sentences}
    unspoken = [
        _name_of(message)
        for message in _messages(catalogue)
        if (_first(message.id), message.context) not in spoken
    ]
    return unspoken + [str(key) for key in catalogue.obsolete]


def not_in_catalogue(catalogue: Catalog, sentences: list[Sentence]) -> list[str]:
    return sorted(
        {
            _first(sentence.msgid)
            for sentence in sentences
            if catalogue.get(_first(sentence.msgid), sentence.context) is None
        }
    )


def wrong_placeholders(catalogue: Catalog) -> list[str]:
    """A translation has the placeholders of its sentence in the same form; a plural's form may leave the number out."""
    return [
        f"{_name_of(message)}: {sorted(wrong)}"
        for message in _messages(catalogue)
        for form in _forms(message.string)
        if form and (wrong := _placeholder_problems(message, form))
    ]


def _placeholder_problems(message: Any, form: str) -> set[str]:
    optional = {COUNT} if len(_forms(message.id)) > 1 else set()
    differing = {name for name, _ in placeholders(_forms(message.id)[-1]) ^ placeholders(form)}
    return differing - optional or _stray_signs(form)


def wrong_plurals(catalogue: Catalog) -> list[str]:
    return [
        _name_of(message)
        for message in _messages(catalogue)
        if (len(_forms(message.id)) > 1) != isinstance(message.string, tuple | list)
        or (isinstance(message.string, tuple | list) and len(message.string) != catalogue.num_plurals)
    ]


def placeholders(text: str) -> set[tuple[str, str]]:
    return {(match[1], match[2]) for match in PLACEHOLDER.finditer(text) if match[1]}


def _stray_signs(form: str) -> set[str]:
    """Returns percent signs that would be read as the beginning of a placeholder."""
    return {match[0] for match in PLACEHOLDER.finditer(form) if not match[1] and match[3] != "%"}


def unreadable_marks(source: Path) -> Iterator[str]:
    """Yields where sentences stand that no tool can gather: put together at run time, or within an f-string."""
    for path in sorted(source.rglob("*.py")):
        text = path.read_text("utf-8")
        if path.parent.name == "languages" or path.name == "marks.py" or not MARKED_CALL.search(text):
            continue
        tree = ast.parse(text)
        joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        within = {id(node) for one in joined for node in ast.walk(one)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MARKS:
                texts = node.args[: 2 if node.func.id in ("ngettext", "pgettext") else 1]
                unread = UNREAD_WITHIN_A_STRING if id(node) in within else PUT_TOGETHER
                if any(isinstance(arg, unread) for arg in texts):
                    yield f"{path.relative_to(source)}:{node.lineno}"


def english_alone(source: Path) -> Iterator[str]:
    """Yields where a command says a sentence to people that is not marked, and so is English in every language."""
    for path in sorted((*source.glob("cli/**/*.py"), *source.glob("client/**/*.py"))):
        if any(path.match(pattern) for pattern in FOR_PROGRAMS):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in SAYING:
                yield from (
                    f"{path.relative_to(source)}:{arg.lineno}: {words}"
                    for arg in node.args
                    if TWO_WORDS.search(words := _own_words(arg)) and not COMMAND.match(words.strip())
                )


def _own_words(node: ast.expr) -> str:
    """Returns the text that stands in the code itself, and '' for what comes from elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=pieces):
            return "".join(_own_words(piece) or "…" for piece in pieces)
    return ""


def _messages(catalogue: Catalog) -> list[Any]:
    return [message for message in catalogue if message.id]


def _forms(text: Any) -> tuple[str, ...]:
    return tuple(text) if isinstance(text, tuple | list) else (text,)


def _first(msgid: Any) -> str:
    return _forms(msgid)[0]


def _name_of(message: Any) -> str:
    return _first(message.id)
