"""Workers and their trainings as the orchestrator hears of them: real messages, made-up content, any hour of the day."""

import math
import random
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import httpx2
import numpy as np
from msgspec import Struct

from simpletuner_fleet.core.training import metrics
from simpletuner_fleet.http.access.sessions import COOKIE
from simpletuner_fleet.protocol.messages import LOG_AGES_HEADER
from simpletuner_fleet.trainers.demo.output.png import encode_png
from tests.http.api_kit import Agent, Running

PASSWORD = "a long and quiet afternoon"
LINES_PER_CALL = 10_000
LINES_PER_MARK = 20
POINTS_PER_CALL = 500
FINAL = ("completed", "failed", "cancelled")


class Model(Struct, frozen=True):
    """A kind of machine."""

    gpu: str
    vram_gb: float
    count: int = 1
    accelerator: str = "cuda"


A100 = Model("NVIDIA A100-SXM4-80GB", 80, 2)
H100 = Model("NVIDIA H100 80GB HBM3", 80, 8)
RTX4090 = Model("NVIDIA GeForce RTX 4090", 24)
L40S = Model("NVIDIA L40S", 48, 4)
MAC = Model("Apple M4 Max", 64, 1, "mps")


class Machine(Agent):
    """A worker of ours without a GPU and without a trainer."""

    def __init__(self, running: Running, created: dict[str, Any]) -> None:
        super().__init__(running, created)
        self.gpus: list[str] = []
        self.held: dict[str, dict[str, Any]] = {}
        """Offers by job."""

    async def come(self, model: Model, **facts: Any) -> "Machine":
        self.seq += 1
        self.gpus = [f"GPU-{self.id}-{at}" for at in range(model.count)]
        gpus = [
            {
                "index": at,
                "uuid": uuid,
                "name": model.gpu,
                "vram_gb": model.vram_gb,
                "accelerator_type": model.accelerator,
            }
            for at, uuid in enumerate(self.gpus)
        ]
        registration = {
            "persistent": True,
            "gpus": gpus,
            "trainers": ["simpletuner", "command", "demo"],
            "incarnation": self.incarnation,
            "seq": self.seq,
            "attempts": [],
            "max_jobs": model.count,
            "version": "0.9.0",
            **facts,
        }
        await self.call("register", registration)
        await self.open_stream()
        return self

    async def goodbye(self, reason: str) -> None:
        await self.call("disconnect", {"reason": reason, "incarnation": self.incarnation})
        self.gpus.clear()

    async def hold(self) -> "Work":
        """Takes what it is offered."""
        offer = await self.take()
        self.held[offer["job_id"]] = offer
        return Work(self, offer)

    async def beat(self) -> None:
        await self.heartbeat(*self.held.values(), gpus=self.gpu_samples())

    def gpu_samples(self) -> list[dict[str, Any]]:
        busy = {uuid for offer in self.held.values() for uuid in offer["gpus"]}
        return [
            {
                "uuid": uuid,
                "utilization": 96.0,
                "memory_used_gb": 61.5,
                "temperature_c": 71.0,
                "power_w": 388.0,
            }
            if uuid in busy
            else {"uuid": uuid, "utilization": 0.0, "memory_used_gb": 0.5, "temperature_c": 34.0}
            for uuid in self.gpus
        ]


class Work:
    """One attempt, told step by step."""

    def __init__(self, machine: Machine, offer: dict[str, Any]) -> None:
        self.machine = machine
        self.offer = offer
        self.job_id = str(offer["job_id"])
        self._points = 0
        self._logged = 0

    @property
    def _clock(self) -> float:
        return self.machine.running.clock.at

    async def _call(self, what: str, body: dict[str, Any]) -> Any:
        return await self.machine.call(f"job/{self.job_id}/{what}", {"epoch": self.offer["epoch"], **body})

    async def train(self, steps: range, total: int, seconds: float, *, every: int = 10) -> None:
        """Runs until now: metrics backwards from the present moment, progress, and a log to match."""
        chance = random.Random(f"{self.offer['config_name']} {steps.start}")
        taken = list(range(steps.start, steps.stop, every))
        per_step_s = seconds / max(1, len(steps))
        points: list[dict[str, Any]] = []
        for step in taken:
            at = self._clock - (steps.stop - step) * per_step_s
            loss = 0.09 + 0.55 * math.exp(-step / (total / 5)) + chance.uniform(-0.02, 0.02)
            rate = 1e-4 * min(1.0, step / 200) * (0.5 + 0.5 * math.cos(math.pi * step / total))
            points.append({"step": step, "at": at, "values": {"loss": round(loss, 4), "lr": rate}})
        await self.send_points(points)
        await self.say([log_line(point, total) for point in points], seconds)
        rate = 1 / per_step_s
        progress = {
            "step": steps.stop,
            "total": total,
            "loss": points[-1]["values"]["loss"],
            "lr": points[-1]["values"]["lr"],
            "rate": round(rate, 4),
            "eta_s": metrics.eta_s(steps.stop, total, rate),
        }
        await self.report("running", progress=progress)

    async def report(self, status: str, **more: Any) -> None:
        await self.machine.report(self.offer, status, **more)
        if status in FINAL:
            del self.machine.held[self.job_id]

    async def send_points(self, points: list[dict[str, Any]]) -> None:
        for at in range(0, len(points), POINTS_PER_CALL):
            batch = points[at : at + POINTS_PER_CALL]
            await self._call("metrics", {"first": self._points, "points": batch})
            self._points += len(batch)

    async def say(self, lines: Sequence[str], over_s: float = 0.0) -> None:
        """Printed evenly in the last `over_s` seconds."""
        rows = [f"{line}\n".encode() for line in lines]
        for first in range(0, len(rows), LINES_PER_CALL):
            block = rows[first : first + LINES_PER_CALL]
            marks, at = [], self._logged
            for number, row in enumerate(block, first):
                if number % LINES_PER_MARK == 0:
                    marks.append(f"{at}:{int(1000 * over_s * (1 - number / len(rows)))}")
                at += len(row)
            await self._append(b"".join(block), ",".join(marks))

    async def print_raw(self, data: bytes) -> None:
        """Bytes as a trainer may print them, cut anywhere."""
        await self._append(data, f"{self._logged}:0")

    async def _append(self, data: bytes, ages: str) -> None:
        answer = await self.machine.http.put(
            f"/api/workers/job/{self.job_id}/logs",
            params={"epoch": self.offer["epoch"], "offset": self._logged},
            content=data,
            headers={"content-type": "application/octet-stream", LOG_AGES_HEADER: ages},
        )
        assert answer.status_code == 200, answer.text
        self._logged = int(answer.json()["next_offset"])

    async def checkpoint(self, step: int) -> None:
        weights = random.Random(step).randbytes(20_000)
        await self.store(
            "checkpoint", f"checkpoint-{step}", {"pytorch_lora_weights.safetensors": weights}, step
        )

    async def samples(self, step: int, name: str = "samples.png") -> None:
        await self.store("artifact", f"samples-{step}", {name: picture(step)}, step)

    async def store(self, kind: str, name: str, files: dict[str, bytes], step: int) -> None:
        entries = []
        for path, content in files.items():
            digest = sha256(content).hexdigest()
            entries.append({"path": path, "size": len(content), "sha256": digest})
            answer = await self.machine.http.put(
                f"/api/workers/job/{self.job_id}/objects/{digest}",
                params={"epoch": self.offer["epoch"], "offset": 0, "size": len(content)},
                content=content,
                headers={"content-type": "application/octet-stream"},
            )
            assert answer.status_code == 200, answer.text
        manifest = {"kind": kind, "name": name, "files": entries, "step": step}
        await self._call("manifests", {"manifest": manifest})

    async def note(self, kind: str, text: str) -> None:
        await self._call("notes", {"notes": [{"id": kind, "at": self._clock, "kind": kind, "text": text}]})


class Crew:
    """The people and machines of a fleet, and the jobs that go from these to those."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.people: dict[str, httpx2.AsyncClient] = {}
        self.machines: dict[str, Machine] = {}

    async def __aenter__(self) -> "Crew":
        return self

    async def __aexit__(self, *_: object) -> None:
        for person in self.people.values():
            await person.aclose()

    async def let_in(self, role: str, name: str) -> str:
        """A user with this role, logged in. Gives what their browser keeps."""
        await self.running.post("/api/admin/users", {"name": name, "role": role, "password": PASSWORD})
        return await self.log_in(role, name)

    async def log_in(self, role: str, name: str) -> str:
        """In a browser of their own, which is theirs from now on. Gives what it keeps."""
        if role in self.people:
            await self.people[role].aclose()
        browser = self.people[role] = self.running.as_user(None)
        browser.headers["origin"] = self.running.listening.url
        answer = await browser.post("/api/login", json={"name": name, "password": PASSWORD})
        assert answer.is_success, answer.text
        return str(answer.cookies[COOKIE])

    async def machine(self, name: str, model: Model | None, **choices: Any) -> Machine:
        """Without a model it was created and never came."""
        machine = Machine(self.running, await self.running.create_worker(name, **choices))
        self.machines[machine.id] = machine
        if model is not None:
            kind = choices.get("worker_type", "persistent")
            await machine.come(model, persistent=kind == "persistent", labels={"hostname": name})
        return machine

    async def submit(self, by: str, **options: Any) -> dict[str, Any]:
        answer = await self.people[by].post("/api/queue/submit", json=options)
        assert answer.is_success, answer.text
        return dict(answer.json())

    async def begin(self, by: str, **options: Any) -> Work:
        """A job that starts at once, on whichever machine it was given to."""
        submitted = await self.submit(by, **options)
        assert submitted["allocated_worker_id"], submitted
        return await self.machines[submitted["allocated_worker_id"]].hold()

    async def queue(self, by: str, **options: Any) -> str:
        """A job that waits, for one reason or another."""
        submitted = await self.submit(by, **options)
        assert not submitted["allocated_worker_id"], submitted
        return str(submitted["job_id"])


def log_line(point: dict[str, Any], total: int) -> str:
    values = point["values"]
    return (
        f"\x1b[32mINFO\x1b[0m step={point['step']}/{total} "
        f"\x1b[1mloss={values['loss']:.4f}\x1b[0m lr={values['lr']:.2e}"
    )


def picture(seed: int) -> bytes:
    """Soft grey waves that differ from step to step."""
    x, y = np.meshgrid(np.linspace(0, 6, 256), np.linspace(0, 6, 256))
    waves = np.sin(x * (1 + seed % 7) + seed) + np.cos(y * (1 + seed % 5) - seed)
    return encode_png(((waves + 2) * 63).astype(np.uint8))
