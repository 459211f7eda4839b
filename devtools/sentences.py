"""Sentences that stand in the code without a mark: what an error is called, and what to do about it."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT_ERROR = "FleetError"


def of_errors(source: Path) -> list[str]:
    """The docstring of each kind of error is its title; its next step is told beside it."""
    classes = {found.name: found for path in sorted(source.rglob("*.py")) for found in _classes(path)}
    return sorted(
        {
            sentence
            for found in classes.values()
            if _is_error(found.name, classes)
            for sentence in _sentences(found)
        }
    )


def _classes(path: Path) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ClassDef))


def _is_error(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    if name == ROOT_ERROR:
        return True
    return name in classes and any(_is_error(_last_name(base), classes) for base in classes[name].bases)


def _last_name(base: ast.expr) -> str:
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def _sentences(found: ast.ClassDef) -> Iterator[str]:
    if title := ast.get_docstring(found):
        yield title.strip()
    for node in found.body:
        if isinstance(node, ast.Assign) and [_last_name(target) for target in node.targets] == ["next_step"]:
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                yield node.value.value
