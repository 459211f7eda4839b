"""Which states wait, are at work or have ended is written once: a list of one's own would miss the next new state."""

import re
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "simpletuner_fleet"
STATE = r"""(?:JobState\.[A-Z]+|["'](?:blocked|queued|dispatched|running|cancelling|completed|failed|cancelled)["'])"""
LISTED = re.compile(rf"{STATE}\s*(?:,|\|)\s*{STATE}\s*(?:,|\|)?\s*[\])}}:|,]")
MAY = {
    "core/jobs/states.py": "here they are written",
    "sim/checks/commit_watch.py": "each edge has its event",
    "http/api/queue_views.py": "words of older guides",
    "http/api/older/training.py": "words of older guides",
    "engine/transaction.py": "what a worker has to be told of",
    "sim/run.py": "how one attempt may have ended",
    "web/parts/jobs/state.py": "each state has its sentence, and a match must name them all",
    "protocol/messages.py": "what a worker says of an attempt, not of a job",
}


def test_no_file_lists_states_of_its_own() -> None:
    listed = {
        str(file.relative_to(SOURCE)): [text for line in lines if (text := line.strip())]
        for file in SOURCE.rglob("*.py")
        if (lines := [match[0] for match in LISTED.finditer(file.read_text(encoding="utf-8"))])
    }
    assert {name: lines for name, lines in listed.items() if name not in MAY} == {}
    assert listed.keys() >= {"core/jobs/states.py"}, "the test finds none at all"
