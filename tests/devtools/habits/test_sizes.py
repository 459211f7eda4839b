"""Files and folders stay small enough to be seen as a whole: five hundred lines, about fifteen files side by side."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
MOST_LINES = 500
MOST_SIDE_BY_SIDE = 16
CODE = (".py", ".js")
TREES = ("src", "tests", "devtools", "bench", "gpu")
COPIED = "vendor"


def sources() -> list[Path]:
    """Returns every file of code, but for what was written by others."""
    files = (path.relative_to(ROOT) for tree in TREES for path in (ROOT / tree).rglob("*"))
    return [path for path in files if path.suffix in CODE and COPIED not in path.parts]


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_folder_has_more_files_side_by_side_than_the_limit() -> None:
    side_by_side = Counter(str(path.parent) for path in sources() if path.name != "__init__.py")
    assert {folder: files for folder, files in side_by_side.items() if files > MOST_SIDE_BY_SIDE} == {}
