"""The server's disk fails under it: it says so, ends, and loses nothing that it has answered."""

import resource

import httpx2

from tests.e2e.kit import World
from tests.e2e.processes import wait_until


def submitted(world: World) -> str:
    return world.submit(world.command("true"))


def test_a_disk_that_cannot_be_written_ends_the_server_so_that_it_is_started_again(world: World) -> None:
    server = world.orchestrator
    known = submitted(world)
    # The journal cannot grow, as on a disk that fails; the server's log still can.
    limit = (world.home / "fleet.db-wal").stat().st_size
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    wait_until(lambda: wrote_nothing(world), "a write is refused, or the server has ended")
    assert server.wait() != 0
    assert "The server ends, to be started again" in server.text
    world.restart_server()
    assert world.job(known)["status"] == "queued"


def wrote_nothing(world: World) -> bool:
    try:
        submitted(world)
    except (AssertionError, httpx2.HTTPError):
        return not world.orchestrator.alive
    return False


def test_a_journal_that_was_removed_costs_nothing_that_was_answered(world: World) -> None:
    server = world.orchestrator
    known = [submitted(world) for _ in range(5)]
    (world.home / "fleet.db-wal").unlink()
    assert server.wait() != 0
    world.restart_server()
    assert {job["id"] for job in world.get("/api/jobs")["jobs"]} == set(known)
