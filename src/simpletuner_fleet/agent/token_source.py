"""Reads the worker's token, and picks up a rotated one without a restart."""

from pathlib import Path

from simpletuner_fleet.core.errors import InvalidToken
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.worker_errors import TokenFileError


class TokenSource:
    """Provides a token that is given outright or read from a file.

    The file is read again on SIGHUP and, if it has changed, when the token is rejected or rotated.
    """

    def __init__(self, given: str | None, file: Path) -> None:
        self._file = file
        self._stamp = self._file_stamp()
        self._token = given or self._read_file()
        if not self._token:
            raise TokenFileError(self._why_nothing())
        wrong = tokens.complaint(self._token, tokens.WORKER)
        if wrong:
            raise InvalidToken(f"Invalid token: {wrong}.")

    @property
    def token(self) -> str:
        return self._token

    @property
    def may_change(self) -> bool:
        return self._file.exists()

    def reload(self, force: bool = False) -> bool:
        """Returns True if there is another token now."""
        stamp = self._file_stamp()
        if not force and stamp == self._stamp:
            return False
        self._stamp = stamp
        fresh = self._read_file()
        if not fresh or fresh == self._token or tokens.complaint(fresh, tokens.WORKER):
            return False
        self._token = fresh
        return True

    def _read_file(self) -> str:
        try:
            return self._file.read_text("ascii", "replace").strip()
        except OSError:
            return ""

    def _why_nothing(self) -> str:
        try:
            self._file.read_bytes()
        except OSError as error:
            return f"The token file {self._file} cannot be read: {error.strerror}."
        return f"The token file {self._file} is empty."

    def _file_stamp(self) -> tuple[int, int] | None:
        try:
            status = self._file.stat()
        except OSError:
            return None
        return (status.st_mtime_ns, status.st_ino)
