"""`./dev guide` builds the guide: generated tables into the English Markdown, then the pages that the server shows.

With `--check` it only says what is not up to date. `--translated FILE…` notes that these translations say what their
English pages say now.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from devtools.guide.site import built_files
from devtools.guide.source import Page
from devtools.guide.translations import findings, stamp


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--translated"]:
        for name in arguments[1:]:
            stamp(Page(Path(name).resolve()))
    elif arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    wrong = findings()
    if not wrong:
        built = built_files()
        stale = [
            path
            for path, text in built.items()
            if not path.exists() or path.read_text(encoding="utf-8") != text
        ]
        if arguments == ["--check"]:
            wrong += [f"{path.name} is not what the sources make of it: run ./dev guide" for path in stale]
        else:
            for path in stale:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(built[path], encoding="utf-8")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
