"""The program `simpletuner server`, as an operator meets it."""

import json
import os
import re
import shutil
import ssl
import stat
import subprocess
import time
from pathlib import Path

import httpx2
import pytest

from devtools.ports import free_port
from tests.http.api_kit import CPU_CONFIG
from tests.http.server_process import server_process, started

pytestmark = pytest.mark.e2e
BARE = ("--no-local",)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(home: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    log = home.with_name("refused.log")
    log.write_bytes(b"")
    code = started(home, log, (*BARE, *arguments), variables).wait(30)
    return code, log.read_text()


def test_it_says_where_everything_is_and_keeps_its_secrets(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with server_process(home, *BARE, cold=True) as server:
        said = json.loads((home / "server.json").read_text())
        assert said["url"] == server.url
        assert said["pid"] == server.process.pid
        for name in ("admin_token", "secret", "server.json", "fleet.db"):
            assert mode(home / name) == 0o600, name
        assert mode(home) == 0o700
        with server.client() as http:
            assert http.get("/api/whoami").json()["name"] == "admin"
        token = server.admin_token
        assert server.stop() < 1.5
        assert server.process.returncode == 0
    log = server.log.read_text()
    assert server.url in log
    assert str(home / "admin_token") in log
    assert token not in log
    assert not (home / "server.json").exists()


def test_sigterm_ends_it_within_a_second_with_streams_open(tmp_path: Path) -> None:
    with server_process(tmp_path / "home", *BARE) as server, server.client() as http:
        created = http.post("/api/admin/workers", json={"name": "gpu-1"}).json()
        with server.client(**{"X-Worker-Token": created["token"]}) as worker:
            worker.post("/api/workers/register", json={"name": "x", "trainers": [], "attempts": []})
            with (
                worker.stream("GET", "/api/workers/stream") as stream,
                http.stream("GET", "/api/events") as events,
            ):
                assert stream.status_code == events.status_code == 200
                assert server.stop() < 1.5
                assert b"".join(events.iter_raw()).endswith(b"\n\n")
        assert server.process.returncode == 0


def test_after_a_kill_everything_that_was_answered_is_there(tmp_path: Path) -> None:
    home, port = tmp_path / "home", free_port()
    with server_process(home, *BARE, port=port) as server, server.client() as http:
        created = http.post("/api/admin/workers", json={"name": "gpu-1", "labels": {"team": "nlp"}}).json()
        http.put("/api/configs/c", json=CPU_CONFIG)
        with server.client(**{"X-Worker-Token": created["token"]}) as worker:
            me = {"name": "x", "trainers": ["command"], "attempts": [], "incarnation": "i", "seq": 1}
            worker.post("/api/workers/register", json=me)
            with worker.stream("GET", "/api/workers/stream"):
                running = http.post("/api/queue/submit", json={"config_name": "c"}).json()
                assert running["status"] == "dispatched"
                offer = worker.post("/api/workers/heartbeat", json={"incarnation": "i"}).json()["jobs"][0]
                accepted = worker.post(
                    f"/api/workers/job/{running['job_id']}/accept",
                    json={"epoch": offer["epoch"], "incarnation": "i", "seq": 2},
                )
                assert accepted.status_code == 200
                waiting = [
                    http.post("/api/queue/submit", json={"config_name": "c"}).json()["job_id"]
                    for _ in range(20)
                ]
                server.kill()
    with server_process(home, *BARE, port=port) as server, server.client() as http:
        assert http.get("/api/audit/verify").json()["valid"] is True
        assert http.get("/api/admin/workers").json()["workers"][0]["labels"] == {"team": "nlp"}
        queued = [job["id"] for job in http.get("/api/queue?limit=100").json()["jobs"]]
        assert queued == waiting
        assert http.get(f"/api/jobs/{running['job_id']}").json()["status"] == "running"
        with server.client(**{"X-Worker-Token": created["token"]}) as worker:
            held = [{"job_id": running["job_id"], "epoch": offer["epoch"], "state": "running"}]
            answer = worker.post("/api/workers/register", json={**me, "attempts": held, "seq": 3}).json()
            assert [one["job_id"] for one in answer["keep"]] == [running["job_id"]]
            done = worker.post(
                f"/api/workers/job/{running['job_id']}/status",
                json={"status": "completed", "epoch": offer["epoch"]},
            )
            assert done.json()["job_status"] == "completed"
        assert http.get(f"/api/jobs/{running['job_id']}").json()["attempt"] == 1


def test_bad_settings_end_with_a_message_and_exit_2(tmp_path: Path) -> None:
    home = tmp_path / "home"
    bad = (
        ({"SIMPLETUNER_HEARTBEAT_TIMEOUT": "soon"}, "SIMPLETUNER_HEARTBEAT_TIMEOUT"),
        ({"SIMPLETUNER_HEARTBEAT_TIMEOUT": "10"}, "heartbeat timeout"),
        ({"SIMPLETUNER_OFFER_TIMEOUT": "-1"}, "SIMPLETUNER_OFFER_TIMEOUT"),
        ({"SIMPLETUNER_MAX_RETRIES": "many"}, "SIMPLETUNER_MAX_RETRIES"),
        ({"SIMPLETUNER_ADMIN_TOKEN": "short"}, "SIMPLETUNER_ADMIN_TOKEN"),
        ({"SIMPLETUNER_PUBLIC_URL": "fleet.example"}, "SIMPLETUNER_PUBLIC_URL"),
        ({"SIMPLETUNER_STORAGE_URL": "gs://bucket"}, "SIMPLETUNER_STORAGE_URL"),
        ({"SIMPLETUNER_CHECKPOINTS_KEEP": "0"}, "SIMPLETUNER_CHECKPOINTS_KEEP"),
        ({"SIMPLETUNER_WORKER_NETWORKS": "everywhere"}, "everywhere"),
    )
    for variables, message in bad:
        code, text = refused(home, **variables)
        assert code == 2, (variables, text)
        assert message in text
        assert "Traceback" not in text
    code, text = refused(home, "--trust-loopback", "--host", "0.0.0.0")
    assert code == 2
    assert "short" not in refused(home, SIMPLETUNER_ADMIN_TOKEN="st_short")[1].replace("shorter", "")


def test_a_port_or_a_data_folder_in_use_is_told(tmp_path: Path) -> None:
    with server_process(tmp_path / "home", *BARE) as server:
        port = server.url.rpartition(":")[2]
        code, text = refused(tmp_path / "other", "--port", port)
        assert (code, "in use" in text) == (1, True)
        code, text = refused(tmp_path / "home", "--port", "0")
        assert (code, "Another orchestrator" in text) == (1, True)


def test_fast_heartbeats_are_told_to_workers(tmp_path: Path) -> None:
    with (
        server_process(
            tmp_path / "home",
            *BARE,
            SIMPLETUNER_HEARTBEAT_INTERVAL="0.2",
            SIMPLETUNER_HEARTBEAT_TIMEOUT="1.0",
        ) as server,
        server.client() as http,
    ):
        created = http.post("/api/admin/workers", json={"name": "gpu-1"}).json()
        with server.client(**{"X-Worker-Token": created["token"]}) as worker:
            answer = worker.post("/api/workers/register", json={"trainers": [], "attempts": []}).json()
            assert (answer["heartbeat_interval_s"], answer["heartbeat_timeout_s"]) == (0.2, 1.0)
            with worker.stream("GET", "/api/workers/stream"):
                until = time.monotonic() + 5
                status = ""
                while status != "offline" and time.monotonic() < until:
                    status = http.get("/api/admin/workers").json()["workers"][0]["status"]
                    time.sleep(0.1)
                assert status == "offline"


def test_the_admins_own_token_is_taken_from_the_environment(tmp_path: Path) -> None:
    chosen = "a-token-of-thirty-two-characters-or-more"
    with (
        server_process(tmp_path / "home", *BARE, SIMPLETUNER_ADMIN_TOKEN=chosen) as server,
        server.client(Authorization=f"Bearer {chosen}") as http,
    ):
        assert http.get("/api/whoami").status_code == 200
    assert chosen not in server.log.read_text()


def test_ssl_makes_a_private_authority_whose_fingerprint_is_printed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with server_process(home, *BARE, "--ssl") as server:
        assert server.url.startswith("https://")
        fingerprint = json.loads((home / "server.json").read_text())["fingerprint"]
        assert fingerprint in server.log.read_text()
        trusted = ssl.create_default_context(cafile=str(home / "tls" / "ca.pem"))
        headers = {"Authorization": f"Bearer {server.admin_token}"}
        with httpx2.Client(base_url=server.url, verify=trusted, headers=headers, trust_env=False) as http:
            created = http.post("/api/admin/workers", json={"name": "gpu-1"}).json()
            assert f"--ssl-fingerprint {fingerprint}" in created["connection_command"]
            assert http.get("/ca.pem").content == (home / "tls" / "ca.pem").read_bytes()


def test_logs_can_be_json_lines(tmp_path: Path) -> None:
    with server_process(
        tmp_path / "home", *BARE, "--host", "0.0.0.0", "--plain-http", SIMPLETUNER_LOG_FORMAT="json"
    ) as server:
        server.stop()
    messages = [json.loads(line)["message"] for line in server.log.read_text().splitlines()]
    assert any("unencrypted" in message for message in messages)
    assert any("listening on: http://0.0.0.0:" in message for message in messages)
    assert not any("ok_" in message for message in messages), "logs are kept, and read by many"


def test_a_local_worker_that_can_never_start_says_why_once_and_stays_off(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with server_process(home, "--local", SIMPLETUNER_JOB_PATHS="/nowhere/at/all:ro") as server:
        until = time.monotonic() + 60
        while "stays off" not in server.log.read_text() and time.monotonic() < until:
            time.sleep(0.1)
        said = server.log.read_text()
        time.sleep(3)
        assert server.log.read_text() == said, "it does not try again and again"
        assert said.count("stays off") == 1
        assert "/nowhere/at/all" in (home / "local_worker.problem").read_text()
        with server.client() as http:
            assert "/nowhere/at/all" in http.get("/admin/settings").text
    with server_process(home, *BARE):
        pass
    with server_process(home, "--local"):
        time.sleep(1)
        assert not (home / "local_worker.problem").exists()


def test_a_link_for_the_first_admin_is_printed_until_there_is_a_user(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with server_process(home, *BARE) as server:
        with server.client(origin=server.url) as http:
            until = time.monotonic() + 10
            while not (match := re.search(r"(http\S+)/start\?k=(\S+)", server.log.read_text())):
                assert time.monotonic() < until
                time.sleep(0.02)
            assert match[1] == server.url
            assert http.get("/api/me").status_code == 401
            body = {"k": match[2], "name": "Ada", "password": "correct horse battery"}
            assert http.post("/api/start", json=body).status_code == 200
            assert http.get("/api/me").json()["role"] == "admin"
            cookies = dict(http.cookies)
        server.stop()
    server.log.unlink()
    with server_process(home, *BARE) as server:
        with server.client(cookie=f"simpletuner_session={cookies['simpletuner_session']}") as http:
            assert http.get("/api/me").json()["name"] == "Ada"
        server.stop()
    assert "/start" not in server.log.read_text()


def test_postgresql_serves_as_well(tmp_path: Path, postgres_database: str) -> None:
    home = tmp_path / "home"
    with (
        server_process(home, *BARE, SIMPLETUNER_DATABASE_URL=postgres_database) as server,
        server.client() as http,
    ):
        job = http.post("/api/queue/submit", json={"config": CPU_CONFIG}).json()
        server.kill()
    with (
        server_process(home, *BARE, SIMPLETUNER_DATABASE_URL=postgres_database) as server,
        server.client() as http,
    ):
        assert http.get(f"/api/jobs/{job['job_id']}").json()["status"] == "queued"


SEED_LINES = r"""
curl -s -X POST http://localhost:8001/api/admin/workers \
  -H "Authorization: Bearer $ADMIN_TOKEN" \
  -H "Content-Type: application/json" \
  -d '{
    "name": "gpu-worker-1",
    "worker_type": "persistent",
    "labels": {"location": "datacenter-a", "gpu_type": "a100"}
  }'

curl -s -X POST http://localhost:8001/api/queue/submit \
  -H "Content-Type: application/json" \
  -d '{
    "config_name": "my-training-config",
    "target": "worker"
  }'

curl -s -X POST http://localhost:8001/api/queue/submit \
  -H "Content-Type: application/json" \
  -d '{
    "config_name": "my-config",
    "target": "worker",
    "worker_labels": {"gpu_type": "a100*"}
  }'

curl -s -X POST http://localhost:8001/api/admin/workers \
  -H "Content-Type: application/json" \
  -d '{
    "name": "worker-1",
    "labels": {
      "location": "us-west",
      "gpu_type": "a100",
      "team": "nlp"
    }
  }'

curl -s -X POST http://localhost:8001/api/queue/submit \
  -d '{"config_name": "my-config", "worker_labels": {"team": "nlp"}}'

curl -s -X POST http://localhost:8001/api/queue/submit \
  -d '{"config_name": "my-config", "worker_labels": {"gpu_type": "a100*"}}'

curl -s http://localhost:8001/api/admin/workers

curl -s -X POST http://localhost:8001/api/admin/workers/w_abc123/drain

curl -s -X POST http://localhost:8001/api/admin/workers/w_abc123/token

curl -s -X DELETE http://localhost:8001/api/admin/workers/w_abc123
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="the documents' lines are curl lines")
def test_the_curl_lines_of_the_documents_work_as_printed(tmp_path: Path) -> None:
    with server_process(tmp_path / "home", *BARE, "--trust-loopback") as server, server.client() as http:
        for name in ("my-training-config", "my-config"):
            http.put(f"/api/configs/{name}", json={"num_processes": 1})
        worker_id = ""
        for line in SEED_LINES.strip().split("\n\n"):
            printed = line.replace(
                "localhost:8001", server.url.rpartition("/")[2].replace("127.0.0.1", "localhost")
            )
            done = subprocess.run(
                ["bash", "-c", printed.replace("w_abc123", worker_id)],
                env={"PATH": os.environ["PATH"], "ADMIN_TOKEN": server.admin_token},
                capture_output=True,
                check=True,
                timeout=20,
            )
            answer = json.loads(done.stdout)
            assert "code" not in answer, (line, answer)
            worker_id = worker_id or answer.get("worker_id", "")
        names = [worker["name"] for worker in http.get("/api/admin/workers").json()["workers"]]
        assert names == ["worker-1"]


def test_the_worker_beside_the_server_runs_local_jobs_and_ends_with_it(tmp_path: Path) -> None:
    with server_process(tmp_path / "home") as server, server.client() as http:
        config = {"trainer": "command", "settings": {"command": ["echo", "hello"]}, "resources": {"gpus": 0}}
        job = http.post("/api/queue/submit", json={"config": config, "target": "local"}).json()
        until = time.monotonic() + 30
        while http.get(f"/api/jobs/{job['job_id']}").json()["status"] != "completed":
            assert time.monotonic() < until, server.log.read_text()
            time.sleep(0.1)
        assert http.get(f"/api/jobs/{job['job_id']}/logs").content == b"hello\n"
        pid = int((server.home / "local_worker.pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"wt_" not in words
        assert mode(server.home / "local_worker_token") == 0o600
        server.stop()
        assert not Path(f"/proc/{pid}").exists()


def test_the_worker_beside_the_server_survives_its_crash_and_is_found_again(tmp_path: Path) -> None:
    home, port = tmp_path / "home", free_port()
    with server_process(home, port=port) as server, server.client() as http:
        slow = {"trainer": "command", "settings": {"command": ["sleep", "4"]}, "resources": {"gpus": 0}}
        job = http.post("/api/queue/submit", json={"config": slow, "target": "local"}).json()
        until = time.monotonic() + 30
        while http.get(f"/api/jobs/{job['job_id']}").json()["status"] != "running":
            assert time.monotonic() < until, server.log.read_text()
            time.sleep(0.1)
        pid = (home / "local_worker.pid").read_text()
        server.kill()
    with server_process(home, port=port) as server, server.client() as http:
        until = time.monotonic() + 30
        while http.get(f"/api/jobs/{job['job_id']}").json()["status"] == "running":
            assert time.monotonic() < until, server.log.read_text()
            time.sleep(0.1)
        job_now = http.get(f"/api/jobs/{job['job_id']}").json()
        assert (job_now["status"], job_now["attempt"]) == ("completed", 1)
        assert (home / "local_worker.pid").read_text() == pid
