"""A real server, real workers with the real trainer, and jobs that train a tiny model on the CPU."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devtools.chaos.processes import SIMPLETUNER, Program, send, shims_under, trainers_under
from devtools.real_trainer.environments import HERE, python_path
from devtools.real_trainer.facts import Facts

PATIENCE_S = 1800.0
"""A trainer needs a minute to its first step on an idle machine, and there may be others on this one."""
SERVER_SETTINGS = {
    "SIMPLETUNER_HEARTBEAT_INTERVAL": "5",
    "SIMPLETUNER_HEARTBEAT_TIMEOUT": "30",
    "SIMPLETUNER_RETRY_BACKOFF": "1",
}
OVER = ("completed", "failed", "cancelled", "rejected")


class Stage:
    """Use it as a context manager; all of it ends with it."""

    def __init__(self, version: str, python: Path, folder: Path) -> None:
        self.version, self.python, self.folder = version, python, folder
        self.material = folder.parent / f"tiny-{version}"
        self._token = ""
        self.seen: Facts = {}
        """What the trainer did that the stubs of the tests do as well."""
        self.programs: dict[str, Program] = {}
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            "HOME": str(folder),
            "NO_COLOR": "1",
        }

    def __enter__(self) -> "Stage":
        self.folder.mkdir(parents=True)
        if not self.material.exists():
            made = self.material.with_suffix(".new")
            shutil.rmtree(made, ignore_errors=True)
            environment = {**self._environment, "PYTHONPATH": python_path(self.python)}
            argv = [str(self.python), str(HERE / "tiny.py"), str(made)]
            subprocess.run(argv, check=True, env=environment, capture_output=True)
            # Weights are written for their owner alone, and jobs may run as users of their own.
            for path in made.rglob("*"):
                path.chmod(0o755 if path.is_dir() else 0o644)
            made.rename(self.material)
        home = self.folder / "server"
        server = Program(
            "server",
            ("server", "--port", str(self._port), "--no-local"),
            {**self._environment, **SERVER_SETTINGS, "SIMPLETUNER_HOME": str(home)},
            self.folder / "server.log",
        )
        server.start()
        self.programs["server"] = server
        self.wait_for("the server is ready", lambda: (home / "admin_token").exists() and self._is_ready())
        self._token = (home / "admin_token").read_text().strip()
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.programs):
            self.kill(name)

    def worker(
        self,
        name: str,
        *,
        gpus: int = 0,
        env: dict[str, str] | None = None,
        max_jobs: int = 1,
        job_paths: tuple[Path, ...] = (),
        writable: tuple[Path, ...] = (),
    ) -> None:
        """`gpus` are declared: the machine has none, and the processes see them by their index.

        Its jobs stand behind the wall that this machine allows, and see the tiny model, its pictures and `job_paths`.
        """
        token = self.post("/api/admin/workers", {"name": name})["token"]
        token_file = self.folder / f"{name}.token"
        token_file.write_text(token)
        token_file.chmod(0o600)
        environment = {
            **self._environment,
            "PYTHONPATH": python_path(self.python),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        if gpus:
            declared = [{"name": "declared", "vram_gb": 24, "count": gpus}]
            environment["SIMPLETUNER_GPU_INVENTORY"] = json.dumps(declared)
        agent = Program(
            name,
            (
                *("worker", "--orchestrator-url", self.url, "--worker-token-file", str(token_file)),
                *("--name", name, "--persistent", "--work-dir", str(self.folder / name)),
                *("--trainer-python", str(self.python), "--max-jobs", str(max_jobs)),
                *(word for path in (self.material, *job_paths) for word in ("--job-path", f"{path}:ro")),
                *(word for path in writable for word in ("--job-path", f"{path}:rw")),
            ),
            environment,
            self.folder / f"{name}.log",
        )
        agent.start()
        self.programs[name] = agent

    def wall(self, name: str) -> str:
        """Which kind stands around the jobs of this worker."""
        self.wait_for(f"{name} is there", lambda: "isolation" in self._labels(name))
        return self._labels(name)["isolation"]

    def _labels(self, name: str) -> dict[str, str]:
        workers = self.get("/api/admin/workers")["workers"]
        return next((one["reported_labels"] for one in workers if one["name"] == name), {})

    def kill(self, name: str) -> None:
        """As a power cut does: agent, guardians and trainers at once."""
        program = self.programs.pop(name)
        folder = self.folder / name
        program.kill()
        for pid in (*shims_under(folder), *trainers_under(folder)):
            send(pid, signal.SIGKILL)

    def settings(self, **changes: Any) -> dict[str, Any]:
        """The trainer's own config.json."""
        model = str(self.material / "model")
        plain = {
            "model_family": "sdxl",
            "model_type": "lora",
            "lora_type": "standard",
            "lora_rank": 4,
            "pretrained_model_name_or_path": model,
            "pretrained_vae_model_name_or_path": model,
            "data_backend_config": "config/multidatabackend.json",
            "resolution": 64,
            "resolution_type": "pixel",
            "train_batch_size": 1,
            "max_train_steps": 8,
            "num_train_epochs": 0,
            "checkpoint_step_interval": 4,
            "checkpoints_total_limit": 5,
            "resume_from_checkpoint": "latest",
            "learning_rate": 1e-3,
            "lr_scheduler": "constant",
            "lr_warmup_steps": 0,
            "optimizer": "torch-adamw",
            "mixed_precision": "no",
            "base_model_precision": "no_change",
            "gradient_checkpointing": False,
            "attention_mechanism": "diffusers",
            "disable_benchmark": True,
            "aspect_bucket_rounding": 2,
            "minimum_image_size": 0,
            "seed": 42,
            "report_to": "none",
            "validation_disable_unconditional": True,
            "validation_prompt": "a red square",
            "validation_resolution": "64x64",
            "validation_steps": 1000,
            "validation_num_inference_steps": 1,
            "validation_guidance": 1.0,
            "dataloader_prefetch": False,
        }
        return {**plain, **changes}

    def dataloader(self, **changes: Any) -> list[dict[str, Any]]:
        pictures = {
            "id": "pictures",
            "type": "local",
            "instance_data_dir": str(self.material / "pictures"),
            "caption_strategy": "textfile",
            "metadata_backend": "discovery",
            "resolution": 64,
            "resolution_type": "pixel",
            "minimum_image_size": 0,
            "crop": True,
            "crop_style": "center",
            "crop_aspect": "square",
            "cache_dir_vae": "cache/vae",
            "repeats": 50,
        }
        texts = {
            "id": "texts",
            "dataset_type": "text_embeds",
            "type": "local",
            "default": True,
            "cache_dir": "cache/text",
        }
        return [{**pictures, **changes}, texts]

    def submit(
        self,
        settings: dict[str, Any],
        *,
        dataloader: list[dict[str, Any]] | None = None,
        gpus: int = 0,
        env: dict[str, str] | None = None,
        **more: Any,
    ) -> str:
        bundle = {
            "trainer": "simpletuner",
            "settings": settings,
            "dataloader": dataloader or self.dataloader(),
            "resources": {"gpus": gpus},
            "env": env or {},
        }
        request = {"config_name": "tiny", "config": bundle, "target": "worker", **more}
        return str(self.post("/api/queue/submit", request)["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.get(f"/api/jobs/{job_id}"))

    def ended(self, job_id: str) -> dict[str, Any]:
        self.wait_for(f"{job_id} has ended", lambda: self.job(job_id)["status"] in OVER)
        return self.job(job_id)

    def step(self, job_id: str) -> int:
        return int((self.job(job_id).get("progress") or {}).get("step") or 0)

    def checkpoints(self, job_id: str) -> list[dict[str, Any]]:
        stored = self.get(f"/api/jobs/{job_id}/artifacts")["manifests"]
        return [one for one in stored if one["kind"] == "checkpoint"]

    def log(self, job_id: str) -> str:
        folder = self.attempt_folder(job_id)
        return (folder / "output.log").read_text(errors="replace") if folder else ""

    def attempt_folder(self, job_id: str) -> Path | None:
        """Of the attempt whose output was written to last."""
        seen = sorted(self.folder.glob("*/attempts/*/output.log"), key=lambda path: path.stat().st_mtime)
        mine = [path.parent for path in seen if job_id in (path.parent / "order.json").read_text()]
        return mine[-1] if mine else None

    def wait_for(self, what: str, condition: Callable[[], bool], within_s: float = PATIENCE_S) -> float:
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > within_s:
                raise AssertionError(f"not within {within_s:.0f} s: {what}")
            time.sleep(0.25)
        return time.monotonic() - began

    def cli(self, *words: str, cwd: Path | None = None, refuses: bool | None = False) -> str:
        """What the command prints; it must succeed, or where it is to refuse, must not. None: either will do."""
        environment = {**self._environment, "SIMPLETUNER_URL": self.url, "SIMPLETUNER_API_TOKEN": self._token}
        argv = [str(SIMPLETUNER), *words]
        ran = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, cwd=cwd)
        assert refuses is None or (ran.returncode != 0) is refuses, (words, ran.stdout, ran.stderr)
        return ran.stdout if refuses is False else ran.stdout + ran.stderr

    def get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("POST", path, body)

    def _is_ready(self) -> bool:
        try:
            self._call("GET", "/health/ready", None)
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error
