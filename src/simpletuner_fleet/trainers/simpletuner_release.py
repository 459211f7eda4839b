"""What each release of SimpleTuner can do: knowledge that cannot be asked of it, so it stands here."""

import re

from msgspec import Struct

_NUMBERS = re.compile(r"\d+")


class Release(Struct, frozen=True, kw_only=True):
    """`version` is empty where it could not be found out: then nothing is taken for granted that would be waited for."""

    version: str = ""
    exit_codes: bool = False
    """A failed training ends with another exit code than 0."""
    signal_file: bool = True
    """A running training can be asked for a checkpoint."""
    guard: bool = False
    """A checkpoint is marked when all of it is there."""

    @property
    def missing(self) -> list[str]:
        """What people lose by it, a sentence each."""
        if not self.version:
            return []
        lacks = {
            "it cannot be asked for a checkpoint: a job that is stopped goes on from the last one it made itself "
            "(3.2.1 or newer can)": not self.signal_file,
            "it does not mark finished checkpoints: they are stored some seconds after they stopped changing "
            "(4.3.2 or newer does)": not self.guard,
            "it exits with code 0 after an error: its output and steps are looked at instead "
            "(4.0 or newer exits with 1)": not self.exit_codes,
        }
        return [sentence for sentence, lacking in lacks.items() if lacking]


def release_of(version: str) -> Release:
    """By the releases that were read and run: see docs/trainers.md."""
    numbers = version_numbers(version)
    if not numbers:
        return Release()
    return Release(
        version=version,
        exit_codes=numbers >= (4, 0),
        signal_file=numbers > (3, 2, 0),
        guard=numbers >= (4, 3, 2),
    )


def version_numbers(version: str) -> tuple[int, ...]:
    """`4.10.1.dev3` is 4.10.1; what does not begin with a number has none."""
    plain = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in _NUMBERS.findall(plain[0])) if plain else ()
