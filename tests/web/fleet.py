"""A fleet with a day behind it, in the data folder of a server that is yet to start.

Everything came about as it would: workers registered and took offers, trainings reported, people cancelled. Only the
clock was turned. The heartbeats of `SETTINGS` keep the workers as they are for as long as a test or a picture takes.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolRequest
from simpletuner_fleet.core.restoring import HANDS_OFF
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.http.access.limits import Rate, RateLimits
from simpletuner_fleet.http.edge.edge import EdgeSettings
from simpletuner_fleet.orchestrator.people.passwords import Cost, Passwords
from simpletuner_fleet.orchestrator.sweep import sweep_once
from simpletuner_fleet.store import open_store
from tests.http.api_kit import ADMIN, Running, TurnedClock, orchestrator
from tests.http.data_kit import push
from tests.web import crowd
from tests.web.machines import A100, H100, L40S, MAC, RTX4090, Crew, Work, picture
from tests.web.machines import Machine as JoinedMachine

SETTINGS = {
    "SIMPLETUNER_ADMIN_TOKEN": ADMIN,
    "SIMPLETUNER_HEARTBEAT_TIMEOUT": "86400",
    "SIMPLETUNER_RECONNECT_GRACE": "86400",
    "SIMPLETUNER_OFFER_TIMEOUT": "86400",
    "SIMPLETUNER_EPHEMERAL_TTL": "864000",
}
MINUTE_S, HOUR_S = 60.0, 3600.0
UNLIMITED = Rate(1e6, 1e6)
LIMITS = RateLimits(worker=UNLIMITED, user=UNLIMITED, public=UNLIMITED, failed_proof=UNLIMITED)
QUICK_HASH = Cost(memory_kib=64)
"""A tenth of a second less for each of the passwords that are set and given here; `tests/orchestrator` knows their cost."""
OUT_OF_MEMORY = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 812, in train\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB"
)


def lora(family: str, steps: int, **more: Any) -> dict[str, Any]:
    settings = {
        "model_type": "lora",
        "model_family": family,
        "learning_rate": 1e-4,
        "max_train_steps": steps,
        "train_batch_size": 4,
        "lora_rank": 32,
        "mixed_precision": "bf16",
        "seed": 42,
        **more,
    }
    return {"trainer": "simpletuner", "settings": settings}


CONFIGS = {
    "sdxl-cats": lora("sdxl", 4000),
    "flux-products": lora("flux", 12000, train_batch_size=1),
    "sd3-ink": lora("sd3", 6000),
    "ltx-waves": lora("ltxvideo", 20000),
    "nightly-eval": {"trainer": "command", "settings": {"command": ["python", "evaluate.py"]}},
}


DATASET = {
    **{f"cats/{number}.png": picture(number) for number in range(1, 4)},
    "cats/1.txt": b"a cat in a hat",
    "cats/2.txt": b"""<img src=x onerror="alert(1)"> a cat on a mat""",
    "cats/no-picture.png": b"<script>alert(1)</script>",
    "notes.md": b"# Pets",
}
PEOPLE = {"admin": "Anna", "member": "Bruno", "viewer": "Chitra"}


class KnownWorker(Struct, frozen=True):
    """How a worker goes on with another server process over the same database."""

    id: str
    token: str
    incarnation: str
    heartbeat: dict[str, Any]


class FleetState(Struct, kw_only=True):
    """What to look at, by what it shows."""

    sessions: dict[str, str] = {}
    """What the browser of each person keeps, by role. They have just logged in."""
    old_session: str = ""
    """What the administrator's other browser keeps, since yesterday."""

    workers: dict[str, str] = {}
    """Ids by name."""
    connected: list[KnownWorker] = []
    jobs: dict[str, str] = {}
    """Ids by what is told of each: `running`, `failed`, `waits-busy` …"""


def build(
    home: Path, *, workers: int = 0, jobs: int = 0, log_lines: int = 0, hostile: bool = False
) -> FleetState:
    """Some dozen workers and jobs in all states, and beside them a crowd of `workers` and `jobs`.

    `log_lines` more are in the log of the job `running`. `hostile` puts markup wherever people and programs may write.
    """
    home.mkdir(parents=True, mode=0o700)
    return asyncio.run(_build(home, workers, jobs, log_lines, hostile))


async def _build(home: Path, workers: int, jobs: int, log_lines: int, hostile: bool) -> FleetState:
    async with _orchestrator_of(home, workers, jobs) as running:
        state = FleetState()
        await _tell_the_day(running, state, log_lines)
        await machines_from_elsewhere(running, MARKUP if hostile else "no route to host")
        if hostile:
            await _tell_hostile_things(running, state)
        return state


@asynccontextmanager
async def _orchestrator_of(home: Path, workers: int, jobs: int) -> AsyncIterator[Running]:
    clock = TurnedClock()
    clock.at = time.time() - 26 * HOUR_S
    store, blobs = open_store(f"sqlite:///{home / 'fleet.db'}"), FolderBlobs(home / "storage")
    try:
        if workers or jobs:
            await store.write(lambda tx: crowd.add(tx, workers, jobs, clock.at))
        policy = Policy(heartbeat_timeout_s=86_400.0, ephemeral_ttl_s=864_000.0)
        async with orchestrator(
            store,
            policy,
            EdgeSettings(limits=LIMITS),
            blobs,
            clock=clock,
            local_enabled=True,
            passwords=Passwords(QUICK_HASH),
        ) as running:
            yield running
    finally:
        blobs.close()
        await store.close()


async def _tell_the_day(running: Running, state: FleetState, log_lines: int) -> None:
    clock = running.clock
    for name, bundle in CONFIGS.items():
        await running.save_config(name, bundle)
    await push(running.http, DATASET, "pets")
    async with Crew(running) as crew:
        for role, name in PEOPLE.items():
            state.sessions[role] = await crew.let_in(role, name)
        await _workers_come(crew, state)
        await _yesterday(crew, state)
        clock.at = time.time() - 163 * MINUTE_S
        await _lost_and_resumed(crew, state)
        await _running_now(crew, state, log_lines)
        await _waiting_now(crew, state)
        await _workers_now(crew, state)
        clock.at = time.time()
        for machine in crew.machines.values():
            if machine.gpus:
                await machine.beat()
                state.connected.append(_known(machine))
        await sweep_once(running.fleet)
        state.old_session = state.sessions["admin"]
        for role, name in PEOPLE.items():
            state.sessions[role] = await crew.log_in(role, name)


def _known(machine: JoinedMachine) -> KnownWorker:
    heartbeat = machine.heartbeat_body(*machine.held.values(), gpus=machine.gpu_samples())
    return KnownWorker(machine.id, machine.token, machine.incarnation, heartbeat)


async def _workers_come(crew: Crew, state: FleetState) -> None:
    for name, model, choices in (
        ("atlas-1", A100, {"labels": {"gpu_type": "a100", "room": "north"}}),
        ("atlas-2", A100, {"labels": {"gpu_type": "a100", "room": "north"}}),
        ("titan", H100, {"labels": {"gpu_type": "h100", "room": "south"}}),
        ("tower-anna", RTX4090, {"labels": {"gpu_type": "rtx4090"}}),
        ("desk-bruno", RTX4090, {"labels": {"gpu_type": "rtx4090"}}),
        ("spot-7f3a", L40S, {"worker_type": "ephemeral", "labels": {"gpu_type": "l40s", "cloud": "spot"}}),
        ("spot-91cc", L40S, {"worker_type": "ephemeral", "labels": {"gpu_type": "l40s", "cloud": "spot"}}),
        ("studio", MAC, {"labels": {"gpu_type": "m4"}}),
        ("atlas-3", None, {"labels": {"gpu_type": "a100", "room": "south"}}),
    ):
        state.workers[name] = (await crew.machine(name, model, **choices)).id
        crew.running.clock.at += 2 * MINUTE_S


async def _yesterday(crew: Crew, state: FleetState) -> None:
    """Work that is done, in one way or another."""
    clock = crew.running.clock
    for turn in range(6):
        work = await _train_whole(crew, "sdxl-cats", 400, HOUR_S, worker_labels={"gpu_type": "a100"})
        state.jobs["completed"] = work.job_id
        work = await crew.begin("member", config_name="nightly-eval", worker_labels={"gpu_type": "rtx4090"})
        await work.say([f"image {at}: score {0.8 + at / 100:.2f}" for at in range(12)])
        clock.at += 20 * MINUTE_S
        await work.report("completed", exit_code=0)
        clock.at += turn * 5 * MINUTE_S
    work = await crew.begin("member", config_name="flux-products", worker_labels={"gpu_type": "rtx4090"})
    clock.at += 12 * MINUTE_S
    await work.train(range(120), 12000, 11 * MINUTE_S)
    await work.say(OUT_OF_MEMORY.splitlines())
    await work.report(
        "failed", exit_code=1, error="the trainer ended with exit code 1", last_lines=OUT_OF_MEMORY
    )
    state.jobs["failed"] = work.job_id
    work = await crew.begin("admin", config_name="sd3-ink", worker_labels={"gpu_type": "h100"}, gpus=4)
    clock.at += 30 * MINUTE_S
    await work.train(range(900), 6000, 29 * MINUTE_S)
    await crew.running.post(f"/api/jobs/{work.job_id}/cancel")
    clock.at += 10
    await work.report("cancelled", exit_signal=15)
    state.jobs["cancelled"] = work.job_id


async def _train_whole(crew: Crew, config: str, steps: int, seconds: float, **options: Any) -> Work:
    work = await crew.begin("admin", config_name=config, **options)
    await work.report("running")
    crew.running.clock.at += seconds
    await work.train(range(steps), steps, seconds)
    await work.checkpoint(steps)
    await work.samples(steps)
    await work.report("completed", exit_code=0)
    return work


async def _lost_and_resumed(crew: Crew, state: FleetState) -> None:
    """A spot machine goes away in the middle of it; another goes on from the newest checkpoint."""
    clock = crew.running.clock
    work = await crew.begin(
        "admin", config_name="ltx-waves", worker_labels={"cloud": "spot"}, name="waves, third take"
    )
    clock.at += 40 * MINUTE_S
    await work.train(range(3200), 20000, 39 * MINUTE_S)
    await work.checkpoint(3000)
    await work.samples(3000)
    gone = work.machine
    await gone.goodbye("spot instance is being taken back")
    state.workers["gone"] = gone.id
    other = next(one for one in crew.machines.values() if one is not gone and one.id in _spots(state))
    again = await other.hold()
    clock.at += 70 * MINUTE_S
    await again.train(range(3000, 9400), 20000, 70 * MINUTE_S)
    await again.checkpoint(9000)
    await again.samples(9000)
    state.jobs["resumed"] = again.job_id


def _spots(state: FleetState) -> set[str]:
    return {worker_id for name, worker_id in state.workers.items() if name.startswith("spot")}


async def _running_now(crew: Crew, state: FleetState, log_lines: int) -> None:
    clock = crew.running.clock
    work = await crew.begin(
        "admin",
        config_name="sdxl-cats",
        worker_labels={"gpu_type": "a100"},
        gpus=2,
        name="cats at dusk",
        priority="high",
    )
    big = await crew.begin("member", config_name="flux-products", worker_labels={"gpu_type": "h100"}, gpus=8)
    held = await crew.begin("admin", config_name="sd3-ink", worker_labels={"gpu_type": "a100"}, gpus=2)
    clock.at += 45 * MINUTE_S
    await work.say([f"step={at} loss={0.2 + at % 97 / 1000:.3f}" for at in range(log_lines)])
    await work.train(range(2600), 4000, 45 * MINUTE_S)
    for step in (1000, 2000, 2500):
        await work.checkpoint(step)
        await work.samples(step)
    await work.note("throughput", "The data loader waits for the disk 40 % of the time.")
    await big.train(range(1400), 12000, 44 * MINUTE_S)
    await big.checkpoint(1000)
    await held.train(range(700), 6000, 43 * MINUTE_S)
    await crew.running.post(f"/api/jobs/{held.job_id}/cancel")
    state.jobs |= {"running": work.job_id, "running-big": big.job_id, "cancelling": held.job_id}


async def _waiting_now(crew: Crew, state: FleetState) -> None:
    """Each for a reason of its own."""
    ask: dict[str, Any] = {"config_name": "sdxl-cats", "target": "worker"}
    waiting: dict[str, dict[str, Any]] = {
        "waits-busy": {**ask, "worker_labels": {"gpu_type": "a100"}, "name": "cats at dawn"},
        "waits-behind": {**ask, "worker_labels": {"gpu_type": "a100"}},
        "waits-labels": {**ask, "worker_labels": {"gpu_type": "b200"}},
        "waits-count": {**ask, "gpus": 16},
        "waits-memory": {**ask, "min_vram_gb": 140},
        "waits-dependency": {**ask, "depends_on": [state.jobs["running"]]},
    }
    for name, options in waiting.items():
        crew.running.clock.at += MINUTE_S
        state.jobs[name] = await crew.queue("admin", **options)
    fleet = crew.running.fleet
    usual, fleet.policy = fleet.policy, replace(fleet.policy, require_approval=True)
    token = await crew.running.token("queue.submit", "queue.submit.command", name="night robot")
    async with crew.running.as_user(token) as crew.people["robot"]:
        state.jobs["waits-approval"] = await crew.queue("robot", **ask, worker_labels={"gpu_type": "h100"})
    fleet.policy = usual


async def _workers_now(crew: Crew, state: FleetState) -> None:
    running = crew.running
    await running.post(
        f"/api/admin/workers/{state.workers['desk-bruno']}/drain", {"note": "New power supply"}
    )
    submitted = await running.submit(
        config_name="nightly-eval", worker_labels={"gpu_type": "rtx4090"}, target="worker"
    )
    state.jobs["dispatched"] = submitted["job_id"]
    async with running.as_user(None) as stranger:
        await stranger.post("/api/workers/register", json={}, headers={"X-Worker-Token": "wt_" + "x" * 40})


async def machines_from_elsewhere(running: Running, printed: str) -> None:
    """A pool of a restored database, and of a plug-in that is not there: nobody is asked while pages are looked at."""
    request = PoolRequest(
        provider="nobody", max_machines=4, max_daily_micros=50_000_000, settings={"gpus": "1"}
    )
    now = running.clock.at
    pool = MachinePool(
        name="cloud", request=request, created_at=now - 3 * HOUR_S, created_by="u_1", trouble=printed
    )
    usual = Machine(
        id="m_page",
        pool="cloud",
        name="stf-fleet-page",
        state=MachineState.GONE,
        created_at=now - HOUR_S,
        asked_at=now - HOUR_S,
        gpus=1,
        gpu_name="A100",
        vram_gb=80.0,
        region=printed[:60],
        spot=True,
        offered_micros=1_890_000,
        rates=((now - HOUR_S, 1_890_000),),
        gone_at=now - 0.5 * HOUR_S,
        why="boot_deadline",
        detail=printed,
        boot_log=f"booting\n{printed}\n",
    )
    joined = replace(usual, id="m_joined", state=MachineState.JOINED, gone_at=None, why="", boot_log="")
    ending = replace(joined, id="m_ending", state=MachineState.DESTROYING, why="idle")

    def step(transaction: Transaction) -> None:
        transaction.tx.put_setting(HANDS_OFF, repr(now))
        transaction.tx.put_pool(pool)
        for machine in (usual, joined, ending):
            transaction.tx.put_machine(machine)

    await running.fleet.act(step)


MARKUP = """"><img src=x onerror="alert(1)"><script>alert(2)</script>{{7*7}}${7*7}'`"""


async def _tell_hostile_things(running: Running, state: FleetState) -> None:
    machine = await Crew(running).machine("hostile", RTX4090, labels={"gpu_type": MARKUP, MARKUP[:60]: "x"})
    state.workers["hostile"] = machine.id
    submitted = await running.submit(
        config={"trainer": "command", "settings": {"command": ["true", MARKUP], MARKUP: MARKUP}},
        worker_labels={"gpu_type": "?><img*"},
        name=MARKUP,
        target="worker",
    )
    work = await machine.hold()
    assert work.job_id == submitted["job_id"]
    await work.report("running")
    await work.say(
        [MARKUP, f"\x1b[31m{MARKUP}\x1b[0m", "\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07", "\x00\x07"]
    )
    await work.samples(1, f"{MARKUP.replace('/', '-')}.png")
    await work.store("artifact", "page", {"page.html": MARKUP.encode(), "drawing.svg": SVG}, 2)
    await work.note("hostile", MARKUP)
    await work.report("failed", exit_code=1, error=MARKUP, last_lines=f"ValueError: {MARKUP}")
    state.jobs["hostile"] = work.job_id


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(3)"><script>alert(4)</script></svg>'
