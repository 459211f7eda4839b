"""Opens what a job has written. A job may create links, and the agent may read more than the job."""

import contextlib
import errno
import os
import re
import stat
import sys
from pathlib import Path
from typing import BinaryIO

MOST_READ_BYTES = 256 * 2**20
LACKING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What this machine lacks for now, as on a full disk: the next try may end it."""
PASSING = LACKING | {errno.EIO, errno.ESTALE}
"""The same, and what may be the trouble of a disk that is away for a moment, or of one file for good."""
OUTPUT = re.compile(r"j_[A-Za-z0-9_]+-\d+", re.ASCII)


class LeadsOut(FileNotFoundError):
    """A link of the job's leads out of its folder: for the agent nothing is there, however often it looks."""


def open_job_file(path: Path) -> BinaryIO:
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


def read_job_file(path: Path) -> bytes:
    """Reads all of it. It never waits for a pipe of that name, and reads no more than there is room for."""
    with open_job_file(path) as file:
        content = file.read(MOST_READ_BYTES + 1)
    if len(content) > MOST_READ_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def open_descriptor(path: Path, how: int) -> int:
    """Opens a regular file in the attempt's own folder, wherever links lead; any other is not there for the agent.

    What was opened is looked at, not its name: a link that is laid between a look and the opening changes nothing.
    """
    descriptor = os.open(path, how | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(errno.ENOENT, "it is no regular file", str(path))
        _refuse_outside(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_outside(descriptor: int, path: Path) -> None:
    own = own_folder(path)
    if own and sys.platform == "linux":
        real = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not real.is_relative_to(Path(os.path.realpath(own.parent), own.name)):
            raise LeadsOut(errno.ENOENT, "it leads out of the job's folder", str(path))


def replace_job_file(path: Path, content: bytes) -> None:
    """Writes a file of the job's anew, never in place: others may share what it is now. No link is written through."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    new = f".{path.name}.new"
    try:
        _refuse_outside(folder, path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(new, how, 0o644, dir_fd=folder), "wb") as file:
            file.write(content)
        os.replace(new, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def own_folder(path: Path) -> Path | None:
    """Finds the attempt's own folder: `…/attempts/ID/job`, or `…/JOB-ATTEMPT` for results at a full path of the config.

    The latter a job may replace by a link, which therefore counts as nothing. It is None for what is no job's.
    """
    for folder in reversed(path.parents):
        if OUTPUT.fullmatch(folder.name) or (
            folder.name == "job" and folder.parent.parent.name == "attempts"
        ):
            return folder
    return None


def hand_over(folder: Path, uid: int, gid: int) -> None:
    """Gives a folder that the worker has just made to a job's user; one that somebody else has put there, to nobody."""
    descriptor = _opened_own(folder)
    try:
        os.fchown(descriptor, uid, gid)
    finally:
        os.close(descriptor)


def make_output(folder: Path) -> None:
    """Makes an attempt's own folder at a full path. Raises FileExistsError where somebody else has put something there."""
    folder.mkdir(parents=True, exist_ok=True)
    os.close(_opened_own(folder))


def _opened_own(folder: Path) -> int:
    """Raises FileExistsError unless it is a folder of the worker's."""
    others = FileExistsError(errno.EEXIST, "it is somebody else's already", str(folder))
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise (others if error.errno in (errno.ENOTDIR, errno.ELOOP) else error) from None
    if os.fstat(descriptor).st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    raise others
