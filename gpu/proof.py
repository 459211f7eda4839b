"""What only a real GPU can show: `python3 gpu/proof.py [--out FILE]` on a machine with an NVIDIA GPU, torch and accelerate.

Starts a real server and real workers, then: detection by NVML, GPU samples in heartbeats, training speed bare against
under the worker, by `accelerate` and by `torchrun`, behind the wall that `--isolation` names; a real out-of-memory error,
and a training job whose machine is killed and that goes on from its checkpoint on another worker. Prints JSON.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2

HERE = Path(__file__).parent
SIMPLETUNER = [sys.executable, "-m", "simpletuner_fleet.cli.main"]
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1", "--num_machines", "1"]
LAUNCH += ["--mixed_precision", "bf16", "--dynamo_backend", "no", str(HERE / "train_lora.py")]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"]
TORCHRUN += [str(HERE / "train_lora.py")]


class Fleet:
    def __init__(self, folder: Path, isolation: str) -> None:
        self.folder = folder
        self.isolation = isolation
        self.environment = {**os.environ, "SIMPLETUNER_HOME": str(folder / "server")}
        self.environment |= {"SIMPLETUNER_HEARTBEAT_INTERVAL": "1", "SIMPLETUNER_HEARTBEAT_TIMEOUT": "6"}
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self.start("server", "server", "--port", "0", "--no-local")
        state_file = folder / "server" / "server.json"
        wait_for(lambda: state_file.exists() or self.programs["server"].poll() is not None, "the server")
        if not state_file.exists():
            raise SystemExit((folder / "server.log").read_text())
        token = (folder / "server" / "admin_token").read_text().strip()
        self.url = json.loads(state_file.read_text())["url"]
        self.http = httpx2.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False
        )

    def start(self, name: str, *arguments: str) -> None:
        log = (self.folder / f"{name}.log").open("wb")
        self.programs[name] = subprocess.Popen(
            [*SIMPLETUNER, *arguments], env=self.environment, stdout=log, stderr=log, start_new_session=True
        )

    def worker(self, name: str, *more: str) -> dict[str, Any]:
        made = self.call("POST", "/api/admin/workers", {"name": name, "worker_type": "persistent"})
        token = self.folder / f"{name}.token"
        token.write_text(made["token"])
        token.chmod(0o600)
        self.start(
            *(name, "worker", "--orchestrator-url", self.url, "--worker-token-file", str(token)),
            *("--name", name, "--persistent", "--work-dir", str(self.folder / name)),
            *("--isolation", self.isolation, *more),
        )
        wait_for(
            lambda: self.call("GET", f"/api/admin/workers/{made['worker_id']}")["status"] == "idle", name
        )
        return self.call("GET", f"/api/admin/workers/{made['worker_id']}")

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.http.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()

    def submit(self, config: dict[str, Any], **options: Any) -> str:
        body = {"config": config, "target": "worker", **options}
        return str(self.call("POST", "/api/queue/submit", body)["job_id"])

    def ended(self, job_id: str, within_s: float = 240) -> dict[str, Any]:
        wait_for(lambda: self.job(job_id)["finished_at"], job_id, within_s)
        return self.job(job_id)

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.call("GET", f"/api/jobs/{job_id}"))

    def log(self, job_id: str) -> str:
        return self.http.get(f"/api/jobs/{job_id}/logs").text

    def kill_machine(self, name: str) -> None:
        pids = descendants(self.programs[name].pid)
        for pid in [self.programs[name].pid, *pids]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def stop(self) -> None:
        for program in self.programs.values():
            program.terminate()
        for program in self.programs.values():
            try:
                program.wait(20)
            except subprocess.TimeoutExpired:
                program.kill()


def wait_for(true: Any, what: str, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come in {within_s:g} s")
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout
    parents: dict[int, list[int]] = {}
    for line in listed.splitlines()[1:]:
        child, parent = map(int, line.split())
        parents.setdefault(parent, []).append(child)
    pids, new = [], [pid]
    while new:
        new = [child for parent in new for child in parents.get(parent, ())]
        pids += new
    return pids


def rate_in(text: str) -> float:
    return float(json.loads(re.findall(r'\{"steps_per_s".*\}', text)[-1])["steps_per_s"])


def lora(trainer: str, *arguments: str) -> dict[str, Any]:
    """A config that carries the script itself, so that any worker can run it."""
    settings: dict[str, Any] = {
        "script": "train_lora.py",
        "args": ["--out", "{output_dir}", *arguments],
        "num_processes": 1,
    }
    if trainer == "accelerate":
        settings["mixed_precision"] = "bf16"
    return {
        "trainer": trainer,
        "settings": settings,
        "files": {"train_lora.py": (HERE / "train_lora.py").read_text()},
    }


def speed(
    fleet: Fleet, folder: Path, rounds: int, steps: int, trainer: str, launch: list[str]
) -> dict[str, Any]:
    """Bare and under the worker by turns, so that a warming machine favours neither."""
    bare, guarded, visible = [], [], ""
    for number in range(rounds):
        out = folder / f"bare-{trainer}-{number}"
        command = [*launch, "--steps", str(steps), "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        bare.append(rate_in(done.stdout))
        job = fleet.ended(fleet.submit(lora(trainer, "--steps", str(steps))))
        text = fleet.log(job["id"])
        assert job["status"] == "completed", text[-2000:]
        guarded.append(rate_in(text))
        visible = json.loads(re.findall(r'\{"steps_per_s".*\}', text)[-1])["visible"]
    return {
        "bare_steps_per_s": bare,
        "guarded_steps_per_s": guarded,
        "ratio_of_medians": statistics.median(guarded) / statistics.median(bare),
        "cuda_visible_devices": visible,
    }


def out_of_memory(fleet: Fleet) -> dict[str, Any]:
    config = {"trainer": "demo", "settings": {"max_train_steps": 20, "demo_allocate_gb": 400}}
    job = fleet.ended(fleet.submit(config))
    (attempt,) = fleet.call("GET", f"/api/jobs/{job['id']}/attempts")["attempts"]
    return {
        "status": job["status"],
        "failure_class": attempt.get("failure_class"),
        "evidence": attempt.get("failure_evidence") or attempt["last_lines"],
    }


def kill_and_resume(fleet: Fleet, second: str) -> dict[str, Any]:
    """The same LoRA training; its machine dies once a checkpoint is stored, and another goes on from there."""
    job_id = fleet.submit(lora("accelerate", "--steps", "400", "--save-every", "100"))
    wait_for(lambda: fleet.call("GET", f"/api/jobs/{job_id}/artifacts")["manifests"], "a checkpoint", 120)
    fleet.kill_machine("gpu-1")
    fleet.worker(second)
    job = fleet.ended(job_id)
    attempts = fleet.call("GET", f"/api/jobs/{job_id}/attempts")["attempts"]
    curve = fleet.call("GET", f"/api/jobs/{job_id}/metrics?points=2000")["series"]["loss"]
    keys = fleet.call("GET", f"/api/jobs/{job_id}/metrics?points=1")["keys"]
    return {
        "status": job["status"],
        "attempts": [(one["worker_name"], one["outcome"], one["resumed_from_step"]) for one in attempts],
        "gpu_curves": [key for key in keys if key.startswith("gpu.")],
        "loss_first_and_last": [curve[0]["last"], curve[-1]["last"]],
        "steps_in_curve": len({point["step"] for point in curve}),
        "artifacts": [one["name"] for one in fleet.call("GET", f"/api/jobs/{job_id}/artifacts")["manifests"]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--isolation", default="required", help="as the worker's option of this name")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gpu-proof-"))
    fleet = Fleet(folder, args.isolation)
    results: dict[str, Any] = {}
    try:
        worker = fleet.worker("gpu-1")
        results["worker"] = {key: worker[key] for key in ("gpu_count", "gpu_name", "reported_labels")}
        results["isolation"] = worker["reported_labels"]["isolation"]
        results["speed"] = speed(fleet, folder, args.rounds, args.steps, "accelerate", LAUNCH)
        results["torchrun"] = speed(fleet, folder, args.rounds, args.steps, "torchrun", TORCHRUN)
        results["out_of_memory"] = out_of_memory(fleet)
        results["kill_and_resume"] = kill_and_resume(fleet, "gpu-2")
        results["gpus_seen"] = fleet.call("GET", f"/api/admin/workers/{worker['id']}").get("gpus")
    finally:
        fleet.stop()
        print(json.dumps(results, indent=1, default=str), flush=True)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1, default=str))
            for log in folder.glob("*.log"):
                args.out.with_name(log.name).write_bytes(log.read_bytes()[-200_000:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
