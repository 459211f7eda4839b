from simpletuner_fleet.agent.gpus.withheld import WithheldGpus
from simpletuner_fleet.core.workers.gpu_health import UNHEALTHY, Health, with_health
from simpletuner_fleet.core.workers.worker import Gpu
from simpletuner_fleet.protocol.messages import GpuSample

SEEN = [GpuSample(uuid="GPU-1", healthy=True, power_w=90.0), GpuSample(uuid="GPU-2", healthy=False)]


def noted(gpus: tuple[Gpu, ...], samples: list[GpuSample]) -> tuple[Gpu, ...]:
    return with_health(gpus, {one.uuid: Health(one.healthy, one.foreign_memory_gb) for one in samples})


def test_where_nothing_lives_on_the_machine_alone_says_how_its_gpus_are() -> None:
    assert WithheldGpus().samples(SEEN, set()) == SEEN


def test_a_gpu_is_withheld_while_something_lives_on_it_and_no_longer() -> None:
    """One that nobody measures, such as one that was declared, too; what was told is told until it is heard."""
    withheld, lived_on = WithheldGpus(), {"GPU-1", "GPU-2", "GPU-3"}
    gpus = tuple(Gpu(index=index, uuid=f"GPU-{index}") for index in (1, 2, 3))
    gpus = noted(gpus, withheld.samples(SEEN, lived_on))
    assert [gpu.unusable for gpu in gpus] == [UNHEALTHY] * 3
    assert withheld.samples(SEEN, lived_on)[0].power_w == 90.0
    withheld.heard(lived_on)
    withheld.samples(SEEN, set())  # is lost on its way
    samples = withheld.samples(SEEN, set())
    assert [gpu.unusable for gpu in noted(gpus, samples)] == ["", UNHEALTHY, ""]
    withheld.heard(set())
    assert withheld.samples(SEEN, set()) == SEEN
