"""Checkpoints straight to a strict bucket and back, with real programs: the orchestrator is killed, then the machine."""

import hashlib
import re
import sys
import threading
from pathlib import Path

from tests.e2e.kit import World
from tests.e2e.storage.test_checkpoints import LONG, SAVES_ONCE, attempt_folder, kill_machine, stored_step
from tests.s3_gate import Seen, gate_before
from tests.s3_server import BUCKET, CREDENTIALS, SECRET, running_s3

PARTS = 3
"""At 80 megabits a second a part is 10 MB, and the checkpoint has 24."""


def test_a_checkpoint_goes_straight_to_the_bucket_past_a_killed_orchestrator_and_comes_back_from_there(
    bare_world: World, tmp_path: Path
) -> None:
    world = bare_world
    world.environment.update(CREDENTIALS)
    with running_s3() as endpoint, gate_before(endpoint) as gate:
        world.start_server(
            SIMPLETUNER_STORAGE_URL=f"s3://{BUCKET}/fleet?endpoint={gate.endpoint}",
            SIMPLETUNER_STORAGE_DIRECT="workers",
            SIMPLETUNER_HEARTBEAT_TIMEOUT="15",
        )
        assert world.get("/health/ready")["direct"] == "on"
        gate.taken.clear()
        under_way, killed = threading.Event(), threading.Event()

        def hold_the_second(seen: Seen) -> None:
            if seen.by_link and seen.is_part and seen.query["partNumber"] == "2":
                under_way.set()
                assert killed.wait(LONG)

        gate.before = hold_the_second
        first = world.start_worker("first", "--upload-limit-mbps", "80")
        job_id = world.submit(world.command(sys.executable, "-c", SAVES_ONCE))
        assert under_way.wait(LONG)
        world.kill_server()
        killed.set()
        world.restart_server()
        assert stored_step(world, job_id, at_least=7) == 7
        [attempt] = world.attempts(job_id)
        made = attempt_folder(first, attempt) / "job" / "output" / "checkpoint-7" / "weights"
        digest = hashlib.sha256(made.read_bytes()).hexdigest()
        # A server that starts sends something of its own by link, too: it tries whether the bucket can do all of it.
        sent = [seen for seen in gate.parts_by_link if digest in seen.target]
        assert {seen.query["partNumber"] for seen in sent} == {"1", "2", "3"}
        assert re.search(r"simpletuner_storage_direct 1\.0", world.call("GET", "/metrics").text)

        gate.taken.clear()
        done = world.cli("jobs", "download", job_id, "--latest-checkpoint", "--to", str(tmp_path / "fetched"))
        assert done.returncode == 0, done.stderr
        [fetched] = (tmp_path / "fetched").rglob("weights")
        assert hashlib.sha256(fetched.read_bytes()).hexdigest() == digest
        assert [seen for seen in gate.taken if seen.by_link and digest in seen.target]

        second = world.create_worker("second")
        words = ["--orchestrator-url", world.url, "--name", "second", "--work-dir", str(second.work_dir)]
        gate.taken.clear()
        check = world.cli("worker", *words, "--check", **second.environment)
        assert "the bucket can be reached" in check.stdout, check.stdout + check.stderr
        assert [seen.method for seen in gate.taken if seen.by_link] == ["GET", "PUT"]

        gate.taken.clear()
        kill_machine(first, attempt)
        second.start(*words, "--persistent")
        world.becomes(job_id, "completed", LONG)
        log = attempt_folder(second, world.attempts(job_id)[-1]) / "output.log"
        assert f"resumed with {digest}" in log.read_text()
        assert [seen for seen in gate.taken if seen.by_link and digest in seen.target]
        said = "".join(program.text for program in world.programs) + check.stdout + done.stdout + done.stderr
        assert "X-Amz-Signature" not in said
        assert SECRET not in said
