"""Looks for secrets where they must not be: by their values, or by the form that all tokens of ours have.

`python -m devtools.canaries FOLDER` looks through what tests have left behind: each token that lies anywhere but in a
private file made for it is told, by its kind alone.
"""

import base64
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from simpletuner_fleet.core.people import tokens

KINDS = (tokens.WORKER, tokens.API, tokens.UPLOAD, tokens.SESSION)
SHAPED = re.compile(rb"\b(?:wt|st|ut|ss)_[0-9A-Za-z]{49}\b")
MADE_FOR_TOKENS = ("admin_token", "local_worker_token", "worker_token", "credentials.json", "order.json")
"""The last is that of an attempt whose agent died: the next agent takes the token out of it."""
OF_THE_JOB = "output.log"
"""What a job prints of its own is its own affair, on its own machine."""
MAX_FILE_BYTES = 512 * 1024 * 1024


Canaries = Mapping[str, str | bytes]
"""Secrets by their names."""


class Sighting(Struct, frozen=True, order=True):
    secret: str
    """Its name, never its value."""
    place: str
    private: bool = False
    """It is a file that its owner alone may read."""


@lru_cache
def spellings(value: str | bytes) -> tuple[bytes, ...]:
    """A value as it may be written down: plain, quoted, in base64, in hexadecimal."""
    raw = value if isinstance(value, bytes) else value.encode()
    written = (
        quote(raw, safe="").encode(),
        base64.b64encode(raw),
        base64.urlsafe_b64encode(raw),
        raw.hex().encode(),
    )
    return tuple({raw, *(one.rstrip(b"=") for one in written)})


def seen_in(content: bytes, place: str, canaries: Canaries, *, private: bool = False) -> Iterator[Sighting]:
    for name, value in canaries.items():
        if any(spelling in content for spelling in spellings(value)):
            yield Sighting(name, place, private)


def files_under(folder: Path) -> Iterator[tuple[Path, bytes, bool]]:
    """Every file with its content, and whether it is private; what vanishes meanwhile is left out."""
    for path in sorted(folder.rglob("*")):
        try:
            about = path.lstat()
            if stat.S_ISREG(about.st_mode) and about.st_size <= MAX_FILE_BYTES:
                yield path, path.read_bytes(), not about.st_mode & 0o077
        except OSError:
            continue


def seen_on_disk(folder: Path, canaries: Canaries) -> set[Sighting]:
    """By the paths below the folder."""
    return {
        sighting
        for path, content, private in files_under(folder)
        for sighting in seen_in(content, str(path.relative_to(folder)), canaries, private=private)
    }


def seen_in_processes(canaries: Canaries, proc: Path = Path("/proc")) -> set[Sighting]:
    """In the arguments and the environment of everything that runs, by the name of the program."""
    sightings: set[Sighting] = set()
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            argv, environment = _program_and_environment(entry)
        except OSError:
            continue
        words = argv.replace(b"\0", b" ").decode(errors="replace")
        sightings |= set(seen_in(argv, f"argv: {words[:200]}", canaries))
        sightings |= set(seen_in(environment, f"environment: {words[:200]}", canaries))
    return sightings


def _program_and_environment(process: Path) -> tuple[bytes, bytes]:
    """Returns both of one program: while a process becomes another one, it has no name, or the one before."""
    argv = (process / "cmdline").read_bytes()
    while True:
        before, environment = argv, (process / "environ").read_bytes()
        argv = (process / "cmdline").read_bytes()
        if argv == before:
            return argv, environment


def tokens_left_in(folder: Path) -> list[Sighting]:
    """Every token of ours, whoever made it, that lies where none should."""
    return sorted(
        {
            Sighting(token[:2].decode(), str(path.relative_to(folder)), private)
            for path, content, private in files_under(folder)
            for token in SHAPED.findall(content)
            if tokens.complaint(token.decode(), token[:2].decode()) is None
            and not (private and path.name in MADE_FOR_TOKENS)
            and path.name != OF_THE_JOB
        }
    )


def main(arguments: Iterable[str]) -> int:
    sightings = [one for folder in arguments for one in tokens_left_in(Path(folder))]
    for one in sightings:
        print(f"a token of the kind {one.secret}_ in {one.place}")
    print(f"{len(sightings)} places with a token that should not be there")
    return 1 if sightings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
