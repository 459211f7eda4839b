"""The workflow that runs the real trainer: every supported release, and whenever what it tries has changed."""

import itertools
from pathlib import Path

from devtools.real_trainer.releases import RELEASES

ROOT = Path(__file__).parents[2]
WORKFLOW = (ROOT / ".github" / "workflows" / "real-trainer.yml").read_text()


def paths_watched(event: str) -> list[str]:
    lines = [line.strip() for line in WORKFLOW.partition(f"  {event}:\n")[2].splitlines()]
    watched = lines[lines.index("paths:") + 1 :]
    return [
        line.removeprefix("- ") for line in itertools.takewhile(lambda line: line.startswith("- "), watched)
    ]


def test_every_release_that_is_tried_has_a_run_of_its_own_on_a_python_it_runs_on() -> None:
    for release in RELEASES:
        begin = WORKFLOW.index(f"- release: {release.version}\n")
        named = WORKFLOW[begin:].splitlines()[1].strip().removeprefix("python: ").strip('"')
        assert named in release.pythons
    assert WORKFLOW.count("- release: ") == len(RELEASES)


def test_every_path_it_watches_is_there_and_the_trainers_code_is_among_them() -> None:
    watched = paths_watched("push")
    for path in watched:
        assert (ROOT / path.removesuffix("/**")).exists(), path
    assert {"src/simpletuner_fleet/trainers/**", "src/simpletuner_fleet/agent/**"} <= set(watched)
    assert paths_watched("pull_request") == watched
    assert "./dev real-trainer --release ${{ matrix.release }}" in WORKFLOW
