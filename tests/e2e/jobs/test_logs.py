"""What a trainer prints, on its way through real processes: to the orchestrator, and to whoever looks."""

import hashlib
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.kit import World
from tests.e2e.processes import SIMPLETUNER, wait_until

PRINTS_BYTES = """
import hashlib, os, random, sys
data = bytes(random.Random(7).randbytes(3_000_000)).replace(b"\\r", b"_")
digest = hashlib.sha256()
for at in range(0, len(data), 100_000):
    stream = 1 + at // 100_000 % 2
    os.write(stream, data[at:at + 100_000])
    digest.update(data[at:at + 100_000])
open(sys.argv[1], "w").write(digest.hexdigest())
"""
PRINTS_PROGRESS = """
import os, sys, time
print("token", os.environ["SIMPLETUNER_UPLOAD_TOKEN"], flush=True)
ranks = os.environ["SIMPLETUNER_RANK_LOG_DIR"]
os.makedirs(ranks)
open(ranks + "/rank-1.log", "w").write("I am rank 1\\n")
open(sys.argv[2], "w").write(os.environ["SIMPLETUNER_UPLOAD_TOKEN"])
for epoch in range(3):
    for part in range(400):
        sys.stderr.write(f"\\repoch {epoch}: {part}%")
        sys.stderr.flush()
        time.sleep(0.001)
    print(f"\\repoch {epoch} done", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print("the end")
"""


def log_of(world: World, job_id: str, query: str = "") -> bytes:
    answer = world.call("GET", f"/api/jobs/{job_id}/logs{query}")
    assert answer.status_code == 200
    return answer.content


def test_every_byte_of_both_streams_arrives_also_when_agent_and_server_are_killed(world: World) -> None:
    worker = world.start_worker("gpu-1")
    digest_file = world.folder / "digest"
    job_id = world.submit(world.command(sys.executable, "-I", "-S", "-c", PRINTS_BYTES, str(digest_file)))
    wait_until(lambda: log_of(world, job_id), "the log begins")
    world.kill_server()
    worker.running.kill()
    world.restart_server()
    worker.start()
    world.becomes(job_id, "completed")

    def all_there() -> bool:
        return (
            digest_file.exists()
            and hashlib.sha256(log_of(world, job_id)).hexdigest() == digest_file.read_text()
        )

    wait_until(all_there, "every byte is there")


def test_a_job_that_empties_its_own_log_ends_with_what_it_printed_after_that(world: World) -> None:
    world.start_worker("gpu-1")
    job_id = world.submit(world.command("sh", "-c", "seq 300000; echo emptied > /dev/stdout; echo the end"))
    assert world.becomes(job_id, "completed")["results"] == "stored"
    assert log_of(world, job_id).endswith(b"emptied\nthe end\n")


def test_progress_is_folded_times_are_kept_and_a_follower_survives_a_restart(world: World) -> None:
    worker = world.start_worker("gpu-1")
    gate, token = world.gate(), world.folder / "token"
    config = world.command(sys.executable, "-I", "-S", "-c", PRINTS_PROGRESS, str(gate), str(token))
    job_id = world.submit(config)
    world.becomes(job_id, "running")
    follower = _follow(world, job_id, world.folder / "followed")
    try:
        wait_until(lambda: b"epoch 2 done" in log_of(world, job_id), "it has counted to three")
        world.orchestrator.signal(15)
        world.orchestrator.wait()
        world.restart_server()
        worker.becomes("busy")
        gate.touch()
        world.becomes(job_id, "completed")
        assert follower.wait(30) == 0
    finally:
        follower.kill()
    sent = log_of(world, job_id)
    assert token.read_text().encode() not in sent
    assert sent.startswith(b"token ****")
    assert sent.endswith(b"the end\n")
    assert sent.count(b"\r") < 30
    assert all(b"\repoch %d done\n" % epoch in sent for epoch in range(3))
    assert (world.folder / "followed").read_bytes() == sent
    assert log_of(world, job_id, "?rank=1") == b"I am rank 1\n"
    page = world.call("GET", f"/api/jobs/{job_id}/logs", accept="application/json").json()
    assert [line["text"] for line in page["lines"]][1:] == [
        *(f"epoch {epoch} done" for epoch in range(3)),
        "the end",
    ]
    times = [line["at"] for line in page["lines"]]
    assert times == sorted(times)
    assert times[0] < times[-1]
    hits = world.get(f"/api/jobs/{job_id}/logs/search?q=epoch%20%5Cd%20done&regex=1")
    assert len(hits["matches"]) == 3
    shown = world.cli("jobs", "logs", job_id, "--grep", "end|done", "--timestamps")
    assert [line.split(" ", 1)[1] for line in shown.stdout.splitlines()][-1] == "the end"


def _follow(world: World, job_id: str, to: Path) -> "subprocess.Popen[bytes]":
    with to.open("wb") as out:
        follower = subprocess.Popen(
            [SIMPLETUNER, "jobs", "logs", job_id, "-f", "--raw"],
            env={**world.environment, "SIMPLETUNER_HOME": str(world.home)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
    deadline = time.monotonic() + 20
    while not to.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    return follower
