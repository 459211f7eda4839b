"""What is shown is so: a worker that lost its connection is not free, and whoever waits for it is told so."""

import time

from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.e2e.proxy import Proxy
from tests.stop_watch import StopWatch


def test_a_worker_that_lost_its_connection_is_reconnecting_within_seconds_and_explain_names_it(
    bare_world: World,
) -> None:
    bare_world.start_server(SIMPLETUNER_HEARTBEAT_TIMEOUT="30", SIMPLETUNER_HEARTBEAT_INTERVAL="5")
    with Proxy(bare_world.port) as proxy:
        worker = bare_world.start_worker("gpu-1", url=proxy.url)
        worker.running.signal(19)
        proxy.reset()
        with StopWatch() as watch:
            wait_until(lambda: worker.seen["connection"] == "reconnecting", "it is shown", 30)
            assert watch.elapsed_s < 4.0
        assert worker.status == "connecting"
        assert worker.seen["offline_since"] is not None
        job_id = bare_world.submit(bare_world.command("true"))
        why = bare_world.explain(job_id)
        assert why["code"] == "ALL_MATCHING_RECONNECTING"
        assert why["sentence"].startswith("gpu-1 lost its connection ")
        worker.running.signal(18)
        bare_world.becomes(job_id, "completed")
        worker.becomes("idle")


def test_a_worker_that_died_with_the_server_is_not_shown_as_idle_after_the_restart(bare_world: World) -> None:
    bare_world.start_server(SIMPLETUNER_HEARTBEAT_TIMEOUT="30", SIMPLETUNER_HEARTBEAT_INTERVAL="5")
    worker = bare_world.start_worker("gpu-1")
    bare_world.kill_server()
    worker.running.kill()
    bare_world.restart_server()
    wait_until(lambda: worker.seen["connection"] == "reconnecting", "it is shown", 10)


def test_a_worker_whose_token_is_rotated_is_reconnecting_at_once_and_explain_names_it(
    bare_world: World,
) -> None:
    bare_world.start_server(SIMPLETUNER_HEARTBEAT_TIMEOUT="30", SIMPLETUNER_HEARTBEAT_INTERVAL="5")
    worker = bare_world.start_worker("gpu-1")
    bare_world.post(f"/api/admin/workers/{worker.id}/token")
    for _ in range(2):
        seen = worker.seen
        assert (seen["connection"], seen["status"]) == ("reconnecting", "connecting")
        assert seen["offline_since"] is not None
        time.sleep(2.0)  # its agent tries on with the old token meanwhile
    job_id = bare_world.submit(bare_world.command("true"))
    why = bare_world.explain(job_id)
    assert (why["code"], why["params"]["worker"]) == ("ALL_MATCHING_RECONNECTING", "gpu-1")
    assert why["sentence"].startswith("gpu-1 lost its connection ")
