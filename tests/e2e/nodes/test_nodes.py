"""One worker on two nodes, with real programs: its jobs run on both or on none, whoever dies."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from devtools.ports import free_port
from simpletuner_fleet.providers.node_secret import new_node_secret
from tests.e2e.kit import Worker, World
from tests.e2e.processes import Program, alive, stopped, wait_until

TRAINER = Path(__file__).with_name("meeting_trainer.py")
TWO_GPUS = [{"name": "NVIDIA A100-SXM4-80GB", "vram_gb": 80, "count": 2}]
CALM = {"SIMPLETUNER_HEARTBEAT_INTERVAL": "0.5", "SIMPLETUNER_HEARTBEAT_TIMEOUT": "8.0"}
Parts = list[dict[str, Any]]


class Pair:
    """The two nodes of one worker."""

    def __init__(self, world: World, *more: str, python: str = sys.executable) -> None:
        """`more` are words for both nodes."""
        self.world, self.more = world, more
        world.environment["SIMPLETUNER_TRAINER_PYTHON"] = python
        self.secret = world.folder / "nodes.pem"
        self.secret.write_text(new_node_secret())
        self.secret.chmod(0o600)
        self.port = free_port()
        self.follower = self.start_follower()
        self.first: Worker = world.start_worker(
            "pair",
            *("--nodes", "2", "--node-listen", f"127.0.0.1:{self.port}"),
            *("--node-secret-file", str(self.secret)),
            *more,
            gpus=TWO_GPUS,
        )

    def start_follower(self) -> Program:
        words = ("--node-of", f"127.0.0.1:{self.port}", "--node-secret-file", str(self.secret))
        inventory = {"SIMPLETUNER_GPU_INVENTORY": json.dumps(TWO_GPUS)}
        work = ("--work-dir", str(self.world.folder / "follower"))
        return self.world.start("follower", "worker", *words, *work, *self.more, **inventory)

    def submit(self, folder: Path, **options: Any) -> str:
        folder.mkdir(exist_ok=True)
        config = self.world.command(sys.executable, "-I", "-S", str(TRAINER), str(folder))
        return self.world.submit({**config, "resources": {"gpus": 4, "nodes": 2}}, **options)


@pytest.fixture
def pair(bare_world: World) -> Pair:
    bare_world.start_server(**CALM)
    return Pair(bare_world)


def met(folder: Path, attempt: int = 1) -> Parts:
    files = [folder / f"met-{attempt}-{rank}.json" for rank in (0, 1)]
    wait_until(lambda: all(file.exists() for file in files), f"both parts of attempt {attempt} meet")
    return [json.loads(file.read_text()) for file in files]


def open_gate(folder: Path, *, fails: str = "") -> None:
    """Ends all parts at once: it is whole when it is there, so that each of them reads the same."""
    (folder / "gate.tmp").write_text(fails)
    (folder / "gate.tmp").rename(folder / "gate")


def log_of(world: World, job_id: str, rank: int) -> str:
    return world.call("GET", f"/api/jobs/{job_id}/logs?rank={rank}").text


def test_a_job_trains_on_both_nodes_and_everybody_is_told_how_it_ends(pair: Pair, tmp_path: Path) -> None:
    world = pair.world
    seen = pair.first.seen
    assert (seen["nodes"], seen["gpu_count"]) == (2, 4)
    assert [gpu["node"] for gpu in seen["gpus"]] == [0, 0, 1, 1]
    single = world.submit(world.command("true"), gpus=1)
    assert world.explain(single)["code"] == "NODES_MATCH_NONE"
    world.put("/api/secrets/hidden", {"value": "hush-hush-hush"})

    folder = tmp_path / "good"
    folder.mkdir()
    config = world.command(sys.executable, "-I", "-S", str(TRAINER), str(folder))
    config |= {"resources": {"gpus": 4, "nodes": 2}, "secrets": {"PASSWORD": "hidden"}}
    job_id = world.submit(config)
    parts = met(folder)
    assert len(world.job(job_id)["gpus"]) == 4
    assert [part["gpus"] for part in parts] == ["0,1", "0,1"]
    assert [part["secret"] for part in parts] == ["hush-hush-hush"] * 2
    assert [part["token"] for part in parts] == [True, False]
    assert [part["leaked"] for part in parts] == [[], []]
    assert parts[0]["output"] != parts[1]["output"]
    open_gate(folder)
    world.becomes(job_id, "completed")
    assert "part 1 of 2 has met" in log_of(world, job_id, 2)

    folder = tmp_path / "bad"
    job_id = pair.submit(folder)
    met(folder)
    open_gate(folder, fails="1")
    job = world.becomes(job_id, "failed")
    attempt = world.attempts(job_id)[0]
    assert (attempt["outcome"], attempt["exit_code"]) == ("failed", 3)
    assert "node 1" in job["error"]
    assert "rank 2" in job["error"]
    assert "part 1 fails" in attempt["last_lines"]

    folder = tmp_path / "cancelled"
    job_id = pair.submit(folder)
    pids = [part["pid"] for part in met(folder)]
    world.post(f"/api/queue/{job_id}/cancel")
    world.becomes(job_id, "cancelled")
    assert not any(map(alive, pids))

    folder = tmp_path / "late"
    job_id = pair.submit(folder, time_limit_s=3.0)
    pids = [part["pid"] for part in met(folder)]
    assert "time limit" in world.becomes(job_id, "failed")["error"]
    assert not any(map(alive, pids))
    pair.first.running.signal(signal.SIGTERM)
    assert pair.first.running.wait() == 0
    assert pair.follower.wait() == 0, "nodes leave with their worker"


def test_a_follower_that_dies_costs_the_job_nothing_and_it_runs_again_when_there_is_one(
    pair: Pair, tmp_path: Path
) -> None:
    world, folder = pair.world, tmp_path / "job"
    job_id = pair.submit(folder)
    pids = [part["pid"] for part in met(folder)]
    pair.follower.kill()
    wait_until(lambda: not any(map(alive, pids)), "both parts end")
    wait_until(lambda: world.attempts(job_id)[0]["outcome"] == "released", "the attempt is given back")
    first = world.attempts(job_id)[0]
    assert first["reason"] == "cut_off"
    assert "node 1" in first["error"]
    assert world.becomes(job_id, "queued")["losses"] == 0
    assert [bool(gpu["unusable"]) for gpu in pair.first.seen["gpus"]] == [False, False, True, True]
    assert world.explain(job_id)["code"] == "ALL_MATCHING_UNUSABLE"

    pair.follower = pair.start_follower()
    pids = [part["pid"] for part in met(folder, attempt=2)]
    pair.first.running.kill()
    wait_until(lambda: not any(map(alive, pids)), "both parts end by themselves when the first node dies")
    assert pair.follower.alive
    pair.first.start()
    met(folder, attempt=3)
    open_gate(folder)
    world.becomes(job_id, "completed")


def test_a_worker_that_is_cut_off_pauses_its_parts_on_all_nodes(bare_world: World, tmp_path: Path) -> None:
    world = bare_world
    world.start_server(**{**CALM, "SIMPLETUNER_HEARTBEAT_TIMEOUT": "4.0"})
    pair, folder = Pair(world), tmp_path / "job"
    job_id = pair.submit(folder)
    pids = [part["pid"] for part in met(folder)]
    world.orchestrator.signal(signal.SIGSTOP)
    wait_until(lambda: all(map(stopped, pids)), "both parts are paused")
    world.orchestrator.signal(signal.SIGCONT)
    wait_until(lambda: not any(map(stopped, pids)), "both parts go on, or end")
    open_gate(folder)
    world.becomes(job_id, "completed")
