"""Sentences that stand in the code without a mark: errors, what to do about them, and the headings of tables."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT_ERROR = "FleetError"
TOLD_TO_CLIENTS = (
    "core/*.py",
    "http/**/*.py",
    "orchestrator/*.py",
    "store/memory.py",
    "store/operations*.py",
)
LEFT_ENGLISH = frozenset(
    {
        *("http/server/tls.py", "http/server/sockets.py", "http/access/networks.py"),
        *("http/api/workers/log_intake.py", "http/api/workers/uploads.py", "http/api/jobs/datasets.py"),
        *("inventory.py", "orchestrator/metrics.py", "report.py", "checkpoint.py", "job.py"),
    }
)
"""Errors of the server's own start, and of what programs send to each other: logs have them."""
LEAST_LETTERS = 8
Classes = dict[str, ast.ClassDef]


def of_errors(source: Path) -> list[str]:
    """The docstring of each kind of error is its title; its next step is told beside it."""
    classes = _error_classes(source)
    return sorted({sentence for found in classes.values() for sentence in _of_class(found) if sentence})


def of_details(source: Path) -> list[str]:
    """What errors say when they are raised, with a named blank for each value."""
    errors = frozenset(_error_classes(source))
    told: set[str] = set()
    for pattern in TOLD_TO_CLIENTS:
        for path in sorted(source.glob(pattern)):
            if not any(path.match(left) for left in LEFT_ENGLISH):
                told.update(_of_calls(ast.parse(path.read_text("utf-8")), errors))
    return sorted(told)


def of_headings(source: Path) -> list[str]:
    """`Column("TITLE", …)`, `field("name", "TITLE")`, and `field("name")`, whose title is the name in capitals."""
    told: set[str] = set()
    for path in sorted(source.glob("cli/*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                told.update(_heading(_last_name(node.func), [_sentence(arg) for arg in node.args[:2]]))
    return sorted(told)


def _heading(function: str, given: list[str]) -> Iterator[str]:
    if function == "Column" and given and given[0]:
        yield given[0]
    elif function == "field" and given and given[0]:
        yield next(filter(None, given[1:]), given[0].upper())


def _error_classes(source: Path) -> Classes:
    trees = (ast.parse(path.read_text("utf-8")) for path in sorted(source.rglob("*.py")))
    classes = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return {name: node for name, node in classes.items() if _is_error(name, classes)}


def _is_error(name: str, classes: Classes) -> bool:
    if name == ROOT_ERROR:
        return True
    return name in classes and any(_is_error(_last_name(base), classes) for base in classes[name].bases)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _of_class(found: ast.ClassDef) -> Iterator[str]:
    if title := ast.get_docstring(found):
        yield title.strip()
    for node in found.body:
        if isinstance(node, ast.Assign) and [_last_name(target) for target in node.targets] == ["next_step"]:
            yield _sentence(node.value)


def _of_calls(tree: ast.Module, errors: frozenset[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (_last_name(node.func) in errors or _is_made_here(node.func)):
            steps = [keyword.value for keyword in node.keywords if keyword.arg == "next_step"]
            for value in (*node.args[:1], *steps):
                sentence = _sentence(value)
                if len(re.findall(r"[A-Za-z]", re.sub(r"%\(\w+\)s", "", sentence))) >= LEAST_LETTERS:
                    yield sentence


def _is_made_here(function: ast.expr) -> bool:
    """`super().__init__(…)`: an error that writes its own sentence."""
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
    text, taken = "", dict[str, str]()
    for part in value.values:
        if isinstance(part, ast.FormattedValue):
            text += f"%({_blank(part.value, taken)})s"
        elif isinstance(part, ast.Constant):
            text += str(part.value).replace("%", "%%")
    return text


def _blank(value: ast.expr, taken: dict[str, str]) -> str:
    """A name for the value, the same for the same value and another for another."""
    name = next(
        (
            found.attr if isinstance(found, ast.Attribute) else found.id
            for found in ast.walk(value)
            if isinstance(found, ast.Attribute) or (isinstance(found, ast.Name) and found.id != "len")
        ),
        "value",
    )
    base = name.strip("_").lower()
    shown, blank, number = ast.unparse(value), base, 2
    while taken.get(blank, shown) != shown:
        blank, number = f"{base}{number}", number + 1
    taken[blank] = shown
    return blank
