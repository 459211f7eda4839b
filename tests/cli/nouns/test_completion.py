"""TAB as people press it: in a real shell on a real terminal, against a server that has jobs and workers."""

import fcntl
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simpletuner_fleet.cli.commands import build_parser
from simpletuner_fleet.cli.nouns.completion import LISTS, _children
from tests.cli.conftest import FakeServer

PATIENCE_S = 60.0
ESCAPES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>78]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x07\x00]"
)
SHELLS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        ['PS1="ready> "', 'eval "$(simpletuner completion bash)"'],
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        ['PS1="ready> "', "autoload -U compinit && compinit -u", 'eval "$(simpletuner completion zsh)"'],
    ),
    "fish": (
        ["fish", "--no-config", "-i"],
        ["function fish_prompt; echo 'ready> '; end", "simpletuner completion fish | source"],
    ),
}


class Typist:
    """Types into a shell and reads what stands on its screen."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = b""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def sees(self, text: str) -> str:
        """Waits until the text appears after what was seen before."""
        until = time.monotonic() + PATIENCE_S
        while text.encode() not in ESCAPES.sub(b"", self._seen):
            left_s = until - time.monotonic()
            ready = select.select([self._descriptor], [], [], max(0.0, left_s))[0]
            assert ready, f"{text!r} never came; the screen: {self._seen[-2000:]!r}"
            chunk = os.read(self._descriptor, 65536)
            if b"\x1b[c" in chunk or b"\x1b[0c" in chunk:
                os.write(self._descriptor, b"\x1b[?62;c")  # the terminal says what it is: fish waits for that
            self._seen += chunk
        seen, self._seen = ESCAPES.sub(b"", self._seen).decode("utf-8", "replace"), b""
        return seen


@contextmanager
def shell(name: str, folder: Path) -> Iterator[Typist]:
    words, first = SHELLS[name]
    program = folder / "simpletuner"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m simpletuner_fleet.cli.main "$@"\n')
    program.chmod(0o755)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        words,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TERM": "xterm", "HOME": str(folder)},
    )
    os.close(theirs)
    typist = Typist(ours)
    try:
        for line in first:
            typist.type(line + "\n")
        typist.type("echo set''up\n")
        typist.sees("setup\r")
        yield typist
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("name", SHELLS)
def test_ids_and_names_complete(
    name: str, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which(name):
        pytest.skip(f"no {name} here")
    monkeypatch.setenv("SIMPLETUNER_URL", server.url)
    monkeypatch.setenv("SIMPLETUNER_API_TOKEN", "st_secret")
    server.on("GET", "/api/jobs", {"jobs": [{"id": "j_abcdef", "status": "queued"}], "next": None})
    server.on(
        "GET", "/api/admin/workers", {"workers": [{"id": "w_1", "name": "gpu-basement", "status": "idle"}]}
    )
    with shell(name, tmp_path) as typist:
        assert server.seen == [], "nothing is asked before TAB is pressed"
        typist.type("simpletuner jobs explain j_a\t")
        assert "j_abcdef" in typist.sees("j_abcdef")
        typist.type("\x15simpletuner workers drain gpu-\t")
        typist.sees("gpu-basement")
        typist.type("\x15simpletuner jobs set-pri\t")
        typist.sees("set-priority")
    assert server.asked("GET", "/api/jobs")
    assert server.asked("GET", "/api/admin/workers")


def hostile_names(folder: Path) -> dict[str, str]:
    """Returns by their first letters names that a shell would run, split or replace if it expanded them."""
    ran = folder / "ran"
    return {
        "aa": f"aa$(touch${{IFS}}{ran})`touch {ran}`;touch {ran}'$(touch {ran})'\"`touch {ran}`\"",
        "ee": "ee Anna  Maria*?[a-z]{1,2}~!!\\$HOME",
    }


@pytest.mark.parametrize("name", SHELLS)
def test_names_complete_to_one_word_whatever_they_say_and_run_nothing(
    name: str, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which(name):
        pytest.skip(f"no {name} here")
    monkeypatch.setenv("SIMPLETUNER_URL", server.url)
    monkeypatch.setenv("SIMPLETUNER_API_TOKEN", "st_secret")
    names = hostile_names(tmp_path)
    users = [{"id": f"u_{start}", "name": called, "role": "member"} for start, called in names.items()]
    server.on("GET", "/api/admin/users", {"users": users})
    for user in users:
        server.on("PATCH", f"/api/admin/users/{user['id']}", {**user, "id": f"{user['id']} is changed"})
    with shell(name, tmp_path) as typist:
        typist.type("simpletuner users disable \t\t")
        typist.sees("ee")
        for start in names:
            typist.type(f"\x15simpletuner users disable {start}\t\n")
            typist.sees(f"u_{start} is changed")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("quote", "harmful"),
    [("'", ["ee'; touch {ran}; '"]), ('"', ["ee$(touch {ran})", 'ee"; touch {ran}; "', "ee`touch {ran}`"])],
)
def test_after_a_quote_bash_completes_only_names_that_the_quote_makes_harmless(
    quote: str, harmful: list[str], server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMPLETUNER_URL", server.url)
    monkeypatch.setenv("SIMPLETUNER_API_TOKEN", "st_secret")
    names = ["ee Anna  Maria", *(one.format(ran=tmp_path / "ran") for one in harmful)]
    users = [{"id": f"u_{number}", "name": called} for number, called in enumerate(names)]
    server.on("GET", "/api/admin/users", {"users": users})
    server.on("PATCH", "/api/admin/users/u_0", {"id": "u_0 is changed"})
    with shell("bash", tmp_path) as typist:
        typist.type(f"simpletuner users disable {quote}ee\t\n")
        typist.sees("u_0 is changed")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("columns", [60, 100, 140])
def test_help_fits_the_terminal(columns: int) -> None:
    """Told by the terminal itself, as by no variable."""
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", str(columns), "rows", "40"], stdin=theirs, check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "simpletuner_fleet.cli.main", "jobs", "submit", "--help"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:
            break
        text += chunk
        if not chunk:
            break
    os.close(ours)
    assert process.wait() == 0
    lines = text.decode().replace("\r", "").splitlines()
    assert "usage: simpletuner jobs submit" in lines[0]
    longest = max(map(len, lines))
    assert columns * 0.7 < longest <= columns


MADE_BY_THE_USER = {"create", "add", "add-rule", "import", "push", "pull", "export", "validate"}
THINGS = {"id", "job", "jobs", "worker", "user", "role", "team", "provider", "dataset", "name"}


def test_wherever_a_command_takes_something_that_exists_its_name_is_completed() -> None:
    unknown = [
        (noun, verb, action.dest)
        for noun, below in _children(build_parser())
        for verb, command in _children(below)
        for action in command._actions
        if not action.option_strings
        and action.dest in THINGS
        and noun != "service"
        and verb not in MADE_BY_THE_USER
        and (noun, action.dest) not in LISTS
    ]
    assert unknown == []
