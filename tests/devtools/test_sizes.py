"""Files and folders stay small enough to be seen as a whole: five hundred lines, about fifteen files side by side."""

import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MOST_LINES = 500
MOST_SIDE_BY_SIDE = 16
CODE = (".py", ".js")
TREES = ("src/", "tests/", "devtools/", "bench/", "gpu/")
COPIED = "vendor"


def sources() -> list[Path]:
    """Returns every file of code that git knows of or would add, but for what was written by others."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *TREES]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    paths = (Path(name) for name in names)
    return [
        path
        for path in paths
        if path.suffix in CODE and COPIED not in path.parts and (ROOT / path).is_file()
    ]


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_folder_has_more_files_side_by_side_than_the_limit() -> None:
    side_by_side = Counter(str(path.parent) for path in sources() if path.name != "__init__.py")
    assert {folder: files for folder, files in side_by_side.items() if files > MOST_SIDE_BY_SIDE} == {}
