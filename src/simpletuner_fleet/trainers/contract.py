"""Declares what a worker knows of a trainer: its name, whether it can run here, and how a job becomes a command."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.protocol.messages import JobSubmit


class TrainerError(FleetError):
    """This trainer cannot run the job's config."""

    code = "trainer_config"


def everything_is_seen(where: str, path: str) -> None:
    """Accepts every path: where there is no wall, a job sees what the worker does."""


class NodeSpan(Struct, frozen=True, kw_only=True):
    """Tells this node's place in a training over several nodes, whose processes all meet at one address."""

    nodes: int
    rank: int
    """Of this node; the first has 0."""
    address: str
    port: int


class Paths(Struct, frozen=True, kw_only=True):
    """Names the attempt's own folders; all exist."""

    attempt_dir: Path
    config_dir: Path
    output_dir: Path
    cache_dir: Path | None = None
    """What is in it is there again for the next attempt with the same cache key; nobody else uses it meanwhile."""
    kept_config: Path | None = None
    """Where config.json is kept as it was written, out of the job's reach, for whoever has to know what it says."""
    must_see: Callable[[str, str], None] = everything_is_seen
    """To be asked, with the setting's name, before a path of the worker is looked at: raises where jobs see nothing of
    it, whether there is something or not."""
    span: NodeSpan | None = None
    """None: the training runs on this node alone."""

    @property
    def rank_log_dir(self) -> Path:
        """Names where single ranks may print to; the trainer makes it if it wants it."""
        return self.attempt_dir / "ranks"

    @property
    def config_file(self) -> Path:
        return self.config_dir / "config.json"

    @property
    def dataloader_file(self) -> Path:
        return self.config_dir / "multidatabackend.json"


class Launch(Struct, frozen=True, kw_only=True):
    """Says what to execute: never through a shell, and with exactly this environment."""

    argv: list[str]
    env: dict[str, str]
    cwd: str


Answers = dict[tuple[str, ...], tuple[str, ...] | None]
"""What Pythons lack: by the Python and the packages it was asked for; None where it cannot be run."""


class Surroundings(Struct, frozen=True, kw_only=True):
    """Holds what a trainer may know of the machine it runs on."""

    environment: Mapping[str, str]
    trainer_python: str
    answers: Answers = {}
    """So that each Python is asked once: to start one takes its time."""


class Trainer(Protocol):
    """Runs a training program on a worker.

    A plug-in's entry point is a callable from Surroundings to one of these.
    """

    @property
    def name(self) -> str: ...

    def available(self) -> bool:
        """Returns whether it can run here. May take seconds the first time: call it in a thread."""
        ...

    def launch(self, order: JobSubmit, paths: Paths) -> Launch:
        """Writes the config's files and says what to execute; starts nothing. Raises TrainerError for a bad config."""
        ...
