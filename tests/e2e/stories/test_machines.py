"""A job brings a machine, runs there, and the machine goes: real processes from the first command to the last bill."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.kit import World
from tests.e2e.processes import wait_until

LONG_S = 90.0
POOL = ("--provider", "process", "--max-machines", "2", "--trainer", "command", "--idle", "3s")
GPU = (
    "--setting",
    "gpus=1",
    "--setting",
    "gpu_name=A100",
    "--setting",
    "vram_gb=80",
    "--setting",
    "price=3.6",
)


def machines(world: World) -> list[dict[str, Any]]:
    return list(world.get("/api/machines?gone=true")["machines"])


def events(world: World) -> list[str]:
    entries = world.get("/api/audit?limit=200")["entries"]
    return [one["event_type"] for one in reversed(entries) if one["event_type"].startswith("machine.")]


def test_a_job_brings_a_machine_that_survives_a_killed_server_and_goes_when_idle(bare_world: World) -> None:
    world = bare_world
    world.start_server()
    saved = world.cli("pools", "set", "here", *POOL, *GPU)
    assert saved.returncode == 0, saved.stderr
    offers = world.cli("offers", "here", "-o", "json")
    assert json.loads(offers.stdout)["items"][0]["hourly_micros"] == 3_600_000

    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    coming = wait_until(
        lambda: [one for one in machines(world) if one["status"] != "wanted"], "it is asked for"
    )
    assert coming
    explained = world.explain(job_id)
    if world.job(job_id)["status"] == "queued":
        assert explained["code"] == "WAITING_FOR_MACHINE", explained
        assert "1 x A100 80 GB, 3.60 USD an hour" in explained["sentence"]

    world.runs(job_id, within_s=LONG_S)
    (machine,) = machines(world)
    assert machine["status"] == "joined"
    world.kill_server()
    world.restart_server()
    world.goes_on(job_id)
    gate.touch()
    world.becomes(job_id, "completed", LONG_S)

    wait_until(lambda: machines(world)[0]["status"] == "gone", "the idle machine goes", LONG_S)
    (machine,) = machines(world)
    assert machine["why"] == "idle"
    assert 0 < machine["cost_micros"] < 1_000_000
    assert events(world) == [
        *("machine.wanted", "machine.asked", "machine.booting", "machine.joined"),
        *("machine.destroying", "machine.gone"),
    ]
    assert not any((world.home / "machines" / "process").iterdir())
    assert world.get("/api/admin/workers")["workers"] == []
    pool = world.get("/api/pools/here")
    assert pool["machines"] == 0
    assert pool["this_month_micros"] == machine["cost_micros"]
    listed = world.cli("machines", "list", "--all", "-o", "json")
    assert [one["why"] for one in json.loads(listed.stdout)["items"]] == ["idle"]


def test_a_machine_is_ended_by_hand_and_a_pool_goes_with_its_last_machine(
    world: World, tmp_path: Path
) -> None:
    world.put("/api/pools/here", {"provider": "process", "trainers": ["command"], "min_machines": 1})
    wait_until(lambda: [one["status"] for one in machines(world)] == ["joined"], "it joins", LONG_S)
    (machine,) = machines(world)
    deleted = world.cli("pools", "delete", "here")
    assert deleted.returncode == 0, deleted.stderr
    ended = world.cli("machines", "end", machine["id"], "--now")
    assert ended.returncode == 0, ended.stderr
    wait_until(lambda: machines(world)[0]["status"] == "gone", "it goes", LONG_S)
    assert machines(world)[0]["why"] in ("asked_for", "pool_deleted")
    wait_until(lambda: world.get("/api/pools")["pools"] == [], "the pool goes, too", LONG_S)
