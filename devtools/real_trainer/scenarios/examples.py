"""Every example that comes with the release is imported, and its own loader then misses no file that it holds."""

from devtools.real_trainer.every_example import read_all
from devtools.real_trainer.stage import Stage


def run(stage: Stage) -> list[str]:
    seen = read_all(str(stage.python))
    assert seen.imported, "the release ships no example"
    assert seen.read == seen.imported, seen
    assert not seen.lost, seen.lost
    return [
        f"{seen.imported} examples imported, each read by the trainer's own loader, no file lost",
        f"{len(seen.lacking)} names of files that the release itself does not hold",
    ]
