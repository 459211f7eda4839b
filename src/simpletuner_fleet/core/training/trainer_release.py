"""Lists what each release of the SimpleTuner trainer can do, by reading and trying: it cannot be asked.

The worker acts by it, and a worker's page tells people what its release lacks.
"""

import re

from msgspec import Struct

from simpletuner_fleet.core.marks import N_

VERSION_LABEL = "trainer"
"""A worker tells its SimpleTuner's version as this label, so that a job can ask for one: `trainer>=4.3`."""
LACKS_SIGNAL_FILE = N_(
    "It cannot be asked for a checkpoint or a validation: a stopped job resumes from the last checkpoint that it saved on "
    "its own (3.2.1 and newer can)."
)
LACKS_GUARD = N_(
    "It does not mark finished checkpoints: they are stored a few seconds after their last change (4.3.2 "
    "and newer do)."
)
LACKS_EXIT_CODES = N_(
    "It exits with code 0 after an error: its output and step count are checked instead (4.0 and newer "
    "exit with an error)."
)


class TrainerRelease(Struct, frozen=True, kw_only=True):
    """Describes one release of the SimpleTuner trainer, and what it can do.

    `version` is empty where it could not be found out: then only what all releases can do is relied on.
    """

    version: str = ""
    exit_codes: bool = False
    """A failed training ends with another exit code than 0."""
    signal_file: bool = True
    """A running training can be asked for a checkpoint, and to validate."""
    guard: bool = False
    """A checkpoint is marked when all of it is there."""

    @property
    def missing(self) -> list[str]:
        """Returns what people lose with this release, a sentence each."""
        lacks = {
            LACKS_SIGNAL_FILE: not self.signal_file,
            LACKS_GUARD: not self.guard,
            LACKS_EXIT_CODES: not self.exit_codes,
        }
        return [sentence for sentence, lacking in lacks.items() if lacking and self.version]


def release_of(version: str) -> TrainerRelease:
    numbers = version_numbers(version)
    if not numbers:
        return TrainerRelease()
    return TrainerRelease(
        version=version,
        exit_codes=numbers >= (4, 0),
        signal_file=numbers > (3, 2, 0),
        guard=numbers >= (4, 3, 2),
    )


def version_numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version: `4.10.1.dev3` is 4.10.1; without a leading number there are none."""
    plain = re.match(r"\d{1,9}(?:\.\d{1,9}){0,7}", version, re.ASCII)
    return tuple(map(int, plain[0].split("."))) if plain else ()


def version_fits(version: str, wanted: str) -> bool | None:
    """Compares with `>=4.3`, `>4`, `<=4.10.1`, `<5` or `==4.3.2`; None where that is no comparison.

    A version without numbers fits none of them: what is unknown is not newer than anything.
    """
    asked = re.fullmatch(r"(>=|<=|==|>|<)\s*(\d{1,9}(?:\.\d{1,9}){0,7})", wanted.strip(), re.ASCII)
    if asked is None:
        return None
    mine, other = version_numbers(version), version_numbers(asked[2])
    if not mine:
        return False
    width = max(len(mine), len(other))
    left, right = mine + (0,) * (width - len(mine)), other + (0,) * (width - len(other))
    return {
        ">=": left >= right,
        "<=": left <= right,
        "==": left == right,
        ">": left > right,
        "<": left < right,
    }[asked[1]]
