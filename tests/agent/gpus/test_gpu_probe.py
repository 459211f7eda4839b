import asyncio
import fnmatch
import json
import sys
import time
from pathlib import Path

import pytest

from simpletuner_fleet.agent.gpus.gpu_probe import (
    INVENTORY_VARIABLE,
    GpuProbe,
    Inventory,
    declared_gpus,
    gpu_type_of,
    reported_labels,
    select_gpus,
)
from simpletuner_fleet.core.worker_errors import InventoryError, NoSuchGpu
from simpletuner_fleet.protocol.messages import GpuSample

TWO_A100 = '[{"name":"NVIDIA A100-SXM4-80GB","vram_gb":80,"count":2,"accelerator_type":"cuda"}]'


def driver(tmp_path: Path, program: str) -> list[str]:
    """A stand-in for the process that asks NVML; it says what a real driver would make it say."""
    file = tmp_path / "driver.py"
    file.write_text(program)
    return [sys.executable, "-I", "-S", str(file)]


async def inventory_of(environment: dict[str, str], command: list[str], timeout_s: float = 30.0) -> Inventory:
    probe = GpuProbe(environment, command)
    try:
        return await probe.find(timeout_s)
    finally:
        await probe.close()


async def test_declared_gpus_go_before_all_detection() -> None:
    inventory = await inventory_of({INVENTORY_VARIABLE: TWO_A100}, ["/must/not/be/asked"])
    assert inventory.source == "declared"
    assert [(gpu.index, gpu.uuid, gpu.vram_gb, gpu.accelerator_type) for gpu in inventory.gpus] == [
        (0, "GPU-declared-0", 80.0, "cuda"),
        (1, "GPU-declared-1", 80.0, "cuda"),
    ]


async def test_a_driver_that_answers_nonsense_is_said_and_ends_no_agent(tmp_path: Path) -> None:
    listed = json.dumps({"gpus": [{"index": 0, "uuid": "GPU-1", "name": "A", "memory_gb": 80}]})
    program = f"""
import sys
for line in sys.stdin:
    print({listed!r} if line == "list\\n" else '{{"gpus": [{{"power_w": NaN}}]}}', flush=True)
"""
    probe = GpuProbe({}, driver(tmp_path, program))
    try:
        assert (await probe.find(30.0)).source == "nvml"
        assert await probe.sample(30.0) == [GpuSample(uuid="GPU-1")]
    finally:
        await probe.close()
    nonsense = await inventory_of({}, driver(tmp_path, "print('no JSON', flush=True)\ninput()"))
    assert nonsense.gpus == ()
    assert nonsense.problem is not None
    assert "NVML gave no answer" in nonsense.problem


def test_a_declared_gpu_may_have_its_own_uuid() -> None:
    gpus = declared_gpus('[{"name":"A"},{"name":"H200","uuid":"GPU-8932f937-d72c"}]')
    assert [gpu.uuid for gpu in gpus] == ["GPU-declared-0", "GPU-8932f937-d72c"]


@pytest.mark.parametrize(
    ("declaration", "complaint"),
    [
        ('[{"name":"A","uuid":"GPU-1","count":2}]', "its count is 1"),
        ('[{"name":"A","uuid":"card 1"}]', "begins with 'GPU-' or 'MIG-'"),
        ('[{"name":"A","uuid":"GPU-1"},{"name":"B","uuid":"GPU-1"}]', "two GPUs have the same uuid"),
    ],
)
def test_a_uuid_that_cannot_be_one_gpus_is_refused(declaration: str, complaint: str) -> None:
    with pytest.raises(InventoryError, match=complaint):
        declared_gpus(declaration)


def test_gpus_of_several_kinds_can_be_declared_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "gpus.json"
    file.write_text('[{"name":"A"},{"name":"B","count":2,"vram_gb":24.5,"accelerator_type":"ROCm"}]')
    gpus = declared_gpus(f"@{file}")
    assert [(gpu.name, gpu.index, gpu.accelerator_type) for gpu in gpus] == [
        ("A", 0, "cuda"),
        ("B", 1, "rocm"),
        ("B", 2, "rocm"),
    ]


def test_an_empty_declaration_is_a_machine_without_gpus() -> None:
    assert declared_gpus("[]") == ()


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("{", "SIMPLETUNER_GPU_INVENTORY"),
        ('{"name":"A"}', "Expected `array`"),
        ('[{"vram_gb":80}]', "name"),
        ('[{"name":"A","vram":80}]', "vram"),
        ('[{"name":"A","count":-1}]', "count must be"),
        ('[{"name":"A","count":100000}]', "count must be"),
        ('[{"name":"A","vram_gb":-5}]', "vram_gb must be"),
        ("@/no/such/file", "/no/such/file cannot be read"),
    ],
)
def test_a_declaration_that_cannot_be_read_says_why(declaration: str, message: str) -> None:
    with pytest.raises(InventoryError, match=message):
        declared_gpus(declaration)


async def test_what_the_driver_tells_becomes_gpus_and_samples(tmp_path: Path) -> None:
    gpus = [
        {"index": 0, "uuid": "GPU-1", "name": "NVIDIA H200", "memory_gb": 79.6},
        {"index": 1, "uuid": "GPU-2"},
    ]
    samples = [
        {"uuid": "GPU-1", "utilization": 97, "memory_used_gb": 12.5, "temperature_c": 61, "power_w": None}
    ]
    program = (
        "import json, sys\n"
        f"answers = {{'list': {gpus!r}, 'sample': {samples!r}}}\n"
        "for line in sys.stdin: print(json.dumps({'gpus': answers[line.strip()]}), flush=True)"
    )
    probe = GpuProbe({}, driver(tmp_path, program))
    inventory = await probe.find()
    assert inventory.source == "nvml"
    assert [(gpu.uuid, gpu.name, gpu.vram_gb) for gpu in inventory.gpus] == [
        ("GPU-1", "NVIDIA H200", 80),
        ("GPU-2", "", 0),
    ]
    assert await probe.sample() == [
        GpuSample(uuid="GPU-1", utilization=97, memory_used_gb=12.5, temperature_c=61, power_w=None),
        GpuSample(uuid="GPU-2", healthy=False),
    ]
    await probe.close()


async def test_a_gpu_that_cannot_be_told_from_one_without_a_name_is_not_called_gone(tmp_path: Path) -> None:
    program = """
import json, sys
for line in sys.stdin:
    uuid = "GPU-1" if line == "list\\n" else None
    print(json.dumps({"gpus": [{"index": 0, "uuid": uuid, "utilization": 5}]}), flush=True)
"""
    probe = GpuProbe({}, driver(tmp_path, program))
    await probe.find()
    assert await probe.sample() == [GpuSample(uuid="GPU-1")]
    await probe.close()


async def test_a_gpu_that_the_driver_does_not_open_keeps_no_other_from_its_worker(tmp_path: Path) -> None:
    answer = {"gpus": [{"index": 0, "uuid": "GPU-1"}], "broken": ["GPU 1: Unknown Error"]}
    inventory = await inventory_of({}, driver(tmp_path, f"print({json.dumps(answer)!r})"))
    assert [gpu.uuid for gpu in inventory.gpus] == ["GPU-1"]
    assert (inventory.source, inventory.problem) == ("nvml", "NVML: GPU 1: Unknown Error")


async def test_a_machine_without_nvml_has_no_gpus_and_no_problem(tmp_path: Path) -> None:
    program = 'print(\'{"absent": true, "error": "NVML Shared Library Not Found"}\')'
    assert await inventory_of({}, driver(tmp_path, program)) == Inventory()


async def test_a_broken_driver_is_told_and_the_machine_joins_without_gpus(tmp_path: Path) -> None:
    program = 'print(\'{"absent": false, "error": "Driver/library version mismatch"}\')'
    inventory = await inventory_of({}, driver(tmp_path, program))
    assert inventory == Inventory(problem="NVML: Driver/library version mismatch")


async def test_a_driver_that_crashes_the_asker_is_told(tmp_path: Path) -> None:
    inventory = await inventory_of({}, driver(tmp_path, "import os; os.kill(os.getpid(), 11)"))
    assert inventory.problem == "NVML gave no answer: the process that asks it has ended"


async def test_a_driver_that_hangs_costs_the_timeout_and_blocks_nothing(tmp_path: Path) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    inventory = await inventory_of({}, driver(tmp_path, "import time; time.sleep(600)"), timeout_s=0.3)
    ticking.cancel()
    assert inventory.problem == "NVML gave no answer: the driver did not answer within 0.3 s"
    assert ticks >= 5


async def test_a_driver_that_hangs_later_leaves_samples_empty_and_is_asked_anew(tmp_path: Path) -> None:
    program = """
import json, os, sys, time
for line in sys.stdin:
    if line == "sample\\n" and not os.path.exists(sys.argv[1]):
        time.sleep(600)
    print(json.dumps({"gpus": [{"index": 0, "uuid": "GPU-1", "utilization": 5}]}), flush=True)
"""
    works = tmp_path / "works"
    probe = GpuProbe({}, [*driver(tmp_path, program), str(works)])
    await probe.find()
    began_at = time.monotonic()
    assert await probe.sample(timeout_s=0.1) == [GpuSample(uuid="GPU-1")]
    assert time.monotonic() - began_at < 10
    await asyncio.to_thread(works.touch)
    assert await probe.sample() == [GpuSample(uuid="GPU-1", utilization=5)]
    await probe.close()


async def test_the_real_asker_answers_on_this_machine_too() -> None:
    probe = GpuProbe({})
    inventory = await probe.find()
    assert inventory.source in ("nvml", "mps", "none")
    assert len(await probe.sample()) == len(inventory.gpus)
    await probe.close()


def test_gpus_are_chosen_by_index_or_uuid() -> None:
    gpus = declared_gpus('[{"name":"A","count":3}]')
    assert select_gpus(gpus, None) == gpus
    assert select_gpus(gpus, "2, 0") == (gpus[2], gpus[0])
    assert select_gpus(gpus, "GPU-declared-1,1") == (gpus[1],)
    assert select_gpus(gpus, "") == ()
    with pytest.raises(NoSuchGpu, match="--gpus 3"):
        select_gpus(gpus, "0,3")


@pytest.mark.parametrize(
    ("name", "expected", "glob"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb", "a100*"),
        ("NVIDIA H200", "h200", "h*"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090", "*4090"),
        ("Tesla T4", "t4", "t4"),
        ("NVIDIA RTX A6000", "rtx-a6000", "*a6000"),
        ("AMD Instinct MI300X", "mi300x", "mi300*"),
        ("", "", "*"),
    ],
)
def test_the_gpu_type_is_short_and_found_by_the_globs_people_write(
    name: str, expected: str, glob: str
) -> None:
    assert gpu_type_of(name) == expected
    assert fnmatch.fnmatchcase(gpu_type_of(name), glob)


def test_a_machine_says_what_it_is() -> None:
    labels = reported_labels(declared_gpus(TWO_A100))
    assert (labels["gpu_type"], labels["accelerator"]) == ("a100-sxm4-80gb", "cuda")
    assert {"hostname", "os", "arch"} <= set(labels)
    without = reported_labels(())
    assert without["accelerator"] == "cpu"
    assert "gpu_type" not in without
    assert json.dumps(without)


async def test_what_the_driver_tells_of_health_and_strangers_is_passed_on(tmp_path: Path) -> None:
    gpus = [
        {"index": 0, "uuid": "GPU-1", "foreign_memory_gb": 30.5, "healthy": True},
        {"index": 1, "uuid": "GPU-2", "foreign_memory_gb": 0.0, "healthy": False},
        {"index": 2, "uuid": "GPU-3", "foreign_memory_gb": None, "healthy": None},
    ]
    answer = json.dumps({"gpus": gpus})
    program = f"import sys\nfor line in sys.stdin: print({answer!r}, flush=True)"
    probe = GpuProbe({}, driver(tmp_path, program))
    try:
        inventory = await probe.find()
        samples = await probe.sample()
    finally:
        await probe.close()
    assert [gpu.unusable for gpu in inventory.gpus] == ["in use by another program", "unhealthy", ""]
    assert [(one.foreign_memory_gb, one.healthy) for one in samples] == [
        (30.5, True),
        (0.0, False),
        (None, None),
    ]
