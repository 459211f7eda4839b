"""One job, from its submission to its end, with everything a trainer gets and nothing it must not have."""

import json
import sys
import threading

from tests.e2e.kit import A100, World
from tests.e2e.processes import alive, wait_until

SHOW_EVERYTHING = """
import json, os, sys
def of(pid):
    return {what: open(f"/proc/{pid}/{what}", "rb").read().decode(errors="replace") for what in ("environ", "cmdline")}
def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
above, pid = [], os.getpid()
while pid > 1 and pid != int(sys.argv[1]):
    above.append(of(pid))
    pid = parent(pid)
print(json.dumps({"env": dict(os.environ), "argv": sys.argv, "above": above}))
"""
SHOW_WORDS = "import json, os, sys; print(json.dumps([sys.argv[1:], os.listdir('.'), dict(os.environ)]))"


def log_of(world: World, job_id: str) -> str:
    answer = world.call("GET", f"/api/jobs/{job_id}/logs")
    assert answer.status_code == 200
    return answer.text


def test_a_submitted_job_runs_on_the_worker_and_completes(world: World) -> None:
    worker = world.start_worker("gpu-worker-1")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    assert world.becomes(job_id, "running")["worker_id"] == worker.id
    assert worker.status == "busy"
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    assert (job["attempt"], job["losses"], job["failures"]) == (1, 0, 0)
    assert job["started_at"] <= job["finished_at"]
    worker.becomes("idle")
    assert not alive(trainer)
    assert len(world.journal.assert_one_at_a_time(job_id)) == 1


def test_config_gpus_and_output_dir_are_filled_in(world: World) -> None:
    world.start_worker("two-gpus", gpus=[{"name": "NVIDIA A100-SXM4-80GB", "vram_gb": 80, "count": 2}])
    config = world.command(sys.executable, "-c", SHOW_WORDS, "{config}", "{gpus}", "{output_dir}", "{other}")
    config["env"] = {"WHERE": "{output_dir}", "PLAIN": "as it is"}
    job_id = world.submit(config, gpus=2)
    world.becomes(job_id, "completed")
    (config_file, gpus, output_dir, other), files, environment = json.loads(log_of(world, job_id))
    assert config_file.endswith("config.json")
    assert gpus == "0,1"
    assert output_dir.endswith("/output")
    assert other == "{other}"
    assert "output" in files
    assert environment["WHERE"] == output_dir
    assert environment["PLAIN"] == "as it is"
    assert environment["CUDA_VISIBLE_DEVICES"] == gpus


def test_a_trainer_finds_no_worker_token_anywhere_it_can_look(world: World) -> None:
    """Not in its environment, nor in that of any process above it, nor on any command line."""
    created = world.post("/api/admin/workers", {"name": "careful"})
    by_flag = world.worker_of(created)
    token = by_flag.environment.pop("SIMPLETUNER_WORKER_TOKEN")
    by_flag.start("--orchestrator-url", world.url, "--worker-token", token, "--persistent")
    by_flag.becomes("idle")
    by_environment = world.start_worker("careful-too")
    for worker in (by_flag, by_environment):
        config = world.command(sys.executable, "-c", SHOW_EVERYTHING, str(world.orchestrator.pid))
        job_id = world.submit(config, worker_labels={"hostname": "*"}, name=worker.name)
        world.becomes(job_id, "completed")
        log_text = log_of(world, job_id)
        shown = json.loads(log_text)
        assert len(shown["above"]) >= 3, "the trainer, its shim and the worker"
        for secret in (by_flag.token, by_environment.token, world.admin_token):
            assert secret not in log_text
        assert "wt_" not in log_text
        assert set(shown["env"]["SIMPLETUNER_UPLOAD_TOKEN"]) == {"*"}, "masked in the log"
        assert shown["env"]["SIMPLETUNER_JOB_ID"] == job_id
        world.post(f"/api/admin/workers/{world.job(job_id)['worker_id']}/drain")


def test_the_upload_token_serves_its_own_attempt_alone(world: World) -> None:
    world.start_worker("uploader")
    gate = world.gate()
    token_file = world.folder / "upload-token"
    tell = "import os, sys; open(sys.argv[1], 'w').write(os.environ['SIMPLETUNER_UPLOAD_TOKEN'])"
    world.becomes(world.submit(world.command(sys.executable, "-c", tell, str(token_file))), "completed")
    upload_token = token_file.read_text()
    assert upload_token.startswith("ut_")
    other = world.submit(world.ticking(gate))
    world.runs(other)
    headers = {"x-upload-token": upload_token}
    status = {"status": "failed", "epoch": world.attempts(other)[0]["epoch"]}
    refused = world.client.post(f"{world.url}/api/workers/job/{other}/status", json=status, headers=headers)
    assert refused.status_code in (401, 403, 404, 409)
    assert world.client.get(f"{world.url}/api/jobs", headers=headers).status_code == 401
    assert (
        world.client.post(f"{world.url}/api/workers/heartbeat", json={}, headers=headers).status_code >= 401
    )
    assert world.job(other)["status"] == "running"


def test_the_log_can_be_followed_from_the_command_line(world: World) -> None:
    world.start_worker("talker")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    followed: list[str] = []
    follower = threading.Thread(
        target=lambda: followed.append(world.cli("jobs", "logs", "-f", job_id).stdout)
    )
    follower.start()
    gate.write_text("0")
    world.becomes(job_id, "completed")
    follower.join(60)
    assert f"attempt 1 of {job_id}" in followed[0]
    assert f"attempt 1 of {job_id}" in world.cli("jobs", "logs", job_id).stdout


def test_a_failing_trainer_is_told_with_its_exit_code_and_last_lines_and_not_tried_again(
    world: World,
) -> None:
    world.start_worker("honest")
    says = "import sys; print('out of memory'); sys.exit(3)"
    job_id = world.submit(world.command(sys.executable, "-c", says))
    job = world.becomes(job_id, "failed")
    [attempt] = world.attempts(job_id)
    assert (attempt["outcome"], attempt["exit_code"]) == ("failed", 3)
    assert "out of memory" in attempt["last_lines"]
    assert (job["reason"], job["failures"], job["losses"]) == ("trainer_failed", 1, 0)
    waited = world.cli("jobs", "wait", job_id)
    assert waited.returncode == 8


def test_a_trainer_killed_by_a_signal_has_failed_and_no_worker_was_lost(world: World) -> None:
    worker = world.start_worker("sturdy")
    job_id = world.submit(world.command(sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"))
    job = world.becomes(job_id, "failed")
    assert world.attempts(job_id)[0]["exit_signal"] == 11
    assert (job["failures"], job["losses"]) == (1, 0)
    worker.becomes("idle")


def test_a_failed_trainer_is_tried_again_where_the_job_asks_for_it(world: World) -> None:
    world.start_worker("patient")
    again = "import os, sys; sys.exit(0 if os.environ['SIMPLETUNER_ATTEMPT'] == '2' else 1)"
    job_id = world.submit(world.command(sys.executable, "-c", again), retry_on_failure=True)
    job = world.becomes(job_id, "completed")
    assert (job["attempt"], job["failures"]) == (2, 1)


def test_a_cancelled_job_is_stopped_to_the_last_process_and_never_tried_again(world: World) -> None:
    worker = world.start_worker("obedient")
    job_id = world.submit(world.ticking(world.gate()))
    trainer = world.runs(job_id)
    world.post(f"/api/queue/{job_id}/cancel")
    world.becomes(job_id, "cancelled")
    wait_until(lambda: not alive(trainer), "the trainer is gone")
    worker.becomes("idle")
    assert world.job(job_id)["attempt"] == 1


def test_a_job_runs_on_exactly_the_gpus_it_was_given(world: World) -> None:
    world.start_worker("four", "--max-jobs", "auto", gpus=[{**A100[0], "count": 4}])
    gates = [world.gate() for _ in range(2)]
    jobs = [world.submit(world.ticking(gate), gpus=2) for gate in gates]
    for job_id in jobs:
        world.runs(job_id)
    first, second = (set(world.job(job_id)["gpus"]) for job_id in jobs)
    assert len(first) == len(second) == 2
    assert not first & second
    for gate in gates:
        gate.write_text("0")
    for job_id in jobs:
        world.becomes(job_id, "completed")
