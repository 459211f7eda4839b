"""Every example that comes with the release is imported, and its own loader then misses no file that it holds."""

from devtools.real_trainer.every_example import read_all
from devtools.real_trainer.stage import Stage


def run(stage: Stage) -> list[str]:
    found = read_all(str(stage.python))
    assert found.imported, "the release ships no example"
    assert found.read == found.imported, found
    assert not found.lost, found.lost
    return [
        f"{found.imported} examples imported, each read by the trainer's own loader, no file lost",
        f"{len(found.lacking)} names of files that the release itself does not hold",
    ]
