"""Finds out which accelerators this machine has, and how they are doing."""

import asyncio
import contextlib
import logging
import math
import os
import platform
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.child_processes import give, started
from simpletuner_fleet.core.policy import MAX_LABEL_VALUE_CHARS
from simpletuner_fleet.core.worker_errors import InventoryError, NoSuchGpu
from simpletuner_fleet.core.workers.gpu_health import Health
from simpletuner_fleet.core.workers.worker import Gpu
from simpletuner_fleet.protocol.messages import GpuSample
from simpletuner_fleet.trainers.environment import CUDA_UUID_PREFIXES

log = logging.getLogger(__name__)

INVENTORY_VARIABLE = "SIMPLETUNER_GPU_INVENTORY"
NVML_CHILD = (sys.executable, "-I", str(Path(__file__).with_name("nvml_child.py")))
PROBE_TIMEOUT_S = 20.0
ANSWERS_WITHIN_S = 600.0
"""Without its persistence mode a driver wakes each GPU anew: many of them take longer than a start may."""
ASK_AGAIN_S = 60.0
READING_WITHIN_S = 120.0
"""A driver that is slow is waited for, as nobody else waits; one that takes longer hangs, and is asked anew."""
USUAL_READING_S = 5.0
KILL_TIMEOUT_S = 1.0
NO_ANSWER = "the driver did not answer within {:g} s"
MAX_DECLARED = 1024
MAX_ANSWER_BYTES = 1 << 20
CHILD_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "NVIDIA_VISIBLE_DEVICES")
UNKNOWN = "unknown"
A = TypeVar("A")
_VENDOR_WORDS = frozenset({"nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "apple", "graphics"})


class Inventory(Struct, frozen=True, kw_only=True):
    gpus: tuple[Gpu, ...] = ()
    source: str = "none"
    """declared · nvml · mps · none · unknown"""
    problem: str | None = None
    """Why GPUs that may be there are not listed."""

    @property
    def is_known(self) -> bool:
        """Tells whether the driver has said which GPUs there are."""
        return self.source != UNKNOWN


class _DeclaredGpu(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    vram_gb: float = 0.0
    count: int = 1
    accelerator_type: str = "cuda"
    uuid: str = ""
    """Its own, where two workers of one machine declare it: then only one of them is given it at a time."""


class _NvmlGpu(Struct, frozen=True):
    index: int
    uuid: str | None = None
    name: str | None = None
    memory_gb: float | None = None
    foreign_memory_gb: float | None = None
    healthy: bool | None = None


class _NvmlAnswer(Struct, frozen=True):
    gpus: list[_NvmlGpu] = []
    broken: list[str] = []
    """Why the driver does not open those that are not listed."""
    absent: bool = False
    error: str | None = None


class _NvmlSample(Struct, frozen=True):
    uuid: str | None = None
    utilization: float | None = None
    memory_used_gb: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    foreign_memory_gb: float | None = None
    healthy: bool | None = None


class _NvmlSamples(Struct, frozen=True):
    gpus: list[_NvmlSample] = []
    error: str | None = None


class GpuProbe:
    """Finds the machine's GPUs once, and samples them often.

    Neither can block the agent: the driver is asked by a child that may be killed.
    """

    def __init__(self, environment: Mapping[str, str], nvml_command: Sequence[str] = NVML_CHILD) -> None:
        self._environment = environment
        self._command = nvml_command
        self._child: asyncio.subprocess.Process | None = None
        self._killed = False
        self._asking = asyncio.Lock()
        self._finding: asyncio.Task[Inventory] | None = None
        self.inventory = Inventory()

    async def find(self, timeout_s: float = PROBE_TIMEOUT_S) -> Inventory:
        """Finds declared GPUs, else NVML's, else Apple's. Raises InventoryError for an unreadable declaration.

        A driver that does not answer in time is asked on, and `answered` returns what it says then.
        """
        declared = self._environment.get(INVENTORY_VARIABLE)
        if declared:
            self.inventory = Inventory(gpus=declared_gpus(declared), source="declared")
        else:
            self._finding = asyncio.create_task(self._ask_nvml())
            await asyncio.wait({self._finding}, timeout=timeout_s)
            self.inventory = self._finding.result() if self._finding.done() else _silent(timeout_s)
            if not self.inventory.gpus and (apple := _apple_gpu()):
                self.inventory = Inventory(gpus=(apple,), source="mps")
        return self.inventory

    async def answered(self) -> Inventory:
        """Returns what there is once the driver has said it, however long that takes."""
        while self._finding is not None and not self.inventory.is_known:
            self.inventory = await asyncio.shield(self._finding)
            if not self.inventory.is_known:
                await asyncio.sleep(ASK_AGAIN_S)
                self._finding = asyncio.create_task(self._ask_nvml())
        return self.inventory

    async def sample(self, timeout_s: float = READING_WITHIN_S) -> list[GpuSample]:
        """Returns one sample per known GPU, once the driver has answered; what cannot be learnt in time stays None.

        One that the driver lists no more is not healthy.
        """
        measured: dict[str | None, _NvmlSample] = {}
        if self.inventory.source == "nvml":
            with contextlib.suppress(_NvmlSilent):
                answer = await self._ask(b"sample", timeout_s, _NvmlSamples)
                measured = {one.uuid: one for one in answer.gpus}
                if answer.error is None and not any(
                    one.uuid is None and one.healthy is not False for one in answer.gpus
                ):
                    gone = [gpu.uuid for gpu in self.inventory.gpus if gpu.uuid not in measured]
                    measured |= {uuid: _NvmlSample(uuid=uuid, healthy=False) for uuid in gone if uuid}
        return [_sample_of(gpu, measured.get(gpu.uuid)) for gpu in self.inventory.gpus]

    async def close(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.wait({self._finding}, timeout=KILL_TIMEOUT_S)
        await self._let_go()

    async def _ask_nvml(self) -> Inventory:
        try:
            answer = await self._ask(b"list", ANSWERS_WITHIN_S, _NvmlAnswer)
        except _NvmlSilent as error:
            return Inventory(source=UNKNOWN, problem=f"NVML gave no answer: {error}")
        if answer.error is not None:
            return Inventory(problem=None if answer.absent else f"NVML: {answer.error}")
        return Inventory(
            gpus=tuple(map(_gpu_of, answer.gpus)),
            source="nvml" if answer.gpus else "none",
            problem=f"NVML: {'; '.join(answer.broken)}" if answer.broken else None,
        )

    async def _ask(self, question: bytes, timeout_s: float, answer: type[A]) -> A:
        async with self._asking:
            try:
                async with asyncio.timeout(timeout_s):
                    return msgspec.json.decode(await self._ask_child(question), type=answer)
            except TimeoutError:
                await self._let_go()
                raise _NvmlSilent(NO_ANSWER.format(timeout_s)) from None
            except (OSError, ValueError) as error:  # ValueError: a line longer than any answer, or no answer
                await self._let_go()
                raise _NvmlSilent(str(error)) from None
            except asyncio.CancelledError:  # its answer would be taken for that to the next question
                self._kill()
                raise

    async def _ask_child(self, question: bytes) -> bytes:
        child = await self._living_child()
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(ConnectionError):  # it may have said why and left before it was asked
            await give(child.stdin, question + b"\n")
        line = await child.stdout.readline()
        if not line:
            raise OSError("the process that asks it has ended")
        return line

    async def _living_child(self) -> asyncio.subprocess.Process:
        if self._child is None or self._child.returncode is not None:
            self._child = await started(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={name: self._environment[name] for name in CHILD_VARIABLES if name in self._environment},
                limit=MAX_ANSWER_BYTES,
                start_new_session=True,
            )
            self._killed = False
        elif self._killed:
            raise OSError("the driver still holds the last one who asked")
        return self._child

    async def _let_go(self) -> None:
        """Kills the child that asks the driver. No second one is started until it has died.

        A process stuck in the driver dies only when the driver lets it.
        """
        if self._child is None:
            return
        self._kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await self._child.wait()

    def _kill(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            self._killed = True


class _NvmlSilent(Exception):
    """The driver could not be asked."""


def _silent(timeout_s: float) -> Inventory:
    return Inventory(source=UNKNOWN, problem=f"NVML gave no answer: {NO_ANSWER.format(timeout_s)}")


def with_age(samples: Sequence[GpuSample], age_s: float, every_s: float) -> list[GpuSample]:
    """Returns the samples with their age, where they are older than those that are read so often usually are."""
    if age_s <= every_s + USUAL_READING_S:
        return list(samples)
    return [replace(sample, age_s=round(age_s, 1)) for sample in samples]


def declared_gpus(declaration: str) -> tuple[Gpu, ...]:
    try:
        content = Path(declaration[1:]).read_bytes() if declaration.startswith("@") else declaration.encode()
        kinds = msgspec.json.decode(content, type=list[_DeclaredGpu])
    except OSError as error:
        raise InventoryError(
            f"{INVENTORY_VARIABLE}: {declaration[1:]} cannot be read: {error.strerror}."
        ) from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InventoryError(f"{INVENTORY_VARIABLE}: {error}.") from error
    for kind in kinds:
        if not 0 <= kind.count <= MAX_DECLARED:
            raise InventoryError(
                f"{INVENTORY_VARIABLE}: count must be between 0 and {MAX_DECLARED}, not {kind.count}."
            )
        if not (math.isfinite(kind.vram_gb) and kind.vram_gb >= 0):
            raise InventoryError(f"{INVENTORY_VARIABLE}: vram_gb must be a size, not {kind.vram_gb}.")
    _check_uuids([kind for kind in kinds if kind.uuid])
    each = [kind for kind in kinds for _ in range(kind.count)]
    return tuple(
        Gpu(
            index=index,
            uuid=kind.uuid or f"GPU-declared-{index}",
            name=kind.name,
            vram_gb=kind.vram_gb,
            accelerator_type=kind.accelerator_type.lower(),
        )
        for index, kind in enumerate(each)
    )


def _check_uuids(named: Sequence[_DeclaredGpu]) -> None:
    for kind in named:
        if kind.count != 1:
            raise InventoryError(
                f"{INVENTORY_VARIABLE}: the uuid {kind.uuid} is one GPU's, so its count is 1."
            )
        if not kind.uuid.startswith(CUDA_UUID_PREFIXES) and kind.accelerator_type.lower() == "cuda":
            raise InventoryError(
                f"{INVENTORY_VARIABLE}: a CUDA uuid begins with 'GPU-' or 'MIG-', not {kind.uuid}."
            )
    if len({kind.uuid for kind in named}) != len(named):
        raise InventoryError(f"{INVENTORY_VARIABLE}: two GPUs have the same uuid.")


def select_gpus(gpus: Sequence[Gpu], selection: str | None) -> tuple[Gpu, ...]:
    """Returns those that `--gpus` names by index or UUID, in the order given; None is all, '' is none."""
    if selection is None:
        return tuple(gpus)
    known = {str(gpu.index): gpu for gpu in gpus} | {gpu.uuid: gpu for gpu in gpus}
    chosen: list[Gpu] = []
    for word in filter(None, (word.strip() for word in selection.split(","))):
        if word not in known:
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
            raise NoSuchGpu(f"--gpus {word}: this machine has no such GPU.", next_step=f"There are: {there}.")
        if known[word] not in chosen:
            chosen.append(known[word])
    return tuple(chosen)


def chosen_gpus(inventory: Inventory, selection: str | None) -> tuple[Gpu, ...]:
    """Returns the GPUs that this worker has, as far as they are known, and logs them. Raises NoSuchGpu."""
    if inventory.problem:
        log.warning("GPUs could not be detected: %s", inventory.problem)
    if not inventory.is_known:
        log.warning("this worker takes only jobs that need no GPU until the driver has answered")
        return ()
    gpus = select_gpus(inventory.gpus, selection)
    if gpus:
        log.info("found %d GPU(s): %s", len(gpus), ", ".join(gpu.name for gpu in gpus))
    else:
        log.info("no GPU was found: this worker takes only jobs that need none")
    return gpus


def reported_labels(gpus: Sequence[Gpu], *, known: bool = True) -> dict[str, str]:
    """Returns what this machine says of itself; an admin's labels go before these."""
    labels = {
        "hostname": socket.gethostname(),
        "os": platform.system().lower(),
        "arch": platform.machine().lower(),
        "accelerator": gpus[0].accelerator_type if gpus else "cpu" if known else UNKNOWN,
    }
    if gpus and (gpu_type := gpu_type_of(gpus[0].name)):
        labels["gpu_type"] = gpu_type
    return {key: value[:MAX_LABEL_VALUE_CHARS] for key, value in labels.items() if value}


def gpu_type_of(name: str) -> str:
    """Turns a name such as `NVIDIA A100-SXM4-80GB` into `a100-sxm4-80gb`, so that a glob such as `a100*` finds it."""
    words = re.findall(r"[a-z0-9.]+", name.lower())
    return "-".join(word for word in words if word not in _VENDOR_WORDS)


def _gpu_of(gpu: _NvmlGpu) -> Gpu:
    """Returns the GPU with its memory in whole GiB: a card sold with 80 GB reports 79.6, and a job asks for 80."""
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid or "",
        name=gpu.name or "",
        vram_gb=float(round(gpu.memory_gb or 0)),
        accelerator_type="cuda",
        unusable=Health(gpu.healthy, gpu.foreign_memory_gb).unusable or "",
    )


def _sample_of(gpu: Gpu, measured: _NvmlSample | None) -> GpuSample:
    if measured is None:
        return GpuSample(uuid=gpu.uuid)
    return GpuSample(
        uuid=gpu.uuid,
        utilization=measured.utilization,
        memory_used_gb=measured.memory_used_gb,
        temperature_c=measured.temperature_c,
        power_w=measured.power_w,
        foreign_memory_gb=measured.foreign_memory_gb,
        healthy=measured.healthy,
    )


def _apple_gpu() -> Gpu | None:
    """Returns the Apple GPU, whose memory is the machine's."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return None
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3
    return Gpu(
        index=0, uuid="MPS-0", name="Apple silicon", vram_gb=float(round(memory_gb)), accelerator_type="mps"
    )
