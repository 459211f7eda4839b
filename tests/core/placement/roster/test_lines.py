"""Jobs stand in the line of their class, in order, whoever joins and leaves."""

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import JobState, Requirements
from simpletuner_fleet.core.placement.ordering import place_of
from simpletuner_fleet.core.placement.roster import lines
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.workers.audience import Audience
from tests.core.builders import NOW, a_job, a_worker


def test_a_line_gives_its_jobs_by_rank_then_sequence_whoever_leaves_it() -> None:
    jobs = [a_job(f"j_{n}", seq=n, created_at=NOW - n // 2) for n in range(500)]
    fleet = Roster()
    for job in jobs:
        fleet.see_job(None, job)
    in_order = sorted(jobs, key=place_of)
    for job in in_order[100:450]:
        fleet.see_job(job, replace(job, state=JobState.CANCELLED))
    assert len(fleet.lines.classes[jobs[0].class_id].line) < 400
    for job in (*in_order[:100], *in_order[450:]):
        assert fleet.lines.head(job.class_id) == job.id
        assert fleet.lines.position(job.rank) >= 1
        fleet.see_job(job, replace(job, state=JobState.DISPATCHED))
    assert fleet.lines.head(jobs[0].class_id) is None
    assert fleet.lines.head("no such class") is None


def test_a_job_that_returns_to_its_line_stands_there_once() -> None:
    job, other = a_job("j_1"), a_job("j_2", seq=2)
    fleet = Roster()
    fleet.see_job(None, job)
    fleet.see_job(None, other)
    offered = replace(job, state=JobState.DISPATCHED)
    for _ in range(3):
        fleet.see_job(job, offered)
        fleet.see_job(offered, job)
    assert (fleet.lines.head(job.class_id), fleet.lines.count(job.class_id)) == ("j_1", 2)
    fleet.see_job(job, offered)
    assert (fleet.lines.head(job.class_id), fleet.lines.count(job.class_id)) == ("j_2", 1)


def test_a_job_whose_request_was_edited_heads_its_former_line_no_more() -> None:
    fleet = Roster()
    edited, other = a_job("j_1", seq=1), a_job("j_2", seq=2)
    for job in (edited, other):
        fleet.see_job(None, job)
    after = a_job("j_1", seq=1, requires=Requirements(gpus=2))
    fleet.see_job(edited, after)
    assert (fleet.lines.head(other.line), fleet.lines.head(after.line)) == (other.id, edited.id)


def test_the_class_with_the_first_head_is_first() -> None:
    fleet = Roster()
    early = a_job("j_1", created_at=NOW - 9)
    late = a_job("j_2", requires=Requirements(gpus=2))
    for job in (late, early):
        fleet.see_job(None, job)
    both = [late.class_id, early.class_id]
    assert [class_id for *_, class_id in sorted(fleet.lines.line_of(both))] == [early.class_id, late.class_id]
    fleet.see_job(early, replace(early, state=JobState.CANCELLED))
    assert [class_id for *_, class_id in fleet.lines.line_of(both)] == [late.class_id]
    assert fleet.lines.line_of([]) == []


def test_classes_nobody_waits_in_are_forgotten_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_IDLE_CLASSES", 8)
    fleet = Roster()
    fleet.put_worker(a_worker(gpus=1))
    kept = a_job("j_kept", requires=Requirements(owner="u_kept"))
    fleet.see_job(None, kept)
    for number in range(100):
        passing = a_job(f"j_{number}", requires=Requirements(owner=f"u_{number}"))
        fleet.see_job(None, passing)
        fleet.see_job(passing, replace(passing, state=JobState.CANCELLED))
    assert len(fleet.lines.classes) <= 9
    assert (
        len(fleet.lines.alike[Requirements()].classes)
        == len(fleet.lines.classes)
        == len(fleet.lines._classes_of)
    )
    assert fleet.classes_for("w_1") == fleet.lines.classes_with_jobs() == [kept.class_id]
    assert fleet.pick_worker(kept) is not None


def test_who_is_named_by_a_worker_is_matched_by_themselves_whenever_it_comes() -> None:
    """Jobs that differ by their owner alone wait together; once a worker asks who that is, they do so no more."""
    fleet = Roster()
    others, theirs = (
        a_job(f"j_{owner}", seq=seq, requires=Requirements(owner=owner))
        for seq, owner in enumerate(("u_other", "u_named"))
    )
    for job in (others, theirs):
        fleet.see_job(None, job)
    fleet.put_worker(a_worker("w_kept", audience=Audience(people=("u_named",))))
    assert fleet.classes_for("w_kept") == [theirs.class_id]
    assert list(fleet.by_precedence("w_kept")) == [theirs.class_id]
    assert fleet.pick_worker(others) is None
    picked = fleet.pick_worker(theirs)
    assert picked is not None
    assert picked[0].id == "w_kept"
    fleet.put_worker(a_worker("w_kept", audience=None))
    assert fleet.pick_worker(others) is not None, "the pool was opened to everybody"
    fleet.put_worker(a_worker("w_kept", audience=Audience(teams=("tm_1",))))
    assert (fleet.pick_worker(others), fleet.pick_worker(theirs)) == (None, None)
    of_team = a_job("j_team", seq=10, requires=Requirements(owner="u_other", team="tm_1"))
    fleet.see_job(None, of_team)
    assert fleet.pick_worker(of_team) is not None


def test_a_class_that_was_forgotten_comes_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_IDLE_CLASSES", 2)
    fleet = Roster()
    fleet.put_worker(a_worker())
    for number in (0, 1, 2, 3, 0):
        job = a_job(f"j_{number}", requires=Requirements(owner=f"u_{number}"))
        fleet.see_job(None, job)
        assert fleet.pick_worker(job) is not None
        fleet.see_job(job, replace(job, state=JobState.CANCELLED))
