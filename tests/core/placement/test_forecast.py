"""When a waiting job would start."""

from simpletuner_fleet.core.jobs.job import Requirements, Target
from simpletuner_fleet.core.jobs.progress import Progress
from simpletuner_fleet.core.placement.forecast import (
    OtherWay,
    RunningJob,
    ends_at,
    forecast,
    is_busy,
    other_ways,
)
from simpletuner_fleet.core.placement.matching import FREE, Occupancy
from simpletuner_fleet.core.workers.worker import Worker
from tests.core.builders import NOW, a_job, a_worker

ONE = Requirements(target=Target.WORKER)


def run(worker: Worker, gpu: int, ends_in_s: float | None, title: str = "cats") -> RunningJob:
    return RunningJob(
        job_id=f"j_{title}",
        title=title,
        gpus=frozenset({worker.gpus[gpu].uuid}),
        ends_at=None if ends_in_s is None else NOW + ends_in_s,
    )


def test_the_first_in_line_starts_when_the_first_fitting_worker_is_free() -> None:
    near, far = a_worker("w_1", name="gpu-1"), a_worker("w_2", name="gpu-2")
    start = forecast(ONE, [(far, [run(far, 0, 900)]), (near, [run(near, 0, 60, "dogs")])], 0, NOW)
    assert start
    assert (start.at, start.worker, start.job, start.ahead) == (NOW + 60, "gpu-1", "dogs", 0)


def test_each_job_ahead_takes_a_worker_and_behind_more_than_there_are_nothing_is_said() -> None:
    near, far = a_worker("w_1", name="gpu-1"), a_worker("w_2", name="gpu-2")
    busy = [(far, [run(far, 0, 900)]), (near, [run(near, 0, 60)])]
    start = forecast(ONE, busy, 1, NOW)
    assert start
    assert (start.at, start.worker, start.ahead) == (NOW + 900, "gpu-2", 1)
    assert forecast(ONE, busy, 2, NOW) is None


def test_a_job_of_several_gpus_waits_for_all_that_hold_them_and_for_none_whose_end_is_unknown() -> None:
    worker = a_worker(gpus=2, max_jobs=2)
    two = Requirements(target=Target.WORKER, gpus=2)
    start = forecast(two, [(worker, [run(worker, 0, 60), run(worker, 1, 300, "dogs")])], 0, NOW)
    assert start
    assert (start.at, start.job) == (NOW + 300, "dogs")
    assert forecast(two, [(worker, [run(worker, 0, 60), run(worker, 1, None)])], 0, NOW) is None
    assert forecast(ONE, [(worker, [run(worker, 0, 60), run(worker, 1, None)])], 0, NOW)


def test_a_job_ends_by_its_own_rate_or_at_its_limit() -> None:
    assert ends_at(a_job(), NOW, NOW) is None
    assert ends_at(a_job(progress=Progress(step=1, eta_s=50.0)), NOW, NOW) == NOW + 50
    assert ends_at(a_job(progress=Progress(step=1, eta_s=50.0), time_limit_s=30.0), NOW, NOW) == NOW + 30


def test_other_ways_are_those_with_which_a_worker_has_room_now() -> None:
    full, idle = a_worker("w_1", gpus=2), a_worker("w_2", name="gpu-2", labels={"team": "b"})
    held = Occupancy(1, frozenset(gpu.uuid for gpu in full.gpus))
    memory = idle.gpus[0].vram_gb

    def asked() -> list[tuple[Worker, Occupancy]]:
        return [(full, held), (idle, FREE)]

    assert is_busy(full, held, ONE)
    assert other_ways(ONE, asked) == []
    assert other_ways(Requirements(target=Target.WORKER, gpus=2), asked) == [OtherWay(gpus=1)]
    assert other_ways(Requirements(target=Target.WORKER, min_vram_gb=memory + 1), asked) == [
        OtherWay(min_vram_gb=memory)
    ]
    assert other_ways(Requirements(labels=(("team", "a"),)), asked) == [OtherWay(without_label="team")]
