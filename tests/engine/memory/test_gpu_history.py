"""What is remembered of every GPU."""

from simpletuner_fleet.engine.memory.gpu_history import CLOSE_EVERY_S, CLOSE_POINTS, MEAN_POINTS, GpuHistory
from simpletuner_fleet.protocol.messages import GpuSample


def filled(hours: float, every_s: float = 30.0) -> GpuHistory:
    history = GpuHistory()
    for step in range(int(hours * 3600 / every_s)):
        at = step * every_s
        history.note("w_1", at, [GpuSample(uuid="GPU-a", utilization=50.0, memory_used_gb=at / 3600)])
    return history


def test_what_a_gpu_does_not_tell_stays_unknown() -> None:
    history = GpuHistory()
    history.note(
        "w_1", 100.0, [GpuSample(uuid="GPU-a", utilization=None, power_w=float("nan"), temperature_c=41)]
    )
    point = history.latest("w_1")["GPU-a"]
    assert (point.utilization, point.power_w, point.temperature_c) == (None, None, 41.0)


def test_the_last_hour_is_close_and_the_day_before_it_is_told_in_means() -> None:
    points = filled(30).of("w_1", 0.0)["GPU-a"]
    times = [point.at for point in points]
    assert times == sorted(times)
    assert times[-1] - times[0] > 23 * 3600
    close = [at for at in times if at > times[-1] - 3600]
    assert len(close) > 100
    assert {point.utilization for point in points} == {50.0}


def test_a_reading_counts_as_of_when_it_was_read() -> None:
    history = GpuHistory()
    for at, age_s in ((100.0, None), (130.0, 31.0), (160.0, 60.0), (200.0, 30.0), (230.0, -1e9)):
        history.note("w_1", at, [GpuSample(uuid="GPU-a", utilization=50.0, age_s=age_s)])
    assert [point.at for point in history.of("w_1", 0.0)["GPU-a"]] == [100.0, 170.0, 230.0]


def test_it_never_holds_more_than_its_rings() -> None:
    points = filled(100).of("w_1", 0.0)["GPU-a"]
    assert len(points) <= CLOSE_POINTS + MEAN_POINTS


def test_a_flood_of_heartbeats_is_thinned_out() -> None:
    history = GpuHistory()
    for step in range(1000):
        history.note("w_1", step * 0.1, [GpuSample(uuid="GPU-a", utilization=1.0)])
    assert len(history.of("w_1", 0.0)["GPU-a"]) <= 100 / CLOSE_EVERY_S + 1


def test_since_leaves_out_what_is_older() -> None:
    assert all(point.at >= 5000 for point in filled(3).of("w_1", 5000.0)["GPU-a"])


def test_a_worker_that_is_gone_is_forgotten() -> None:
    history = filled(1)
    history.forget_before(1000.0)
    assert history.latest("w_1")
    history.forget_before(4000.0)
    assert history.of("w_1", 0.0) == {}
    assert history.latest("w_1") == {}


def test_a_gpu_that_its_worker_has_no_more_is_forgotten_though_the_worker_goes_on() -> None:
    history = GpuHistory()
    for step in range(100):
        history.note("w_1", step * 60.0, [GpuSample(uuid=f"GPU-{step}", utilization=1.0)])
        history.forget_before(step * 60.0 - 120.0)
    assert list(history.latest("w_1")) == ["GPU-97", "GPU-98", "GPU-99"]
