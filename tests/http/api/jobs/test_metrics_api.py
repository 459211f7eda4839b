"""The numbers of trainings over HTTP: none twice, none lost, none from a stranger."""

import asyncio
from pathlib import Path
from typing import Any

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.storage.metrics.metric_files import RECORD
from tests.http.api_kit import Agent, Running, orchestrator


def point(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "at": 1_700_000_000 + step, "values": values or {"loss": 1 / (step + 1)}}


class Trainer:
    def __init__(self, agent: Agent, offer: dict[str, Any]) -> None:
        self.agent, self.offer = agent, offer

    async def send(
        self, first: int, points: list[dict[str, Any]], expect: int = 200, **headers: str
    ) -> dict[str, Any]:
        answer = await self.agent.http.post(
            f"/api/workers/job/{self.offer['job_id']}/metrics",
            json={"epoch": self.offer["epoch"], "first": first, "points": points},
            headers=headers,
        )
        assert answer.status_code == expect, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def send_gpus(self, first: int, points: list[dict[str, Any]], expect: int = 200) -> dict[str, Any]:
        answer = await self.agent.http.post(
            f"/api/workers/job/{self.offer['job_id']}/gpu-metrics",
            json={"epoch": self.offer["epoch"], "first": first, "points": points},
        )
        assert answer.status_code == expect, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def send_steps(self, first: int, steps: range) -> int:
        return int((await self.send(first, [point(step) for step in steps]))["next"])


async def training(running: Running, **options: Any) -> Trainer:
    agent = await running.worker()
    await running.submit(**options)
    return Trainer(agent, await agent.take())


async def curves(running: Running, trainer: Trainer, **query: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await running.get(f"/api/jobs/{trainer.offer['job_id']}/metrics", **query)
    return answer


def steps_of(metrics: dict[str, Any], key: str = "loss") -> list[int]:
    return [bucket["step"] for bucket in metrics["series"][key]]


async def test_points_sent_again_or_overlapping_are_stored_once() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        assert await trainer.send_steps(0, range(5)) == 5
        assert await trainer.send_steps(0, range(5)) == 5
        assert await trainer.send_steps(3, range(3, 9)) == 9
        metrics = await curves(running, trainer)
        assert (metrics["keys"], metrics["total"], steps_of(metrics)) == (["loss"], 9, list(range(9)))
        assert metrics["series"]["loss"][3] == {
            "step": 3,
            "at": "2023-11-14T22:13:23.000Z",
            "min": 0.25,
            "max": 0.25,
            "last": 0.25,
        }


async def test_two_senders_of_the_same_points_at_once_store_them_once(tmp_path: Path) -> None:
    async with orchestrator(blobs=FolderBlobs(tmp_path)) as running:
        trainer = await training(running)
        answers = await asyncio.gather(*(trainer.send_steps(0, range(200)) for _ in range(8)))
        assert set(answers) == {200}
        stored = tmp_path / "metrics" / trainer.offer["attempt_id"] / "loss"
        assert stored.stat().st_size == 200 * RECORD.size


async def test_beyond_a_gap_nothing_is_stored_and_the_answer_says_where_to_go_on() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        assert await trainer.send_steps(0, range(3)) == 3
        assert await trainer.send_steps(7, range(7, 9)) == 3
        assert steps_of(await curves(running, trainer)) == [0, 1, 2]


async def test_what_a_crash_left_half_written_is_shown_once(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    async with orchestrator(blobs=blobs) as running:
        trainer = await training(running)
        await trainer.send_steps(0, range(3))
        half = b"".join(RECORD.pack(step, 5.0, 9.0) for step in (3, 4)) + b"\0\0\0"
        await blobs.append(f"metrics/{trainer.offer['attempt_id']}/loss", 3 * RECORD.size, half)
        assert await trainer.send_steps(3, range(3, 6)) == 6
        metrics = await curves(running, trainer)
        assert steps_of(metrics) == list(range(6))
        assert metrics["series"]["loss"][4]["last"] == 0.2


async def test_a_loss_that_is_not_a_number_is_told_as_such() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        await trainer.send(0, [point(1, loss=2), point(2, loss="NaN"), point(3, loss="-Infinity")])
        losses = (await curves(running, trainer))["series"]["loss"]
        assert [bucket["last"] for bucket in losses] == [2.0, "NaN", "-Infinity"]
        assert [bucket["min"] for bucket in losses] == [2.0, None, None]
        together = (await curves(running, trainer, points=1))["series"]["loss"]
        assert [(b["min"], b["max"], b["last"]) for b in together] == [(2.0, 2.0, "-Infinity")]


async def test_few_points_keep_the_peaks_and_one_key_can_be_asked_for() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        points = [point(step, loss=99 if step == 250 else 1, lr=0.1) for step in range(500)]
        await trainer.send(0, points)
        metrics = await curves(running, trainer, key="loss", points=10)
        assert (metrics["keys"], list(metrics["series"]), metrics["total"]) == (["loss", "lr"], ["loss"], 500)
        assert len(metrics["series"]["loss"]) == 10
        assert max(bucket["max"] for bucket in metrics["series"]["loss"]) == 99


async def test_a_later_attempt_counts_from_where_it_went_on() -> None:
    async with orchestrator() as running:
        first = await training(running)
        await first.send(0, [point(step, loss=1) for step in range(1, 31)])
        await first.agent.report(first.offer, "released", error="going")
        await first.agent.heartbeat()
        second = Trainer(first.agent, await first.agent.take())
        await second.send(0, [point(step, loss=2) for step in range(21, 26)])
        metrics = await curves(running, second)
        assert steps_of(metrics) == list(range(1, 26))
        assert [bucket["last"] for bucket in metrics["series"]["loss"]] == [1.0] * 20 + [2.0] * 5
        assert steps_of(await curves(running, second, attempt=1)) == list(range(1, 31))
        assert (await curves(running, second, attempt=2))["attempt"] == 2
        missing = await running.http.get(f"/api/jobs/{second.offer['job_id']}/metrics?attempt=9")
        assert missing.status_code == 404
        await first.send(30, [point(31)], expect=409)


async def test_only_the_attempts_own_worker_or_token_may_send() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        stranger = Trainer(await running.worker("gpu-2"), trainer.offer)
        assert (await stranger.send(0, [point(1)], expect=409))["code"] == "stale_attempt"
        async with running.as_user(None) as nobody:
            body = {"epoch": trainer.offer["epoch"], "first": 0, "points": [point(1)]}
            path = f"/api/workers/job/{trainer.offer['job_id']}/metrics"
            assert (await nobody.post(path, json=body)).status_code == 401
            token = {"X-Upload-Token": trainer.offer["upload_token"]}
            assert (await nobody.post(path, json=body, headers=token)).json() == {"next": 1}


async def test_what_is_no_point_is_refused_and_named() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        for bad in (
            point(1, **{"../loss": 1}),
            {**point(1), "values": {"step": 1}},
            point(1, **{"..": 1}),
            point(1, **{f"k{at}": at for at in range(65)}),
            {**point(1), "step": -1},
            {**point(1), "at": -5},
            point(1, loss="much"),
        ):
            await trainer.send(0, [bad], expect=422)
        await trainer.send(0, [point(step) for step in range(501)], expect=413)
        await trainer.send(-1, [point(1)], expect=422)
        assert (await curves(running, trainer))["total"] == 0


async def test_an_attempt_has_at_most_so_many_keys() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        await trainer.send(0, [point(1, **{f"a{at}": at for at in range(60)})])
        await trainer.send(1, [point(2, **{f"b{at}": at for at in range(60)}, a1=7)])
        metrics = await curves(running, trainer)
        assert len(metrics["keys"]) == 64
        assert steps_of(metrics, "a1") == [1, 2]


def gpu_point(step: int, at: float, index: int = 0, **values: float) -> dict[str, Any]:
    readings = values or {"utilization": at}
    return {
        "step": step,
        "at": at,
        "values": {f"gpu.{index}.{name}": value for name, value in readings.items()},
    }


BUSY = "gpu.0.utilization"


async def test_points_of_a_gpu_at_one_step_are_all_shown_over_time_and_are_no_steps() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        assert (await trainer.send_gpus(0, [gpu_point(0, 10.0), gpu_point(0, 20.0)]))["next"] == 2
        assert await trainer.send_steps(0, range(1, 4)) == 3
        assert (await trainer.send_gpus(1, [gpu_point(0, 20.0), gpu_point(3, 30.0)]))["next"] == 3
        metrics = await curves(running, trainer)
        assert (metrics["keys"], metrics["total"]) == ([BUSY, "loss"], 3)
        assert [(one["step"], one["last"]) for one in metrics["series"][BUSY]] == [(0, 10), (0, 20), (3, 30)]
        assert steps_of(metrics) == [1, 2, 3]
        few = await curves(running, trainer, key=BUSY, points=1)
        assert [(one["min"], one["max"]) for one in few["series"][BUSY]] == [(10, 30)]


async def test_gpus_of_eight_take_no_key_from_a_trainer_that_uses_all_of_its_own() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        four = {"utilization": 1.0, "memory_gb": 2.0, "temperature_c": 3.0, "power_w": 4.0}
        await trainer.send_gpus(0, [gpu_point(0, 1.0, index, **four) for index in range(8)])
        await trainer.send(0, [point(1, **{f"key_{number}": number for number in range(64)})])
        keys = (await curves(running, trainer))["keys"]
        assert len([key for key in keys if key.startswith("gpu.")]) == 32
        assert len([key for key in keys if key.startswith("key_")]) == 64


async def test_a_later_attempt_that_has_told_of_its_gpus_alone_hides_no_step_of_the_earlier() -> None:
    async with orchestrator() as running:
        first = await training(running)
        await first.send_steps(0, range(1, 31))
        await first.send_gpus(0, [gpu_point(30, 100.0)])
        await first.agent.report(first.offer, "released", error="going")
        await first.agent.heartbeat()
        second = Trainer(first.agent, await first.agent.take())
        await second.send_gpus(0, [gpu_point(20, 200.0)])
        metrics = await curves(running, second)
        assert steps_of(metrics) == list(range(1, 31))
        assert [one["last"] for one in metrics["series"][BUSY]] == [100, 200]
        assert [one["last"] for one in (await curves(running, second, attempt=2))["series"][BUSY]] == [200]
        await first.send_gpus(1, [gpu_point(31, 300.0)], expect=409)


async def test_what_is_no_number_of_a_gpu_is_refused() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        for key in (
            "loss",
            "step",
            "gpu.0.colour",
            "gpu.x.power_w",
            "gpu.0.power_w.more",
            "gpu.99999.power_w",
        ):
            refused = await trainer.send_gpus(0, [{"step": 1, "at": 1.0, "values": {key: 1}}], expect=422)
            assert refused["code"] == "invalid", refused
        await trainer.send_gpus(0, [gpu_point(0, 1.0)] * 501, expect=413)


async def test_whoever_has_the_cursor_is_told_only_what_changed() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        await trainer.send_steps(0, range(400))
        first = await curves(running, trainer, points=100)
        assert (len(first["series"]["loss"]), first["begins"]) == (100, {"loss": 0})
        await trainer.send_steps(400, range(400, 401))
        second = await curves(running, trainer, points=1000, after=first["cursor"])
        assert second["begins"] == {"loss": 400}
        assert steps_of(second) == [400]
        third = await curves(running, trainer, points=1000, after=second["cursor"])
        assert (steps_of(third), third["begins"], third["total"]) == ([], {"loss": 401}, 401)
        elsewhere = await curves(running, trainer, points=1000, after="1.1")
        assert (len(elsewhere["series"]["loss"]), elsewhere["begins"]) == (401, {"loss": 0})
        refused = await running.http.get(f"/api/jobs/{trainer.offer['job_id']}/metrics?after=nonsense")
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "$.after")


async def test_a_part_of_the_steps_is_shown_finer() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        await trainer.send_steps(0, range(500))
        part = await curves(running, trainer, points=20, from_step=100, to_step=109)
        assert steps_of(part) == list(range(100, 110))


async def test_curves_that_were_looked_at_follow_a_new_attempt_and_what_stands_there_twice(
    tmp_path: Path,
) -> None:
    blobs = FolderBlobs(tmp_path)
    async with orchestrator(blobs=blobs) as running:
        first = await training(running)
        await first.send(0, [point(step, loss=1) for step in range(1, 31)])
        seen = await curves(running, first)
        await first.agent.report(first.offer, "released", error="going")
        await first.agent.heartbeat()
        second = Trainer(first.agent, await first.agent.take())
        await second.send(0, [point(step, loss=2) for step in range(21, 26)])
        metrics = await curves(running, second, after=seen["cursor"])
        assert (steps_of(metrics), metrics["begins"]) == (list(range(1, 26)), {"loss": 0})
        twice = b"".join(RECORD.pack(step, 5.0, 9.0) for step in (26, 27))
        await blobs.append(f"metrics/{second.offer['attempt_id']}/loss", 5 * RECORD.size, twice)
        await curves(running, second)
        await second.send(5, [point(step, loss=3) for step in range(26, 29)])
        metrics = await curves(running, second, after=metrics["cursor"])
        assert (steps_of(metrics), metrics["begins"]) == (list(range(1, 29)), {"loss": 0})
        assert [bucket["last"] for bucket in metrics["series"]["loss"][-3:]] == [3.0, 3.0, 3.0]


async def test_a_long_answer_travels_compressed_to_whoever_can_read_that() -> None:
    async with orchestrator() as running:
        trainer = await training(running)
        await trainer.send_steps(0, range(400))
        path = f"/api/jobs/{trainer.offer['job_id']}/metrics"
        answer = await running.http.get(path, headers={"accept-encoding": "gzip"})
        assert (answer.headers["content-encoding"], answer.headers["vary"]) == ("gzip", "accept-encoding")
        assert len(answer.json()["series"]["loss"]) == 400
        head = await running.http.head(path, headers={"accept-encoding": "gzip"})
        assert head.headers["content-length"] == answer.headers["content-length"], (
            "a HEAD says what a GET would"
        )
        assert head.headers["content-encoding"] == "gzip"
        plain = await running.http.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.json()["series"] == answer.json()["series"]
