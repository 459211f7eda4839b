"""Knows where trainers leave checkpoints and how to ask for one: the habits that most of them share."""

import contextlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.configs.options import Options
from simpletuner_fleet.core.cutting import first_few
from simpletuner_fleet.core.training.completion import CleanExit, shortfall
from simpletuner_fleet.core.training.samples import is_picture
from simpletuner_fleet.core.training.trainer_release import TrainerRelease
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Launch, Paths
from simpletuner_fleet.trainers.job_files import LACKING, PASSING, read_job_file
from simpletuner_fleet.trainers.job_trees import entries_beneath

GUARD = ".guard"
"""Written into a checkpoint when all else of it is there: without it, it is not complete."""
RESUME_VARIABLE = "SIMPLETUNER_RESUME_FROM"
SIGNAL_VARIABLE = "SIMPLETUNER_ACCELERATE_SIGNAL_FILE"
CHECKPOINT_SIGNAL, VALIDATION_SIGNAL = "manual_checkpoint", "manual_validation"
METRIC_FILES = ("metrics.jsonl", "training_metrics.jsonl")
SAMPLE_FOLDERS = ("validation_images", "samples")
SAMPLE_NAMES = (*SAMPLE_FOLDERS, "sample")
_NAME = re.compile(r"checkpoint-(\d{1,15})(?:-rolling)?", re.ASCII)
RANK_LOG_DEPTH = 4
MOST_RANK_LOG_ENTRIES = 20_000
"""The folder is the job's, and is looked through again and again: of more than this, some are not found."""
MOST_MISSED, MOST_NAME_CHARS = 3, 100
MOST_FILES = 250_000
"""So many are looked at. A job may leave millions, and the agent's memory is all jobs'."""
_RANK_LOG = re.compile(r"rank-(\d{1,5})\.log", re.ASCII)
_FOLDER = re.compile(r"checkpoint-\d.*", re.ASCII)


class FoundCheckpoint(Struct, frozen=True):
    name: str
    step: int
    path: Path


class FoundArtifact(Struct, frozen=True):
    """Groups files beneath `root` that belong together: `name` is what the user will ask for."""

    name: str
    root: Path
    files: tuple[Path, ...]
    missed: str = ""
    """What of it could not be looked at, and why."""


class CheckpointHabits:
    """Describes what trainers do in their own way: where they leave results, and how a checkpoint is asked for.

    Inherit from it and override what is different; a trainer that does not inherit gets these defaults.
    """

    spans_nodes = False
    """Whether it makes one training of parts on several nodes, which `Paths.span` tells apart."""

    def release(self) -> TrainerRelease:
        """Tells what is installed of it and what that can do. May take seconds the first time: call it in a thread."""
        return TrainerRelease(exit_codes=True, guard=True, signal_file=False)

    def output_folder(self, paths: Paths) -> Path:
        """Returns where checkpoints appear, and where one to go on from is put."""
        return paths.output_dir

    def cache_key(self, order: JobSubmit) -> str | None:
        """Returns what orders share that may use each other's caches.

        It is None where the trainer keeps none between attempts.
        """
        return None

    def show_data(self, paths: Paths, may_write: Callable[[str], bool]) -> None:
        """Shows data elsewhere that the trainer writes beside and may not, once its config is written.

        Nothing runs yet.
        """

    def installed(self) -> str | None:
        """Says, quickly, what is installed here; None where it cannot be asked for its options."""
        return None

    def options(self) -> Options | None:
        """Asks the trainer which options it takes. May take minutes: call it in a thread."""
        return None

    def checkpoints(self, paths: Paths) -> list[FoundCheckpoint]:
        """Returns the complete ones, oldest first."""
        return complete_checkpoints(self.output_folder(paths))

    def keeps(self, paths: Paths, name: str) -> int | None:
        """Tells how many checkpoints of this one's kind the config wants kept; None where it does not say."""
        return None

    def has_unfinished(self, paths: Paths) -> bool:
        """Tells whether a checkpoint will count as complete after a moment, even if its trainer has ended."""
        return False

    def progress_files(self, paths: Paths) -> list[Path]:
        """Returns where the trainer writes its numbers, a JSON object on each line; they need not be there yet."""
        folder = self.output_folder(paths)
        return [folder / name for name in METRIC_FILES]

    def bars_tell(self, paths: Paths) -> bool:
        """Tells whether the loss is read from progress bars until something else tells it."""
        return True

    def samples(self, paths: Paths) -> list[Path]:
        """Returns pictures drawn so far, which are shown while the trainer works: any beneath the output folder."""
        return list(pictures_beneath(self.output_folder(paths)))

    def rank_logs(self, paths: Paths) -> dict[int, list[Path]]:
        """Returns the files that single ranks print to, where there are any yet. Rank 0 prints to the main output."""
        return rank_logs_beneath(paths.rank_log_dir)

    def saves_on_request(self) -> bool:
        """Tells whether a running training can be asked for a checkpoint. May take seconds: call it in a thread."""
        return type(self).request_checkpoint is not CheckpointHabits.request_checkpoint

    def request_checkpoint(self, paths: Paths) -> bool:
        """Asks the running trainer for a checkpoint now; False where it cannot be asked."""
        return False

    def validates_on_request(self) -> bool:
        """Tells whether a running training can be asked to validate. May take seconds: call it in a thread."""
        return type(self).request_validation is not CheckpointHabits.request_validation

    def request_validation(self, paths: Paths) -> bool:
        """Asks the running trainer to validate now; False where it cannot be asked."""
        return False

    def place_resume(self, order: JobSubmit, paths: Paths, checkpoint: Path, launch: Launch) -> Launch:
        """Makes the trainer go on from the checkpoint, which is in place."""
        return Launch(argv=launch.argv, env={**launch.env, RESUME_VARIABLE: str(checkpoint)}, cwd=launch.cwd)

    def exit_tells(self, order: JobSubmit) -> bool:
        """Tells whether exit code 0 alone is believed where no agent is left to check: the shim asks that."""
        return expected_steps(order) is None

    def shortfall(self, order: JobSubmit, ended: CleanExit) -> str | None:
        """Tells why a training that ended with exit code 0 is not complete; None where it is.

        A program may have reasons of its own to end early: only a config that names its steps holds it to them.
        """
        return shortfall(replace(ended, total=expected_steps(order)))

    def artifacts(self, paths: Paths) -> list[FoundArtifact]:
        """Returns what an attempt that ended leaves to its user: all of the output that is no checkpoint."""
        root = self.output_folder(paths)
        missed: list[str] = []
        files = tuple(other_files(root, missed))
        return (
            [FoundArtifact("output", root, files, first_few(missed, MOST_MISSED))] if files or missed else []
        )


def expected_steps(order: JobSubmit) -> int | None:
    """Returns how many steps the config says there are, if it does."""
    steps = order.config.get("expected_steps")
    return steps if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0 else None


def habits_of(trainer: object) -> CheckpointHabits:
    return trainer if isinstance(trainer, CheckpointHabits) else CheckpointHabits()


def rank_logs_beneath(folder: Path) -> dict[int, list[Path]]:
    """Finds them as torchrun lays them out, `…/attempt_0/RANK/stdout.log`, or simply `rank-RANK.log`."""
    files_by_rank: dict[int, list[Path]] = {}
    for path in sorted(_log_files(folder)):
        own = _RANK_LOG.fullmatch(path.name)
        rank = own[1] if own else path.parent.name
        if rank.isdecimal() and len(rank) < 6:
            files_by_rank.setdefault(int(rank), []).append(path)
    return files_by_rank


def _log_files(folder: Path) -> Iterator[Path]:
    """Yields them down to a few levels. No link to a folder is followed: a job's may lead to anywhere."""
    waiting, left = [(folder, 1)], MOST_RANK_LOG_ENTRIES
    while waiting and left > 0:
        place, depth = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in itertools.islice(entries, left):
                left -= 1
                if entry.is_dir(follow_symlinks=False):
                    if depth < RANK_LOG_DEPTH:
                        waiting.append((Path(entry.path), depth + 1))
                elif entry.name.endswith(".log"):
                    yield Path(entry.path)


def complete_checkpoints(folder: Path) -> list[FoundCheckpoint]:
    return [one for one in checkpoint_folders(folder) if (one.path / GUARD).is_file()]


def checkpoint_folders(folder: Path) -> list[FoundCheckpoint]:
    """Returns all of them, finished or not, oldest first."""
    named = ((name, _NAME.fullmatch(name)) for name in _names(folder))
    checkpoints = [
        FoundCheckpoint(name, int(match[1]), folder / name)
        for name, match in named
        if match and not (folder / name).is_symlink()  # it may lead to what is not the job's
    ]
    return sorted(checkpoints, key=lambda one: (one.step, one.name))


def other_files(folder: Path, missed: list[str]) -> Iterator[Path]:
    """Adds to `missed` what cannot be looked at. Raises OSError where it could be in a moment."""
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        missed.append(f"the folder {folder.name} is closed")
    names, left = sorted(_names(folder)), MOST_FILES
    if len(names) > MOST_FILES:
        missed.append(f"the folder {folder.name}: too many files to look at")
    for path in (folder / name for name in names):
        if path.is_dir() and not path.is_symlink() and _FOLDER.fullmatch(path.name):
            continue
        try:
            for file in files_beneath(path, folder, max(0, left)):
                left -= 1
                yield file
        except OSError as error:
            if error.errno in LACKING:
                raise
            # Any bytes may name it, and whoever reads of it gets text.
            missed.append(f"{ascii(path.name)[:MOST_NAME_CHARS]}: {error.strerror}")


def pictures_beneath(folder: Path) -> Iterator[Path]:
    """Yields those in the folders where validation leaves them, and those at the top that are named `sample…`."""
    for name in sorted(name for name in _names(folder) if name.startswith(SAMPLE_NAMES)):
        path = folder / name
        if name in SAMPLE_FOLDERS or (name.startswith("sample") and path.is_file()):
            yield from (file for file in files_beneath(path, folder) if is_picture(file.name))


def files_beneath(path: Path, root: Path, most: int = MOST_FILES) -> Iterator[Path]:
    """Yields regular files in order, links only to files of the same folder.

    Raises OSError where it cannot look, or there are more than `most`.
    """
    real = Path(os.path.realpath(root))
    if not path.is_dir() or path.is_symlink():
        if path.is_file() and (not path.is_symlink() or _leads_into(path, real)):
            yield path
        return
    files = (entry for entry in entries_beneath(path, most) if entry.is_file())
    # Of names alone, and a path for each only when it is asked for: there may be millions.
    for entry in sorted(files, key=lambda entry: entry.path.split("/")):
        if not entry.is_symlink() or _leads_into(entry, real):
            yield Path(entry.path)


def _leads_into(link: "os.PathLike[str]", folder: Path) -> bool:
    return Path(os.path.realpath(link)).is_relative_to(folder)


def ask_by_signal_file(signal_file: Path, key: str = CHECKPOINT_SIGNAL) -> bool:
    """Writes a rising number for each thing it can be asked for, and replaces the file whole: the trainer acts once for
    each time one has grown."""
    counts = signal_counts(signal_file)
    counts[key] = counts.get(key, 0) + 1
    temporary = signal_file.with_name(f".{signal_file.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        # The folder is the job's: what it may have put there, a link to somebody else's file, is not written to.
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb"
        ) as file:
            file.write(json.dumps(counts).encode())
        os.replace(temporary, signal_file)
    except OSError:
        return False
    return True


def signal_counts(signal_file: Path) -> dict[str, int]:
    """Returns what was asked for so far; nothing where that cannot be read, for the file is the job's."""
    try:
        said = json.loads(read_job_file(signal_file))
        return {key: int(said[key]) for key in (CHECKPOINT_SIGNAL, VALIDATION_SIGNAL) if key in said}
    except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return {}


def signal_file(paths: Paths) -> Path:
    return paths.attempt_dir / "signals.json"


def _names(folder: Path) -> list[str]:
    """Returns nothing of a folder that cannot be listed, and a little more than `MOST_FILES` names at most.

    Names, and no paths: they are looked through each second. Raises OSError where it could be listed in a moment.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in itertools.islice(entries, MOST_FILES + 1)]
    except OSError as error:
        if error.errno in PASSING:
            raise
        return []
