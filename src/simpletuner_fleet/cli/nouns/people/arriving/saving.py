"""Changes what is kept of log-ins, one command at a time: two that run at once forget nothing of each other."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.client import credentials
from simpletuner_fleet.client.credentials import Login, SavedLogins
from simpletuner_fleet.languages import _

OWNER_ONLY = 0o600


def keep(file: Path, url: str, login: Login, out: Output) -> None:
    """Keeps a log-in, and makes its server the current one."""
    with _alone(file, out):
        saved = credentials.read(file)
        credentials.write(file, SavedLogins(url, {**saved.servers, url: login}))


def forget(file: Path, url: str, out: Output) -> str | None:
    """Forgets the log-in of a server. Returns the server that is the current one now."""
    with _alone(file, out):
        saved = credentials.read(file)
        rest = {server: login for server, login in saved.servers.items() if server != url}
        current = saved.current if saved.current in rest else next(iter(rest), None)
        credentials.write(file, SavedLogins(current, rest))
    return current


@contextmanager
def _alone(file: Path, out: Output) -> Iterator[None]:
    """Holds the lock beside the file, which is replaced as a whole and so cannot be what is locked.

    The lock's file stays: whoever removed it could take a second lock beside that of a command that waits for it.
    A network file system may have no locks. There the change is made all the same, and the user is told.
    """
    with credentials.telling_what_cannot_be_written(file):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            text = _(
                "%(folder)s takes no locks (%(why)s): this is done without one, and may undo another login or "
                "logout of this moment",
                folder=file.parent,
                why=error.strerror or str(error),
            )
            out.say(text)
        yield
    finally:
        os.close(lock)
