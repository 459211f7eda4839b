"""The database of an older release, and who and what is in it.

`release_4.sql.gz` is the dump of a database that the programs of commit 8e9bba4 (schema version 4) have made: a server and
a worker ran three jobs, a fourth was running and a fifth waiting when the server was killed. It is never edited.
"""

import gzip
import sqlite3
from pathlib import Path

DUMP = Path(__file__).parent / "release_4.sql.gz"
ADMIN = "st_dMDTq8uRxodio8dYWGMCnavoQpWgjiyiza7yMnBKUrd2YVlQE"
READER = "st_reOMEdpyXk1dnb1alrriq4tOHvC7nJS66WosmE7BsaS0B0hro"
WORKER = "wt_jIcsWTrrK4fozjP67GAt6UIiNDIUkUDt8k0a4cCXlLP2lBXtm"
JOBS = {
    "j_BIWVZPgo8DoG": "completed",
    "j_BIWVZIgNRkzg": "failed",
    "j_BIWVaH3EMSfb": "completed",
    "j_BIWW0IsoHsGx": "running",
    "j_BIWW4ENCjZvl": "queued",
}
RUNNING, QUEUED = "j_BIWW0IsoHsGx", "j_BIWW4ENCjZvl"


def write_database(file: Path) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with sqlite3.connect(file) as connection:
        connection.executescript(gzip.decompress(DUMP.read_bytes()).decode())
    connection.close()
