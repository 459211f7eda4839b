"""Fair share over real databases: through the server's own doors, on a clock that is turned, and through a restart."""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from random import Random

import pytest

from devtools.fuzz.in_process_server import Headers, InProcessServer, SeededIds
from simpletuner_fleet.core.placement.roster.lines import Precedence
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.ports import Store
from simpletuner_fleet.store import open_store
from tests.ready_databases import lay_sqlite

SLOTS = 7
"""Not a multiple of what the weights add up to: otherwise everybody would be level at every moment."""
WEIGHTS = {"five": 5, "three": 3, "two": 2}
HALF_LIFE_S = 7200
JOBS_OF_EACH = 80
Opener = Callable[[], Store]


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    url = f"sqlite:///{lay_sqlite(tmp_path / 'fleet.db')}"
    if request.param == "postgresql":
        url = request.getfixturevalue("ready_database")
    return lambda: open_store(url)


async def a_server_of_three_teams(folder: Path, store: Store) -> InProcessServer:
    server = await InProcessServer(folder / "server", 1, Policy(), store).open()
    people: dict[str, Headers] = {}
    for team, weight in WEIGHTS.items():
        await server.user(f"of-{team}", "member")
        await server.good("POST", "/api/teams", {"name": team, "weight": weight})
        await server.good("PUT", f"/api/teams/{team}/members/of-{team}", {"role": "member"})
        people[team] = await server.log_in(f"of-{team}")
    await server.good("POST", "/api/queue/concurrency", {"enable_fair_share": True})
    for _ in range(JOBS_OF_EACH):
        for team, headers in people.items():
            await server.submit(headers, "", worker_labels={}, name=team)
    return server


async def work(server: InProcessServer, ends: int) -> Counter[str]:
    """Carries out this many jobs, as many at a time as there is room for, and returns the seconds that teams have used."""
    worker, random = await server.worker("gpu", SLOTS), Random(5)
    used: Counter[str] = Counter()
    going: list[tuple[float, int, dict[str, object], str]] = []
    for number in range(ends):
        for offer in await worker.offers():
            await worker.accept(offer)
            team = str((await server.good("GET", f"/api/jobs/{offer['job_id']}"))["name"])
            lasts_s = random.randint(1800, 5400)
            heappush(going, (server.clock.at + lasts_s, number, offer, team))
            used[team] += lasts_s
        server.clock.at, _, offer, _ = heappop(going)
        await worker.report(dict(offer), "completed", exit_code=0)
    return used


async def test_three_teams_get_what_is_theirs_and_a_restart_changes_nobodys_turn(
    database: Opener, tmp_path: Path
) -> None:
    server = await a_server_of_three_teams(tmp_path, database())
    try:
        used = await work(server, 150)
        whole = sum(used.values())
        parts = {team: seconds / whole for team, seconds in used.items()}
        assert parts == pytest.approx({"five": 0.5, "three": 0.3, "two": 0.2}, abs=0.02)
        longer = relative(in_order(server.index.roster))
        await server.good("POST", "/api/queue/concurrency", {"fair_share_half_life_s": HALF_LIFE_S})
        before = in_order(server.index.roster)
        assert relative(before) != pytest.approx(longer, rel=1e-3), "another half-life weighs the past anew"
    finally:
        await server.close()

    store, index = database(), FleetIndex()
    fleet = Fleet(store, index, server.clock, SeededIds(2), StreamHub(), Policy())
    try:
        await fleet.start()
        await fleet.act(lambda transaction: None)
        after = in_order(index.roster)
        assert [class_id for *_, class_id in after] == [class_id for *_, class_id in before]
        assert len(after) == len(WEIGHTS)
        assert [place for _, place, _ in after] == [place for _, place, _ in before]
        assert relative(after) == pytest.approx(relative(before), rel=1e-9)
    finally:
        await store.close()


def in_order(roster: Roster) -> list[Precedence]:
    return sorted(roster.lines.line_of(roster.lines.classes_with_jobs()))


def relative(line: list[Precedence]) -> list[float]:
    """Sums of use are compared, and mean nothing by themselves."""
    return [used / line[0][0][0] for (used, _), _, _ in line]
