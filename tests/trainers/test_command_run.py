"""A bundle, from its offer to its end, in real processes."""

import json
import secrets
import sys
from pathlib import Path
from typing import Any

from simpletuner_fleet.agent.guard.runner import Runner
from simpletuner_fleet.agent.guard.shim_client import Order
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Paths
from simpletuner_fleet.trainers.registry import Registry
from tests.agent.shim_fixtures import read, start, until

TRAIN = """
import json, os, sys, time
config = json.load(open(sys.argv[1]))
with open(os.path.join(sys.argv[2], "model.json"), "w") as file:
    json.dump({"config": config["steps"], "gpus": os.environ["CUDA_VISIBLE_DEVICES"], "env": dict(os.environ)}, file)
print("trained", flush=True)
time.sleep(config["then_sleep_s"])
"""


def offer(**settings: Any) -> JobSubmit:
    return JobSubmit(
        job_id="j_1",
        attempt=1,
        attempt_id=f"a_{secrets.token_hex(6)}",
        epoch=1,
        config_name="tiny",
        config={"command": [sys.executable, "-c", TRAIN, "{config}", "{output_dir}"], **settings},
        trainer="command",
        upload_endpoint="http://orchestrator/api/upload",
        gpus=["GPU-aaaa"],
        gpu_indices=[0],
    )


def order_for(state: StateDir, given: JobSubmit) -> Order:
    attempt = state.create_attempt(given.attempt_id)
    attempt.save_order(given)
    paths = Paths(attempt_dir=attempt.path, config_dir=attempt.config_dir, output_dir=attempt.output_dir)
    worker = {"PATH": "/usr/bin:/bin", "SIMPLETUNER_WORKER_TOKEN": "wt_canary"}
    launch = Registry.load(environment=worker).get(given.trainer).launch(given, paths)
    return Order(
        attempt_id=given.attempt_id,
        attempt_dir=str(attempt.path),
        argv=launch.argv,
        env=launch.env,
        cwd=launch.cwd,
        output=str(attempt.output_log),
    )


async def test_a_command_runs_to_completion_with_its_config_gpus_and_output(tmp_path: Path) -> None:
    given = offer(steps=7, then_sleep_s=0)
    with StateDir.open(tmp_path / "worker") as state:
        async with Runner() as runner:
            running = await start(runner, order_for(state, given))
            ended = await running.wait()
            await running.release()
        made = json.loads(read(state.attempt(given.attempt_id).output_dir / "model.json"))
    assert (ended.reason, ended.exit_code, ended.last_lines) == ("exited", 0, "trained")
    assert (made["config"], made["gpus"]) == (7, "GPU-aaaa")
    assert "canary" not in json.dumps(made)


async def test_a_command_is_stopped_and_what_it_made_stays(tmp_path: Path) -> None:
    given = offer(steps=7, then_sleep_s=600)
    with StateDir.open(tmp_path / "worker") as state:
        attempt = state.attempt(given.attempt_id)
        async with Runner() as runner:
            running = await start(runner, order_for(state, given))
            await until(lambda: "trained" in read(attempt.output_log))
            running.stop(600)
            ended = await running.wait()
            await running.release()
        assert read(attempt.output_dir / "model.json")
    assert ended.reason == "stopped"
