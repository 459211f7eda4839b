"""Manages the worker's folder: who this worker is, and everything it holds for its attempts."""

import contextlib
import fcntl
import os
import re
import secrets
import stat
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Self

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from simpletuner_fleet.core.worker_errors import StateDirError, StateDirInUse
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.job_trees import remove_tree

DELIVERED = "delivered"
JOB = "job"
KNOWN_ATTEMPTS = 64
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
"""Never where a job laid a link."""
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def default_state_dir(worker_name: str) -> Path:
    return Path.home() / ".simpletuner" / "worker" / checked_id(worker_name)


class AttemptDir(Struct, frozen=True, dict=True):
    """Names the files and folders of one attempt. A start asks for them many times, so each name is made once."""

    path: Path

    @property
    def attempt_id(self) -> str:
        return self.path.name

    @cached_property
    def order_file(self) -> Path:
        return self.path / "order.json"

    @cached_property
    def output_log(self) -> Path:
        return self.path / "output.log"

    @property
    def job_dir(self) -> Path:
        """Returns what belongs to the job; beside it lies what is the worker's, which no job touches."""
        return self._job_folders.get(JOB) or self._look_for_job_dir()

    @cached_property
    def _job_folders(self) -> dict[str, Path]:
        """By name, once they are there."""
        return {}

    def _look_for_job_dir(self) -> Path:
        own = self.job_dir_for_new()
        if not own.is_dir():
            return self.path  # as an agent of an earlier version left it
        self._job_folders[JOB] = own
        return own

    def job_dir_for_new(self) -> Path:
        return self.path / JOB

    @property
    def output_dir(self) -> Path:
        return self._folder("output")

    @property
    def config_dir(self) -> Path:
        return self._folder("config")

    @property
    def home_dir(self) -> Path:
        return self._folder("home")

    @property
    def temporary_dir(self) -> Path:
        return self._folder("tmp")

    def _folder(self, name: str) -> Path:
        job = self.job_dir
        if not self._job_folders:
            return job / name
        return self._job_folders.get(name) or self._job_folders.setdefault(name, job / name)

    def folders_for_new(self) -> list[Path]:
        """Returns all that stands behind a wall, and what it stands in."""
        job = self.job_dir_for_new()
        return [self.path, job, *(job / name for name in ("output", "config", "home", "tmp"))]

    @property
    def has_trainer(self) -> bool:
        """Tells whether it has or had one: the shim accepts connections then, and writes so where the disk has room."""
        return any((self.path / name).exists() for name in ("trainer.json", "exit.json", "shim.sock"))

    @property
    def was_begun(self) -> bool:
        """Tells whether somebody has claimed it; a full disk keeps no shim from that."""
        return self.has_trainer or (self.path / "begun").exists()

    def claim(self) -> bool:
        """Returns True to the first who asks: a shim before it starts the trainer, an agent before it gives one up."""
        try:
            os.close(os.open(self.path / "begun", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def save_order(self, order: JobSubmit) -> None:
        """Writes it whole or not at all.

        It holds the upload token, hence nobody else may read it; of secrets it holds the names alone.
        """
        names = dict.fromkeys(order.secrets, "") if order.secrets else UNSET
        write_whole(self.order_file, msgspec.json.encode(replace(order, secrets=names)))

    def retire(self) -> None:
        """Marks the attempt as done: its token is removed first, then a restart is told not to take it up.

        A disk that takes no order without the token keeps none: only what is marked is removed, to make room there.
        """
        order = self.load_order()
        if order and order.upload_token is not UNSET:
            try:
                self.save_order(replace(order, upload_token=UNSET))
            except OSError:
                self.order_file.unlink()
        with contextlib.suppress(OSError):
            (self.path / DELIVERED).open("x").close()  # once: its age tells how long it has been so

    @property
    def retired(self) -> bool:
        return (self.path / DELIVERED).exists()

    def load_order(self) -> JobSubmit | None:
        """Returns None where the agent died before it had written one, or the disk has lost it."""
        try:
            return msgspec.json.decode(self.order_file.read_bytes(), type=JobSubmit)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None


class StateDir:
    """Opens the worker's folder for one agent at a time.

    The lock ends with the process, however that ends.
    """

    def __init__(self, path: Path, lock: int, home: str) -> None:
        self.path = path
        self.home = home
        self._lock = lock
        self._attempt = lru_cache(KNOWN_ATTEMPTS)(
            lambda attempt_id: AttemptDir(path / "attempts" / checked_id(attempt_id))
        )

    @classmethod
    def open(cls, path: Path) -> Self:
        path = path.expanduser().absolute()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_if_open_to_others(path)
            lock = _take_lock(path / "lock")
        except OSError as error:
            raise StateDirError(f"The state folder {path} cannot be used: {error.strerror}.") from error
        for name in ("attempts", "spool"):
            (path / name).mkdir(mode=0o700, exist_ok=True)
        return cls(path, lock, _home_id(path / "home"))

    def count_start(self) -> int:
        """Tells which start of an agent in this folder this is; 0 where the count is lost."""
        file = self.path / "starts"
        try:
            count = int(file.read_text(encoding="ascii")) + 1 if file.exists() else 1
            write_whole(file, str(count).encode())
        except (OSError, ValueError):
            return 0
        return count

    def shim_key(self) -> str:
        """Returns the key by which a shim knows the next agent of this folder; jobs cannot read it."""
        file = self.path / "shim_key"
        with contextlib.suppress(FileNotFoundError):
            stored_key = file.read_text("ascii", "replace").strip()
            if stored_key:
                return stored_key
        key = secrets.token_hex(32)
        write_whole(file, key.encode())
        return key

    @property
    def spool_dir(self) -> Path:
        return self.path / "spool"

    def attempt(self, attempt_id: str) -> AttemptDir:
        return self._attempt(attempt_id)

    def create_attempt(self, attempt_id: str) -> AttemptDir:
        attempt = self.attempt(attempt_id)
        for folder in (attempt.path, attempt.job_dir_for_new()):
            folder.mkdir(mode=0o700, exist_ok=True)
        for folder in (attempt.output_dir, attempt.config_dir):
            folder.mkdir(mode=0o700, exist_ok=True)
        return attempt

    def attempts(self) -> list[AttemptDir]:
        """Returns all that are here. A folder that cannot be an attempt's is somebody else's, such as a copy."""
        folders = sorted((self.path / "attempts").iterdir())
        return [AttemptDir(path) for path in folders if ID.fullmatch(path.name) and path.is_dir()]

    def remove_attempt(self, attempt_id: str) -> None:
        """Removes the attempt's folder; its token goes first, in case the rest cannot be removed."""
        attempt = self.attempt(attempt_id)
        attempt.order_file.unlink(missing_ok=True)
        remove_tree(attempt.path)

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_whole(path: Path, content: bytes) -> None:
    temporary = f"{path.parent}/.{path.name}.tmp"
    try:
        descriptor = os.open(temporary, NEW_FILE, 0o600)
    except FileExistsError:
        os.unlink(temporary)
        descriptor = os.open(temporary, NEW_FILE, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
    os.rename(temporary, path)


def checked_id(name: str) -> str:
    """Returns the name if it is only a name: an attempt's id becomes the name of a folder that is deleted later."""
    if not ID.fullmatch(name):
        raise StateDirError(
            f"{name!r} cannot name a folder.",
            next_step="Use letters, digits, '.', '_' and '-', beginning with a letter or a digit.",
        )
    return name


def _refuse_if_open_to_others(path: Path) -> None:
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise StateDirError(
            f"The state folder {path} belongs to another user.",
            next_step="Choose a folder of your own with --work-dir.",
        )
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise StateDirError(
            f"Others may write to the state folder {path}.", next_step=f"Run: chmod 700 '{path}'"
        )
    path.chmod(0o700)


def _take_lock(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StateDirInUse(f"Another worker is using the state folder {path.parent}.") from None
    return lock


def _home_id(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        stored_id = path.read_text("ascii", "replace").strip()
        if ID.fullmatch(stored_id):
            return stored_id
    home = f"h_{secrets.token_hex(12)}"
    write_whole(path, home.encode())
    return home
