"""Every file, folder, module and function that a document names is in the tree, so that a move cannot leave it behind."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "simpletuner_fleet"
FOR_USERS = {"guide.md", "trainers.md", "TUTORIAL.md", "JOB_QUEUE.md", "AUDIT.md"}
"""Paths in these are those of a worker or a server, not of our sources."""
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md",
    *sorted(
        path
        for path in (ROOT / "docs").rglob("*.md")
        if path.name not in FOR_USERS and ROOT / "docs" / "guide" not in path.parents
    ),
]
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?")
IMPORTABLE = re.compile(r"[a-z_]+(\.\w+)+")
FILE_ENDINGS = (".py", ".md", ".toml", ".yaml", ".yml", ".lock", ".sql", ".html", ".js", ".css")


@cache
def folders() -> set[str]:
    """The folders at the top of the repository and of the package: what begins with one is meant as a path."""
    return {path.name for top in (ROOT, PACKAGE) for path in top.iterdir() if path.is_dir()} - {
        "build",
        "dist",
        ".dev",
    }


def names_in(text: str) -> Iterator[str]:
    """Yields what stands in code marks and looks like a path or a module of ours."""
    for name in CODE.findall(FENCED.sub("", text)):
        first = re.split(r"[/.]", name.removeprefix("."))[0]
        is_path = PATH.fullmatch(name) and "/" in name and name.split("/")[0] in folders()
        is_file = PATH.fullmatch(name) and name.endswith(FILE_ENDINGS)
        is_module = IMPORTABLE.fullmatch(name) and first in folders() and (PACKAGE / first).is_dir()
        if is_path or is_file or is_module:
            yield name


def exists(name: str, document: Path) -> bool:
    """Whether there is such a file, folder or module, or such a definition in a module (`http/edge.Edge`)."""
    path = name.removeprefix("simpletuner_fleet/").rstrip("/")
    if any(is_there(base, path) for base in (document.parent, ROOT, PACKAGE)):
        return True
    if "/" not in path and path.endswith(FILE_ENDINGS):
        return any(fnmatchcase(one, path) for one in file_names())
    if IMPORTABLE.fullmatch(path):
        path = path.replace(".", "/", path.count(".") - 1)
    return is_module(path.replace(".", "/")) or is_definition(*path.rpartition(".")[::2])


def is_there(base: Path, path: str) -> bool:
    return any(base.glob(path)) if "*" in path else (base / path).exists()


@cache
def file_names() -> set[str]:
    return {file.name for file in PACKAGE.rglob("*")}


def is_module(path: str) -> bool:
    return (PACKAGE / f"{path}.py").is_file() or (PACKAGE / path / "__init__.py").is_file()


def is_definition(module: str, name: str) -> bool:
    files = (PACKAGE / f"{module}.py", PACKAGE / module / "__init__.py")
    definition = re.compile(
        rf"^\s*(async def|def|class|from .* import .*) ?\b{name}\b|^{name}\b", re.MULTILINE
    )
    return bool(module) and any(
        definition.search(file.read_text(encoding="utf-8")) for file in files if file.is_file()
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_in_a_document_is_in_the_tree(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert [name for name in names_in(text) if not exists(name, document)] == []


def test_a_path_that_is_not_there_is_noticed() -> None:
    there = "`core/jobs/job.py` `core/jobs/job.TERMINAL` `core/` `core.audit.AuditEntry` `sim/*.py`"
    not_there = "`core/jab.py` `core/jobs/job.NOTHING` `kore.py` `core.jib` `web/nowhere`"
    missing = [name for name in names_in(there + not_there) if not exists(name, ROOT / "X.md")]
    assert missing == ["core/jab.py", "core/jobs/job.NOTHING", "kore.py", "core.jib", "web/nowhere"]


def test_every_folder_of_the_source_is_in_the_map_and_has_tests() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    mapped = re.findall(
        r"^\| `(\w+)/` \|", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(mapped) == sorted(rooms)
    assert rooms <= {path.name for path in (ROOT / "tests").iterdir()}
