"""An empty database as a server makes it at its first start: made once, and copied for the stories of one pytest process.

To make one takes half of what it costs to start a server. What a first start does is told where none is copied: in
`tests/http/server_process.py`, and by every world that is not warm.
"""

from pathlib import Path

from tests.ready_databases import sqlite_image


def give_database(home: Path) -> None:
    """Nothing, where the server has been before."""
    if home.exists():
        return
    home.mkdir(mode=0o700, parents=True)
    file = home / "fleet.db"
    file.touch(mode=0o600)
    file.write_bytes(sqlite_image())
