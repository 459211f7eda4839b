"""Sentences that stand in the code without a mark: errors, what to do about them, and the headings of tables."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOT_ERROR = "FleetError"
SENT_TO_CLIENTS = (
    *("core/**/*.py", "http/**/*.py", "orchestrator/**/*.py"),
    *("engine/**/*.py", "storage/**/*.py", "queries/**/*.py"),
    *("store/memory/store.py", "store/sql/people/accounts.py", "store/writing/live_tx.py"),
    *("store/backup/*.py", "cli/nouns/backup.py"),
    *("providers/forms.py", "delivery/apprise/*.py", "providers/kubernetes/*.py", "providers/ssh/*.py"),
)
LEFT_ENGLISH = frozenset(
    {
        *("http/server/tls.py", "http/server/sockets.py", "http/access/networks.py"),
        *("http/api/workers/log_intake.py", "http/api/workers/uploads.py", "http/api/jobs/datasets.py"),
        *("inventory.py", "storage/metrics/points.py", "report.py", "checkpoint.py", "job.py"),
    }
)
"""Errors of the server's own start, and of what programs send to each other: logs have them."""
FEWEST_LETTERS = 8
Classes = dict[str, ast.ClassDef]


def error_sentences(source: Path) -> list[str]:
    """Returns the title of each kind of error, which is its docstring, and the next step that stands beside it."""
    classes = _error_classes(source)
    return sorted(
        {sentence for error in classes.values() for sentence in _class_sentences(error) if sentence}
    )


def detail_sentences(source: Path) -> list[str]:
    """Returns what errors say when they are raised, with a named placeholder for each value."""
    errors = frozenset(_error_classes(source))
    sentences: set[str] = set()
    for pattern in SENT_TO_CLIENTS:
        for path in sorted(source.glob(pattern)):
            if not any(path.match(pattern) for pattern in LEFT_ENGLISH):
                sentences.update(_call_sentences(ast.parse(path.read_text("utf-8")), errors))
    return sorted(sentences)


def heading_sentences(source: Path) -> list[str]:
    """Returns the titles of columns.

    They are `Column("TITLE", …)`, `field("name", "TITLE")`, and `field("name")`, whose title is the name in capitals.
    """
    sentences: set[str] = set()
    for path in sorted(source.glob("cli/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                sentences.update(_heading(_last_name(node.func), [_sentence(arg) for arg in node.args[:2]]))
    return sorted(sentences)


def _heading(function: str, arguments: list[str]) -> Iterator[str]:
    if function == "Column" and arguments and arguments[0]:
        yield arguments[0]
    elif function == "field" and arguments and arguments[0]:
        yield next(filter(None, arguments[1:]), arguments[0].upper())


@lru_cache(maxsize=1)
def _error_classes(source: Path) -> Classes:
    trees = (ast.parse(path.read_text("utf-8")) for path in sorted(source.rglob("*.py")))
    classes = {node.name: node for tree in trees for node in _classes_in(tree)}
    return {name: node for name, node in classes.items() if _is_error(name, classes)}


def _classes_in(block: ast.AST) -> Iterator[ast.ClassDef]:
    """Yields every class below, without a look at the expressions, which hold none and are most of a tree."""
    for child in ast.iter_child_nodes(block):
        if isinstance(child, ast.ClassDef):
            yield child
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _classes_in(child)


def _is_error(name: str, classes: Classes) -> bool:
    if name == ROOT_ERROR:
        return True
    return name in classes and any(_is_error(_last_name(base), classes) for base in classes[name].bases)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _class_sentences(error: ast.ClassDef) -> Iterator[str]:
    if title := ast.get_docstring(error):
        yield title.strip()
    for node in error.body:
        if isinstance(node, ast.Assign) and [_last_name(target) for target in node.targets] == ["next_step"]:
            yield _sentence(node.value)


def _call_sentences(tree: ast.Module, errors: frozenset[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (_last_name(node.func) in errors or _is_own_sentence(node.func)):
            steps = [keyword.value for keyword in node.keywords if keyword.arg == "next_step"]
            for value in (*node.args[:1], *steps):
                sentence = _sentence(value)
                if len(re.findall(r"[A-Za-z]", re.sub(r"%\(\w+\)s", "", sentence))) >= FEWEST_LETTERS:
                    yield sentence


def _is_own_sentence(function: ast.expr) -> bool:
    """Tells whether this is `super().__init__(…)`: an error that writes its own sentence."""
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "__init__"
        and isinstance(function.value, ast.Call)
        and _last_name(function.value.func) == "super"
    )


def _sentence(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value).replace("%", "%%") if isinstance(value.value, str) else ""
    if not isinstance(value, ast.JoinedStr):
        return ""
    text, names = "", dict[str, str]()
    for part in value.values:
        if isinstance(part, ast.FormattedValue):
            text += f"%({_placeholder(part.value, names)})s"
        elif isinstance(part, ast.Constant):
            text += str(part.value).replace("%", "%%")
    return text


def _placeholder(value: ast.expr, names: dict[str, str]) -> str:
    """Returns a name for the value, the same for the same value and another for another."""
    name = next(
        (
            node.attr if isinstance(node, ast.Attribute) else node.id
            for node in ast.walk(value)
            if isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and node.id != "len")
        ),
        "value",
    )
    base = name.strip("_").lower()
    shown, placeholder, number = ast.unparse(value), base, 2
    while names.get(placeholder, shown) != shown:
        placeholder, number = f"{base}{number}", number + 1
    names[placeholder] = shown
    return placeholder
