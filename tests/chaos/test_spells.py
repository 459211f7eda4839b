"""Many spells in one command: what was judged is kept, and nobody is held to answer while the server is broken."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from devtools.chaos import recorder
from devtools.chaos.faults import KINDS
from devtools.chaos.fleet import Patience
from devtools.chaos.processes import Program, attempt_run_by
from devtools.chaos.recorder import Answer, Recorder
from devtools.chaos.run import Verdict
from devtools.chaos.spells import Sum, note_in, noted_in, spells_of


def test_a_verdict_that_was_noted_is_not_found_a_second_time(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    assert noted_in(report) == []
    spells = spells_of(7, 250)
    verdicts = [
        Verdict(seed=spell.seed, folder=tmp_path / "kept", faults=Counter({"agent_kill": spell.faults}))
        for spell in spells
    ]
    verdicts[1].problems = [("S3", "two at once")]
    for verdict in verdicts[:2]:
        note_in(report, verdict)
    total = Sum(noted_in(report))
    assert total.verdicts == verdicts[:2]
    assert [spell for spell in spells if spell.seed not in total.seeds] == spells[2:]
    assert "2 spells, 200 faults of 1 kinds, 1 violations" in total.line()


def test_the_sum_names_what_never_struck() -> None:
    every = Verdict(seed=1, folder=Path(), faults=Counter(dict.fromkeys(KINDS, 1)))
    assert "never struck: none" in Sum([every]).text(1.0)
    assert len(KINDS) >= 60
    del every.faults["drop_all"]
    assert "never struck: drop_all" in Sum([every]).text(1.0)


class Unanswered(Recorder):
    """A caller whose server does not answer; who asks may break it meanwhile."""

    asked = 0

    async def call(self, method: str, path: str, body: recorder.Json | None = None, key: str = "") -> Answer:
        self.asked += 1
        return Answer("unknown")


async def test_patience_ends_only_where_nobody_breaks_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "KNOWN_WITHIN_S", 0.02)
    monkeypatch.setattr(recorder, "ASK_AGAIN_S", 0.01)
    api = Unanswered("http://127.0.0.1:9", "token", tmp_path / "calls")
    api.excused = lambda: api.asked < 20
    with pytest.raises(AssertionError, match="in which nobody broke the server: POST /x"):
        await api.call_until_answered("POST", "/x")
    assert api.asked > 20
    await api.close()


def test_what_a_busy_machine_takes_is_not_counted() -> None:
    starved = [100.0]
    patience = Patience(0.0, lambda: starved[0])
    verdicts = [patience.is_over]
    for starved_s in (3700.0, 0.0):
        starved[0] = starved_s
        verdicts.append(patience.is_over)
    assert verdicts == [True, False, True], (
        "whoever is ready to run and has no processor is waited for; a new process anew"
    )


def test_a_program_that_waits_for_nothing_was_not_starved(tmp_path: Path) -> None:
    program = Program("none", (), {}, tmp_path / "log")
    program._process = subprocess.Popen(["sleep", "60"])
    try:
        assert 0.0 <= program.starved_s < 60.0
    finally:
        program.kill()
    assert program.starved_s == 0.0


def test_the_attempt_of_a_trainer_is_known_before_it_has_written_anything(tmp_path: Path) -> None:
    output = tmp_path / "worker-2" / "attempts" / "a_17" / "job" / "output"
    trainer = subprocess.Popen(
        ["sleep", "60"], env={"PATH": "/bin:/usr/bin", "SIMPLETUNER_OUTPUT_DIR": str(output)}
    )
    try:
        assert attempt_run_by(trainer.pid) == "a_17"
    finally:
        trainer.kill()
        trainer.wait()
    assert attempt_run_by(trainer.pid) == ""
