"""How a log is noted whose job has filled the disk. Run where the space is small; prints what was seen as JSON."""

import json
import sys
from pathlib import Path

from simpletuner_fleet.agent.ship.logs.log_journal import NotRecorded
from tests.agent.attempts.full_disk_story import PAGE, fill_pages
from tests.agent.log_files import all_bytes, scanned, stream_of

LINE = b"x" * 31 + b"\n"


def noted(folder: Path, *, lines_before: int, starts_again: bool) -> str:
    """Returns whether all of a log was noted of which so many records were made before the disk was full."""
    folder.mkdir()
    log, filler = folder / "output.log", folder / "filler"
    with log.open("ab", buffering=0) as output:
        output.write(LINE)
        stream = stream_of(log)
        for at in range(lines_before):
            scanned(stream, float(at))
            output.write(LINE)
        filler.mkdir()
        fill_pages(filler, 1)  # for the line itself
        output.write(LINE)
        fill_pages(filler, 0)
    if starts_again:
        stream.close()
        stream = stream_of(log)
    try:
        scanned(stream, float(lines_before), ended=True)
        return "noted" if all_bytes(stream, ended=True) == log.read_bytes() else "cut"
    except NotRecorded as error:
        return str(error.strerror)
    finally:
        (filler / "filler").unlink()


if __name__ == "__main__":
    disk = Path(sys.argv[1])
    seen = {
        f"{before} {again}": [noted(disk / f"{before} {again}", lines_before=before, starts_again=again)]
        for before in (1, PAGE // 32, PAGE // 32 * 9)
        for again in (False, True)
    }
    print(json.dumps(seen))
