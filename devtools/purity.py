"""Finds clock reads, chance, I/O and async in the files that must stay pure.

The import contracts see imports; this also sees calls (`datetime.now`, `open`) and `async def`.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "simpletuner_fleet"
PURE_PATHS = (
    PACKAGE / "core",
    *(PACKAGE / "agent" / f"{name}.py" for name in ("inbox", "actions", "attempts/endings")),
)

BANNED_MODULES = frozenset(
    {
        *("asyncio", "concurrent", "multiprocessing", "signal", "subprocess", "threading"),
        *("httpx2", "socket", "ssl", "urllib"),
        *("io", "os", "pathlib", "shutil", "sqlite3", "tempfile"),
        *("logging", "random", "secrets", "time", "uuid"),
    }
)
BANNED_CALLS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint", "__import__"})
CLOCK_CLASSES = frozenset({"datetime", "date"})
CLOCK_READS = frozenset({"now", "utcnow", "today"})


def impurities_in_text(text: str) -> list[tuple[int, str]]:
    """Returns every (line, what is wrong) in one file's source, in order."""
    return sorted(
        (node.lineno, complaint)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt | ast.expr)
        for complaint in _complaints(node)
    )


def impure_lines(paths: tuple[Path, ...] = PURE_PATHS) -> list[str]:
    """Returns `file:line: complaint` for every impurity under these paths, and a complaint for a path that is not there."""
    missing = [
        f"{path}: is not there; name the file that took its place in devtools/purity.py"
        for path in paths
        if not path.exists()
    ]
    return missing + [
        f"{file}:{line}: {complaint}"
        for path in paths
        for file in _python_files(path)
        for line, complaint in impurities_in_text(file.read_text(encoding="utf-8"))
    ]


def _python_files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.rglob("*.py"))
    return [path] if path.exists() else []


def _complaints(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (f"imports {alias.name}" for alias in names if _is_banned_module(alias.name))
        case ast.ImportFrom(module=str(module), level=0) if _is_banned_module(module):
            yield f"imports from {module}"
        case ast.AsyncFunctionDef(name=name):
            yield f"async def {name}"
        case ast.Await() | ast.AsyncFor() | ast.AsyncWith():
            yield "awaits"
        case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
            yield f"calls {name}()"
        case ast.Attribute(value=owner, attr=attr) if attr in CLOCK_READS and _is_clock_class(owner):
            yield f"reads the clock through {ast.unparse(node)}"


def _is_banned_module(name: str) -> bool:
    return name.partition(".")[0] in BANNED_MODULES


def _is_clock_class(owner: ast.expr) -> bool:
    match owner:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in CLOCK_CLASSES
    return False


def main() -> int:
    """Prints what is impure; the exit status says whether anything was."""
    complaints = impure_lines()
    for complaint in complaints:
        print(complaint)
    if complaints:
        print("Pure files take the time, ids and chance as arguments. The shell does the rest.")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
