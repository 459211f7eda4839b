"""A training on two nodes behind walls, stopped with a checkpoint and gone on with: data and checkpoint reach every node."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.jobs.test_job_isolation import what_is_missing
from tests.e2e.jobs.test_shown_pictures import trainer_python
from tests.e2e.kit import World
from tests.e2e.nodes.stub_parts import TRAIN
from tests.e2e.nodes.test_nodes import CALM, Pair, log_of
from tests.e2e.processes import wait_until

NO_WALL = bool(what_is_missing("user")) and bool(what_is_missing("namespace"))


def seen(world: World, job_id: str, attempt: int) -> list[dict[str, Any]]:
    """What the parts of this attempt say that they see: processes 0 and 2 are the first of their node."""

    def said(rank: int) -> list[str]:
        text = world.call("GET", f"/api/jobs/{job_id}/logs?rank={rank}&attempt={attempt}").text
        return [line.partition("sees ")[2] for line in text.splitlines() if "sees {" in line]

    wait_until(lambda: said(0) and said(2), f"both parts of attempt {attempt} say what they see")
    return [json.loads(said(rank)[0]) for rank in (0, 2)]


@pytest.mark.skipif(NO_WALL, reason="no wall")
def test_a_machine_that_ends_saves_on_both_nodes_and_the_next_attempt_has_all_it_needs_on_both(
    bare_world: World, tmp_path: Path
) -> None:
    world = bare_world
    world.start_server(**CALM)
    pair = Pair(world, "--isolation", "required", python=trainer_python(tmp_path / "trainer", TRAIN))
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "cat.txt").write_text("a cat")
    pushed = world.cli("data", "push", str(tmp_path / "pets"))
    places = [pair.first.work_dir, world.folder / "follower"]
    kept = [path for place in places for path in place.iterdir() if path.is_file() and path.stat().st_size]
    assert {path.parent for path in kept} == set(places)
    canaries = [str(path) for path in (pair.secret, world.home / "admin_token", *kept)]
    job_id = world.submit(
        {
            "trainer": "simpletuner",
            "settings": {"model_family": "sdxl", "max_train_steps": 100},
            "dataloader": [{"id": "pets", "type": "local", "instance_data_dir": "dataset://pets"}],
            "datasets": {"pets": pushed.stdout.strip()},
            "env": {"CANARIES": json.dumps(canaries)},
            "resources": {"gpus": 4, "nodes": 2},
        }
    )
    parts = seen(world, job_id, 1)
    assert [part["pictures"] for part in parts] == [{"cat.txt": "a cat"}] * 2, "each node has the data"
    assert [part["stolen"] for part in parts] == [[], []], "each part is behind a wall"
    assert [part["resumed"] for part in parts] == [[], []]

    world.kill_server()
    world.restart_server()
    pair.follower.signal(signal.SIGUSR1)
    wait_until(lambda: world.attempts(job_id)[0]["outcome"] == "released", "the attempt is given back")
    (before,) = world.attempts(job_id)
    assert before["reason"] == "interrupted"
    assert "saves with the others" in log_of(world, job_id, 2), "the other node was asked, too"
    assert world.job(job_id)["checkpoint_step"] == 7
    assert pair.first.running.wait() == 0
    assert pair.follower.wait() == 0

    pair.follower = pair.start_follower()
    pair.first.start()
    assert [part["resumed"] for part in seen(world, job_id, 2)] == [["checkpoint-7"]] * 2
    assert world.becomes(job_id, "completed")["resumed_from_step"] == 7
