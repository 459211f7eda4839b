"""The Quick Start, with the very words of the document; only host, port and token are put in their places."""

import json
import os
import re
import shlex
import signal
import subprocess

import pytest

from tests.e2e.certificates import own_certificate
from tests.e2e.kit import A100, Json, World
from tests.e2e.processes import SIMPLETUNER, Program
from tests.seed.sentences import code_blocks

ENV_A100 = {"SIMPLETUNER_GPU_INVENTORY": json.dumps([{**A100[0], "count": 2}])}


def block(words: str) -> str:
    """The one block of the document that holds these words."""
    [code_block] = [text for text in code_blocks() if words in text]
    return code_block


def run_block(world: World, text: str, **environment: str) -> str:
    """As printed, in a shell."""
    done = subprocess.run(
        ["sh", "-ec", at_home(world, text)],
        env={**world.environment, **environment, "PATH": f"{SIMPLETUNER.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def at_home(world: World, text: str, token: str = "") -> str:
    text = text.replace("http://localhost:8001", world.url.replace("127.0.0.1", "localhost"))
    text = text.replace("https://orchestrator.example.com:8001", world.url)
    return text.replace("wt_xxxxxxxxxxxx", token) if token else text


def serve_as_printed(world: World, words: str) -> Program:
    """`simpletuner server --host 0.0.0.0 --port 8001`, on a port that is free here."""
    printed = shlex.split(block(words))
    assert printed[:2] == ["simpletuner", "server"]
    world.local_as_usual = True
    return world.start_server(*[word.replace("8001", str(world.port)) for word in printed[2:]])


def start_as_printed(world: World, words: str, token: str) -> Program:
    """The document's block, ended by an exec so that it is the worker itself that runs."""
    text = at_home(world, block(words), token).replace("simpletuner worker", "exec simpletuner worker")
    program = Program(
        "worker",
        ["sh", "-ec", text],
        {**world.environment, **ENV_A100, "PATH": f"{SIMPLETUNER.parent}:{os.environ['PATH']}"},
        world.folder / "worker.log",
    )
    world.programs.append(program)
    return program


@pytest.mark.parametrize("way", ["simpletuner worker \\\n", "export SIMPLETUNER_ORCHESTRATOR_URL"])
def test_the_quick_start_works_as_printed(bare_world: World, way: str) -> None:
    world = bare_world
    serve_as_printed(world, "server --host 0.0.0.0 --port 8001\n")
    created = json.loads(
        run_block(world, block('"worker_type": "persistent",\n    "labels"'), ADMIN_TOKEN=world.admin_token)
    )
    assert created["worker_id"].startswith("w_")
    assert created["token"].startswith("wt_")
    assert created["name"] == "gpu-worker-1"
    start_as_printed(world, way, created["token"])
    worker = world.worker_of(created).becomes("idle")
    assert worker.seen["labels"] == {"location": "datacenter-a", "gpu_type": "a100"}
    assert worker.seen["worker_type"] == "persistent"
    assert worker.seen["gpu_count"] == 2
    world.put("/api/configs/my-training-config", world.command("echo", "trained"))
    submitted = block('"config_name": "my-training-config"')
    submitted = submitted.replace("-H ", f"-H 'Authorization: Bearer {world.admin_token}' -H ", 1)
    answer = json.loads(run_block(world, submitted))
    job = world.becomes(answer["job_id"], "completed")
    assert job["worker_id"] == worker.id
    assert world.call("GET", f"/api/jobs/{job['id']}/logs").text == "trained\n"


def test_the_header_less_lines_of_the_document_work_on_the_orchestrators_own_machine(
    bare_world: World,
) -> None:
    """With --trust-loopback; without it every one of them is answered 401."""
    world = bare_world
    world.start_server("--trust-loopback")
    created = json.loads(run_block(world, block('"team": "nlp"\n')))
    worker = world.worker_of(created)
    worker.start("--orchestrator-url", world.url, "--persistent", "--work-dir", str(worker.work_dir))
    worker.becomes("idle")
    world.put("/api/configs/my-config", world.command("true"))
    by_glob = json.loads(run_block(world, block('"target": "worker",\n    "worker_labels"')))
    assert world.becomes(by_glob["job_id"], "completed")["worker_id"] == worker.id
    for answer in run_block(world, block("# Match workers with team=nlp")).replace("}{", "}\n{").splitlines():
        assert world.becomes(json.loads(answer)["job_id"], "completed")["worker_id"] == worker.id
    listing = block("/api/admin/workers | jq").replace("| jq", "")
    [listed] = json.loads(run_block(world, listing))["workers"]
    documented = json.loads(block('"workers": [\n'))["workers"][0]
    assert documented.keys() <= listed.keys()
    for action, after in (("drain", "draining"), ("token", "connecting")):
        run_block(world, block(f"w_abc123/{action}").replace("w_abc123", worker.id))
        assert worker.status == after
    worker.running.signal(signal.SIGTERM)
    worker.running.wait()
    worker.becomes("offline")
    run_block(world, block("-X DELETE").replace("w_abc123", worker.id))
    assert world.get("/api/admin/workers")["workers"] == []


def test_without_trust_in_loopback_the_same_lines_are_refused(world: World) -> None:
    for method, path in (
        ("GET", "/api/admin/workers"),
        ("POST", "/api/admin/workers"),
        ("POST", "/api/queue/submit"),
        ("DELETE", "/api/admin/workers/w_abc123"),
    ):
        assert world.client.request(method, world.url + path, json={}).status_code == 401


def fingerprint_in(text: str) -> str:
    match = re.search(r"sha256:[0-9a-f]{64}", text)
    assert match
    return match[0]


def run_one_job(world: World, *choices: str, **environment: str) -> Program:
    created = world.post("/api/admin/workers", {"name": "gpu-worker-1"})
    worker = world.worker_of(created)
    worker.environment |= environment
    worker.start("--orchestrator-url", world.url, "--work-dir", str(worker.work_dir), *choices)
    job_id = world.submit(world.command("true"))
    world.becomes(job_id, "completed")
    assert worker.running.wait() == 0
    return worker.running


def test_with_ssl_a_worker_that_pins_the_printed_fingerprint_runs_jobs(bare_world: World) -> None:
    world = bare_world
    world.use_tls()
    server = serve_as_printed(world, "--port 8001 --ssl\n")
    worker = run_one_job(world, "--ssl-fingerprint", fingerprint_in(server.text))
    assert "WARNING" not in worker.text


def test_with_ssl_the_ca_in_the_systems_trust_store_is_enough(bare_world: World) -> None:
    world = bare_world
    world.use_tls()
    world.start_server("--ssl")
    run_one_job(world, SSL_CERT_FILE=str(world.home / "tls" / "ca.pem"))


def test_with_a_certificate_of_ones_own_workers_trust_its_ca(bare_world: World) -> None:
    world = bare_world
    world.use_tls()
    certificate, key = own_certificate(world.folder)
    world.start_server("--ssl-cert", str(certificate), "--ssl-key", str(key))
    run_one_job(world, "--ca-cert", str(certificate))


def test_ssl_no_verify_works_and_warns(bare_world: World) -> None:
    world = bare_world
    world.use_tls()
    world.start_server("--ssl")
    worker = run_one_job(world, "--ssl-no-verify")
    assert "WARNING: --ssl-no-verify" in worker.text


def test_with_ssl_a_killed_workers_shim_reports_over_the_pinned_connection(bare_world: World) -> None:
    world = bare_world
    world.use_tls()
    server = world.start_server("--ssl", SIMPLETUNER_HEARTBEAT_TIMEOUT="60")
    worker = world.start_worker("pinned", "--ssl-fingerprint", fingerprint_in(server.text))
    job_id = world.submit(world.ticking(world.gate()))
    world.runs(job_id)
    worker.running.kill()
    world.becomes(job_id, "queued")
    assert world.job(job_id)["losses"] == 1


def test_the_connection_command_of_a_new_worker_can_be_pasted(bare_world: World) -> None:
    world = bare_world
    world.use_tls()
    world.start_server("--ssl")
    created: Json = world.post("/api/admin/workers", {"name": "pasted", "worker_type": "persistent"})
    words = shlex.split(created["connection_command"])
    assert words[:2] == ["simpletuner-fleet", "worker"]
    worker = world.worker_of(created)
    del worker.environment["SIMPLETUNER_WORKER_TOKEN"]
    worker.start(*words[2:])
    assert worker.becomes("idle").seen["worker_type"] == "persistent"


def test_the_options_of_the_worker_are_those_of_the_document(bare_world: World) -> None:
    shown = bare_world.cli("worker", "--help").stdout
    for line in block("simpletuner worker [OPTIONS]").splitlines()[3:]:
        option, meaning = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        assert option in shown, line
        assert meaning in " ".join(shown.split()), line


def test_a_worker_is_named_after_its_host_and_is_ephemeral_unless_told_otherwise(world: World) -> None:
    created = world.post("/api/admin/workers", {"name": "unnamed"})
    worker = world.worker_of(created)
    worker.start("--orchestrator-url", world.url, "-v")
    worker.becomes("idle")
    assert worker.seen["worker_type"] == "ephemeral"
    assert (world.folder / ".simpletuner" / "worker" / os.uname().nodename).is_dir()
    worker.running.says(f"debug: registered as {worker.id}")
