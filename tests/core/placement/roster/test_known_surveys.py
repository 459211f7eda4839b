"""A survey that is remembered says what a fresh one would, and whoever has not changed is not asked again."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import AttemptState, Requirements, Target
from simpletuner_fleet.core.money.prices import NO_PRICES
from simpletuner_fleet.core.placement.explain import Survey
from simpletuner_fleet.core.placement.matching import refusal_of
from simpletuner_fleet.core.placement.place import known_survey_of, survey_of
from simpletuner_fleet.core.placement.roster.known_surveys import MOST_LINES, KnownSurveys
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.workers.worker import AdminState, Connection
from tests.core.builders import a_job, a_worker, an_attempt

NAMES = ("w_1", "w_2", "w_3")
SHARED = a_worker("w_1").gpus
JOBS = (
    a_job("j_fits", requires=Requirements(target=Target.WORKER, gpus=1)),
    a_job("j_never", requires=Requirements(target=Target.WORKER, gpus=8)),
    a_job("j_team", requires=Requirements(target=Target.WORKER, gpus=1, team="t_1"), team="t_1"),
    a_job("j_room", requires=Requirements(target=Target.WORKER, gpus=1, room_micros=1)),
)
ROWS: dict[str, dict[str, Any]] = {
    "offline": {"connection": Connection.OFFLINE},
    "connected": {"connection": Connection.CONNECTED},
    "draining": {"admin": AdminState.DRAINING},
    "shares its GPU": {"gpus": SHARED},
}
CHANGES = (
    *ROWS,
    "leaves",
    "holds",
    "lets go",
    "deaf",
    "listens",
    "rule",
    "price",
)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(CHANGES)), max_size=12))
def test_what_is_remembered_is_what_a_fresh_survey_says(steps: list[tuple[str, str]]) -> None:
    fleet = Roster()
    for name in NAMES:
        fleet.put_worker(a_worker(name))
    for number, (name, change) in enumerate(steps):
        _change(fleet, name, change, number)
        for job in JOBS:
            assert known_survey_of(fleet, job) == survey_of(fleet, job), (name, change, job.id)


def _change(fleet: Roster, name: str, change: str, number: int) -> None:
    worker = fleet.workers.get(name) or a_worker(name)
    attempt = an_attempt(f"a_{name}", job_id=f"j_{name}", worker_id=name, gpus=(f"GPU-{name}-0",))
    match change:
        case "leaves":
            fleet.drop_worker(name)
        case "holds":
            fleet.see_attempt(None, attempt, "u_1")
        case "lets go":
            fleet.see_attempt(attempt, replace(attempt, state=AttemptState.ENDED), "u_1")
        case "deaf" | "listens":
            fleet.set_reachable(name, change == "listens")
        case "rule":
            fleet.set_allowlists({"t_1": TeamAllowlist((("room", str(number)),), ())})
        case "price":
            fleet.set_prices(replace(NO_PRICES, currency=f"C{number}"))
        case _:
            fleet.put_worker(replace(worker, **ROWS[change]))


def test_a_fleet_that_can_never_take_a_job_is_asked_once_however_busy_it_is() -> None:
    fleet, (_, never, *_) = Roster(), JOBS
    for name in NAMES:
        fleet.put_worker(a_worker(name))
    first = known_survey_of(fleet, never)
    assert not first.follows_work
    fleet.see_attempt(None, an_attempt("a_1", gpus=("GPU-w_1-0",)), "u_1")
    fleet.set_reachable("w_2", False)
    assert known_survey_of(fleet, never) is first
    fleet.put_worker(a_worker("w_4"))
    assert known_survey_of(fleet, never) is not first


def test_a_job_that_was_refused_somewhere_is_asked_for_by_itself() -> None:
    fleet, (fits, *_) = Roster(), JOBS
    fleet.put_worker(a_worker("w_1"))
    assert known_survey_of(fleet, fits).free == 1
    refused = replace(fits, refused_by=(refusal_of(a_worker("w_1")),))
    assert known_survey_of(fleet, refused) == survey_of(fleet, refused)
    assert known_survey_of(fleet, fits).free == 1


def test_the_queue_that_was_asked_for_longest_ago_is_forgotten_first() -> None:
    known, asked = KnownSurveys(), list[str]()
    fleet = Roster()

    def survey(line: str) -> Survey:
        asked.append(line)
        return survey_of(fleet, JOBS[0])

    for number in range(MOST_LINES):
        known.of(f"l_{number}", lambda: survey("first"))
    known.of("l_0", lambda: survey("l_0 again"))
    known.of("one more", lambda: survey("one more"))
    known.of("l_0", lambda: survey("l_0 again"))
    known.of("l_1", lambda: survey("l_1 again"))
    assert asked[MOST_LINES:] == ["one more", "l_1 again"]
