"""Every command in the guide is run, page after page, against a real server with a real worker.

What is meant for another machine (`bash elsewhere`) is read by the same parser instead. Code blocks are the same in
every language (tests/docs/test_guide.py), so the English ones stand for all.
"""

import io
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from devtools.guide.source import Page, english_pages
from simpletuner_fleet.cli.commands import build_parser
from simpletuner_fleet.cli.main import main
from tests.e2e.kit import World
from tests.e2e.processes import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ELSEWHERE = "elsewhere"
OF_A_SHELL = {"mkdir", "cp"}
OF_OTHERS = {"python3", "pip", "fleet/bin/pip", "export", "curl", "docker", "systemctl", "nvidia-smi"}
SHORTER = (("max_train_steps", 8), ("checkpointing_steps", 4), ("validation_steps", 4))
"""A training of a few steps shows as much of a command as one of hundreds."""


class Reader:
    """Somebody who does what the guide says, in its order, in one folder of one machine."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folder = world.folder / "reader"
        self.folder.mkdir()
        self.parser = build_parser()
        self.job = self.token = ""
        self.done = 0

    def follow(self, page: Page) -> None:
        for language, name, text in BLOCK.findall(page.prose):
            if language != "bash":
                self._write(name, text)
                continue
            for line in self._filled_in(text).replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    self._do(f"{page.name}: {line}", words, elsewhere=name == ELSEWHERE)
                    self.done += 1

    def _write(self, name: str, text: str) -> None:
        for setting, steps in SHORTER:
            text = re.sub(rf'"{setting}": \d+', f'"{setting}": {steps}', text)
        if name:
            (self.folder / name).write_text(self._filled_in(text))

    def _filled_in(self, text: str) -> str:
        text = text.replace("http://localhost:8001", self.world.url)
        return text.replace("j_…", self.job or "j_…").replace("wt_…", self.token or "wt_…")

    def _do(self, what: str, words: list[str], *, elsewhere: bool) -> None:
        program, *arguments = words
        if elsewhere or arguments[:1] == ["server"]:
            assert program == "simpletuner" or program in OF_OTHERS, what
            if program == "simpletuner":
                self.parser.parse_args(arguments)
        elif arguments[:1] == ["worker"]:
            self._start_worker(arguments)
        elif program in OF_A_SHELL:
            subprocess.run(words, cwd=self.folder, check=True)
        else:
            assert program == "simpletuner", what
            self._call(what, arguments)

    def _start_worker(self, arguments: list[str]) -> None:
        self.world.start("worker", *arguments)
        name = arguments[arguments.index("--name") + 1]
        wait_until(lambda: self._status_of(name) == "idle", f"worker {name} is idle", 60)

    def _status_of(self, name: str) -> str:
        workers = self.world.get("/api/admin/workers")["workers"]
        return str(next(one["status"] for one in workers if one["name"] == name))

    def _call(self, what: str, arguments: list[str]) -> None:
        """In this very process, which is quick."""
        out, err = io.StringIO(), io.StringIO()
        environment = {**self.world.environment, "SIMPLETUNER_HOME": str(self.world.home)}
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.chdir(self.folder)
            code = main(arguments)
        printed = out.getvalue() + err.getvalue()
        assert code == 0, f"{what}\n{printed}"
        if arguments[:2] == ["jobs", "submit"]:
            self.job = "".join(re.findall(r"\bj_[0-9A-Za-z]{10,}", printed)[:1]) or self.job
        self.token = "".join(re.findall(r"\bwt_[0-9A-Za-z_]{10,}", printed)[:1]) or self.token


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    assert not [name for name in os.environ if name.startswith("SIMPLETUNER_") and "TEST" not in name]
    world = World(tmp_path)
    try:
        world.start_server()
        yield world
    finally:
        world.close()


def test_every_command_in_the_guide_does_what_it_should(world: World) -> None:
    reader = Reader(world)
    for page in english_pages():
        reader.follow(page)
    assert reader.done > 40
    assert (reader.folder / "my-model").is_dir()
