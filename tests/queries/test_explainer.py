"""Why a job waits is said as it is now, also after a change that concerns no worker and no job."""

import msgspec

from simpletuner_fleet.core.jobs.job import JobState, Requirements
from simpletuner_fleet.core.people.quotas import Quota, QuotaKind, QuotaScope
from simpletuner_fleet.core.people.teams import TEAM_PREFIX, Team
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.placement.shares import FairShare
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.memory.setting_documents import FAIR_SHARE_SETTING, QUOTA_PREFIX
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import View
from simpletuner_fleet.queries.explainer import Explainer
from simpletuner_fleet.queries.read_models import explained
from simpletuner_fleet.store import MemoryStore
from tests.core.builders import NOW, POLICY, a_job, a_worker, an_attempt, holding
from tests.store.samples import BUNDLE


def a_fleet() -> Fleet:
    clock = SteadyClock(wall=lambda: NOW, monotonic=lambda: 0.0)
    return Fleet(MemoryStore(), FleetIndex(), clock, RandomIds(b"s" * 32), StreamHub(), POLICY)


async def test_a_new_quota_is_the_reason_at_once() -> None:
    fleet = a_fleet()
    await fleet.act(lambda transaction: transaction.add_worker(a_worker(registered_at=NOW)))
    await fleet.act(
        lambda transaction: transaction.add_job(a_job(requires=Requirements(owner="ann")), BUNDLE)
    )
    assert (await explained(fleet, "j_1")).code is Code.ALL_MATCHING_NOT_LISTENING
    quota = Quota(id="q", kind=QuotaKind.RUNNING_JOBS, scope=QuotaScope.EACH, ceiling=0)

    def step(transaction: Transaction) -> None:
        transaction.tx.put_setting(QUOTA_PREFIX + quota.id, msgspec.json.encode(quota).decode())
        transaction.organisation_changed()

    await fleet.act(step)
    assert (await explained(fleet, "j_1")).code is Code.QUOTA


async def test_a_job_whose_team_is_over_its_share_says_so_to_whoever_asks_later() -> None:
    fleet = a_fleet()
    teams = [Team(id=name, name=name, created_at=NOW) for name in ("greedy", "modest")]

    def organise(transaction: Transaction) -> None:
        for team in teams:
            transaction.tx.put_setting(TEAM_PREFIX + team.id, msgspec.json.encode(team).decode())
        transaction.tx.put_setting(FAIR_SHARE_SETTING, msgspec.json.encode(FairShare(enabled=True)).decode())
        transaction.organisation_changed()

    def of_team(name: str) -> Requirements:
        return Requirements(owner=f"one of {name}", team=name)

    def fill(transaction: Transaction) -> None:
        transaction.add_worker(a_worker(registered_at=NOW))
        transaction.add_job(holding(JobState.RUNNING, requires=of_team("greedy"), team="greedy"), BUNDLE)
        transaction.tx.add_attempt(an_attempt(accepted_at=NOW - 3600.0))
        for seq, name in enumerate(("greedy", "modest"), start=2):
            job = a_job(f"j_{name}", seq=seq, requires=of_team(name), team=name)
            transaction.add_job(job, BUNDLE)

    await fleet.act(organise)
    await fleet.act(fill)
    over = await explained(fleet, "j_greedy")
    assert over.code is Code.OVER_SHARE
    assert (over.params["used_percent"], over.params["share_percent"], over.params["teams_ahead"]) == (
        100,
        50,
        1,
    )
    assert (await explained(fleet, "j_modest")).code is Code.ALL_MATCHING_BUSY


async def test_of_endlessly_many_lines_only_the_last_are_remembered() -> None:
    fleet = a_fleet()
    await fleet.act(lambda transaction: transaction.add_worker(a_worker(registered_at=NOW)))
    standing = fleet.standing()

    def look(view: View) -> list[Code]:
        explainer = Explainer(view, standing)
        jobs = [a_job(class_id=f"c_{number}", requires=Requirements(owner="ann")) for number in range(3_000)]
        return [explainer.explain(job, 0, NOW).code for job in jobs]

    assert set(await fleet.read(look)) == {Code.ALL_MATCHING_NOT_LISTENING}
    assert 500 <= len(standing.surveys) <= 2_000
    assert "c_2999" in standing.surveys
