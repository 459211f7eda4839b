"""A job brings a machine from a cloud: real server, real worker, and the vendor's API as a server of our own with quirks."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.providers.vendors.vast_server import VastServer
from tests.providers.vendors.vendor_server import KEY

LONG_S = 150.0
IDLE_S, SWEEP_S, SETTLE_S = 3, 0.5, 3


@pytest.fixture
def vast() -> Iterator[VastServer]:
    with VastServer() as server:
        server.boots = True
        yield server


def machines(world: World) -> list[dict[str, Any]]:
    return list(world.get("/api/machines?gone=true")["machines"])


def make_pool(world: World, vast: VastServer) -> None:
    vast.within = world.environment
    stored = world.call("PUT", "/api/secrets/vast-key", {"value": KEY})
    assert stored.status_code == 200, stored.text
    worker = (
        f"{sys.executable} -m simpletuner_fleet.cli.main worker --work-dir {world.home}/brought-$CONTAINER_ID"
    )
    inventory = '[{"name": "RTX 4090", "vram_gb": 24, "count": 1}]'
    settings = {
        "image": "worker:1",
        "api_url": vast.url,
        "command": f"SIMPLETUNER_GPU_INVENTORY='{inventory}' {worker}",
        "settle_s": str(SETTLE_S),
        "sweep_s": str(SWEEP_S),
    }
    saved = world.cli(
        *("pools", "set", "vast", "--provider", "vast", "--secret", "vast-key", "--max-machines", "2"),
        *("--trainer", "command", "--idle", f"{IDLE_S}s", "--market", "spot", "--max-price", "1"),
        *(word for key, value in settings.items() for word in ("--setting", f"{key}={value}")),
    )
    assert saved.returncode == 0, saved.stderr


def test_no_machine_is_forgotten_doubled_or_left_billing(bare_world: World, vast: VastServer) -> None:
    world = bare_world
    world.start_server()
    make_pool(world, vast)
    checked = world.cli("pools", "check", "vast")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "0.22 USD" in checked.stdout
    assert "RTX 4090" in world.cli("offers", "--pool", "vast").stdout

    foreign = vast.make("somebody's", 9.0, {}, "true")
    vast.lag_s = 1.0
    vast.faults["create"].append("lost answer")
    vast.faults["destroy"].extend(["500 after", "429"])
    gate = world.gate()
    job_id = world.submit(world.ticking(gate), max_price_micros=2_500_000, worker_labels={"pool": "*"})
    world.runs(job_id, within_s=LONG_S)
    (machine,) = [one for one in machines(world) if one["why"] != "stray"]
    assert (machine["status"], machine["spot"], machine["hourly_micros"]) == ("joined", True, 220_000)
    stray = vast.make(f"{machine['name'].rpartition('-')[0]}-left", 0.3, {}, "sleep 600")
    wait_until(lambda: not stray.costs, "one that carries our name and that nobody knows is ended", LONG_S)
    world.kill_server()
    world.restart_server()
    world.goes_on(job_id)
    gate.touch()
    world.becomes(job_id, "completed", LONG_S)

    assert world.job(job_id)["cost"]["currency"] == "USD"

    ours = [one for one in vast.machines.values() if one is not foreign]
    wait_until(lambda: not any(one.costs for one in ours), "nothing of ours costs any more", LONG_S)
    wait_until(lambda: all(one["status"] == "gone" for one in machines(world)), "and all are gone", LONG_S)
    assert len(ours) == 2
    assert vast.count("create") == 1
    assert foreign.costs


def test_an_outbid_instance_is_destroyed_once_its_job_has_moved(bare_world: World, vast: VastServer) -> None:
    world = bare_world
    world.start_server()
    make_pool(world, vast)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate), max_retries=5)
    world.runs(job_id, within_s=LONG_S)
    (outbid,) = vast.costing()
    outbid.state = "stopped"
    vast.power_off(outbid)
    wait_until(lambda: not outbid.costs, "the paused instance is destroyed", LONG_S)
    world.runs(job_id, times=2, within_s=LONG_S)
    gate.touch()
    world.becomes(job_id, "completed", LONG_S)
    wait_until(lambda: not vast.costing(), "nothing costs any more", LONG_S)
