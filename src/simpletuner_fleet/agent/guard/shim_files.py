"""Writes into the attempt's folder, on a disk that may be full, and meets by the socket in there whoever knows its key.

It is part of the shim: standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


GREETING_TIMEOUT_S = 0.5
MAX_GREETING_BYTES = 1024
ACCEPT_PAUSE_S = 0.05


def complain(text: str) -> None:
    """Writes a complaint where somebody may look for it.

    That file may lie on the same full disk, which must not end the guard.
    """
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"{text}\n".encode(errors="replace"))


def note(write: Callable[[str, dict[str, Any]], None], name: str, content: dict[str, Any]) -> None:
    try:
        write(name, content)
    except OSError as error:
        complain(f"cannot write {name}: {error}")


def note_in_place(of: str, name: str, content: dict[str, Any]) -> None:
    """Writes durably, on a full disk in place of a file of its own that is needed no more: it has room already."""
    try:
        write_durably(name, content)
    except OSError as error:
        complain(f"cannot write {name}: {error}")
        note(lambda last, known: write_over(of, last, known), name, content)


def write_over(of: str, name: str, content: dict[str, Any]) -> None:
    fd = os.open(of, os.O_WRONLY)
    try:
        text = json.dumps(content).encode()
        if os.write(fd, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, len(text))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(of, name)


def keep_own_errors() -> None:
    try:
        errors = os.open("shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return
    os.dup2(errors, 2)
    os.close(errors)


def write_durably(name: str, content: dict[str, Any]) -> None:
    """Writes to the working folder, whole or not at all, also across a power cut."""
    write_whole(name, content, os.fsync)
    folder = os.open(".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_whole(
    name: str, content: dict[str, Any], before_rename: Callable[[int], None] = lambda fd: None
) -> None:
    temporary = f".{name}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        text = json.dumps(content).encode()
        if os.write(fd, text) != len(text):  # a disk that is nearly full takes a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        before_rename(fd)
    finally:
        os.close(fd)
    os.rename(temporary, name)


def listen() -> socket.socket:
    """Binds the socket by its bare name in the working folder: a Unix socket's path may have 107 bytes only. It is
    named once somebody listens: a new agent knows by it that this attempt was begun."""
    unlink(".shim.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(".shim.sock")
    listener.listen(4)
    os.rename(".shim.sock", "shim.sock")
    return listener


def met(listener: socket.socket, key: str) -> socket.socket | None:
    """Returns the connection of a new agent; None for anybody else, and where this machine has no descriptor for it:
    whoever waits there is met in a moment."""
    try:
        stranger, _ = listener.accept()
    except OSError as error:
        complain(f"cannot meet a new agent: {error}")
        time.sleep(ACCEPT_PAUSE_S)
        return None
    if key and not _knows(stranger, key):
        stranger.close()
        return None
    return stranger


def _knows(stranger: socket.socket, key: str) -> bool:
    """Returns whether a new agent shows the key, which lies where no job can read it.

    A job may find the socket where it runs as the agent's own user.
    """
    stranger.settimeout(GREETING_TIMEOUT_S)
    try:
        line = stranger.recv(MAX_GREETING_BYTES)
        return line.endswith(b"\n") and bool(json.loads(line) == {"do": "greet", "key": key})
    except (OSError, ValueError):
        return False


def unlink(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)


def claim() -> bool:
    """Returns False if this attempt was given up while the order was on its way: a later agent has claimed it."""
    try:
        os.close(os.open("begun", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    except OSError as error:
        complain(f"cannot write begun: {error}")
    return True
