"""One name for one thing: no class name is used twice, and no local name says nothing of what it holds."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("src", "tests", "devtools", "gpu", "bench")
COPY = "client/table"
"""Drawn from the server's own classes (`./dev client`): the same things, under the same names."""
SAYS_NOTHING = {"told", "found", "wish", "wishes"}
"""Words that were once bound hundreds of times, each time to something else."""


def trees(*folders: str, with_word: str = "") -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if re.search(with_word, text):
                yield path, ast.parse(text)


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno


def test_no_two_classes_of_the_source_have_one_name() -> None:
    names = Counter(
        node.name
        for path, tree in trees("src")
        if COPY not in path.as_posix()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_names_say_what_they_hold() -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, tree in trees(*FOLDERS, with_word=rf"\b({'|'.join(SAYS_NOTHING)})\b")
        for name, line in bound_names(tree)
        if name in SAYS_NOTHING
    ]
    assert vague == []
