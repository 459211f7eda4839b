"""What is kept of a survey never changes what it says, and only who has changed is asked again."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Requirements, Target
from simpletuner_fleet.core.money.prices import NO_PRICES
from simpletuner_fleet.core.placement.explain import survey, survey_by
from simpletuner_fleet.core.placement.matching import FREE, Occupancy, Refusal
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.placement.verdicts import KnownVerdicts, Verdicts
from simpletuner_fleet.core.workers.worker import AdminState, Connection, Worker
from tests.core.builders import a_worker

REQUIRES = Requirements(target=Target.WORKER, gpus=1)
NAMES = ("w_1", "w_2", "w_3")
CHANGES = (
    {"connection": Connection.OFFLINE},
    {"connection": Connection.CONNECTED},
    {"admin": AdminState.DRAINING},
    {"max_jobs": 2},
    {"trainers": ()},
)
HELD = (FREE, Occupancy(1, frozenset({"GPU-w_1-0"})), Occupancy(listens=False))


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from((*CHANGES, None)), st.sampled_from(HELD))),
)
def test_a_survey_that_remembers_says_what_a_fresh_one_says(
    steps: list[tuple[str, dict[str, object] | None, Occupancy]],
) -> None:
    workers: dict[str, Worker] = {name: a_worker(name) for name in NAMES}
    held = dict.fromkeys(NAMES, FREE)
    known = KnownVerdicts()
    for name, change, occupancy in steps:
        if change is None:
            workers.pop(name, None)
        else:
            workers[name] = replace(workers.get(name) or a_worker(name), **change)
        held[name] = occupancy
        fleet = [(worker, held[id]) for id, worker in workers.items()]
        remembered = survey_by(known.of_line("line", Verdicts(REQUIRES)), fleet)
        assert remembered == survey(REQUIRES, fleet)


def test_only_who_has_changed_is_asked_again() -> None:
    verdicts = Verdicts(REQUIRES)
    first, second = a_worker("w_1"), a_worker("w_2")
    before = verdicts.of([(first, FREE), (second, FREE)])
    full = Occupancy(1, frozenset({"GPU-w_2-0"}))
    after = verdicts.of([(first, Occupancy()), (second, full)])
    assert after[0] is before[0]
    assert [refusal for _, _, refusal in after] == [None, Refusal.BUSY]
    gone = replace(first, connection=Connection.OFFLINE)
    assert verdicts.of([(gone, FREE)])[0][2] is Refusal.OFFLINE
    assert len(verdicts) == 1, "who is not there any more is forgotten"


def test_other_rules_or_prices_are_asked_anew() -> None:
    known = KnownVerdicts()
    first = known.of_line("line", Verdicts(REQUIRES))
    assert known.of_line("line", Verdicts(REQUIRES)) is first
    allowlist = TeamAllowlist((("room", "a"),), ())
    ruled = known.of_line("line", Verdicts(REQUIRES, allowlist=allowlist))
    assert ruled is not first
    assert ruled.of([(a_worker(), FREE)])[0][2] is Refusal.NOT_FOR_TEAM
    dearer = replace(NO_PRICES, currency="EUR")
    assert known.of_line("line", Verdicts(REQUIRES, allowlist=allowlist, prices=dearer)) is not ruled


def test_what_was_asked_for_longest_ago_is_forgotten_first() -> None:
    known = KnownVerdicts(most=4)
    fleet = [(a_worker("w_1"), FREE), (a_worker("w_2"), FREE)]
    lines = {name: known.of_line(name, Verdicts(REQUIRES)) for name in ("a", "b")}
    for verdicts in lines.values():
        verdicts.of(fleet)
    assert known.of_line("a", Verdicts(REQUIRES)) is lines["a"]
    known.of_line("c", Verdicts(REQUIRES)).of(fleet)
    assert known.of_line("a", Verdicts(REQUIRES)) is lines["a"]
    assert known.of_line("b", Verdicts(REQUIRES)) is not lines["b"]


def test_a_worker_that_has_refused_the_job_since_is_asked_again() -> None:
    fleet = [(a_worker(name), FREE) for name in ("w_1", "w_2")]
    known = KnownVerdicts()
    once, twice = ("w_1 i_w_1",), ("w_1 i_w_1", "w_2 i_w_2")
    assert survey_by(known.of_line("line", Verdicts(REQUIRES, once)), fleet).free == 1
    refused = survey_by(known.of_line("line", Verdicts(REQUIRES, twice)), fleet)
    assert refused == survey(REQUIRES, fleet, twice)
    assert refused.code is Code.PATH_NOT_GRANTED
