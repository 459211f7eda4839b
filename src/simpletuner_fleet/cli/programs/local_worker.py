"""Runs a worker beside the server: the program and protocol of any other machine, restarted and ended by us."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from simpletuner_fleet.child_processes import killed, started
from simpletuner_fleet.cli.programs.service_unit import FINAL
from simpletuner_fleet.client.connection import LOCAL_WORKER_PROBLEM
from simpletuner_fleet.languages import ENGLISH
from simpletuner_fleet.settings.worker import WORKER

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STEADY_AFTER_S = 60.0
STOP_TIMEOUT_S = 10.0
CHECK_TIMEOUT_S = 120.0
PASSED_ON = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "NO_COLOR",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
)
PASSED_ON_BEGINNINGS = (
    *("LC_", "SSL_CERT_", "CUDA_", "NVIDIA_", "NCCL_", "HIP_", "ROCR_"),
    *("HF_HOME", "HF_HUB_CACHE", "COVERAGE_PROCESS_"),
)
ITS_SETTINGS = frozenset(row.env for row in WORKER if row.env and not row.secret)
"""A server's environment holds keys and passwords of its own; a job's process comes from here."""


class LocalWorker:
    """Keeps a worker running beside the server.

    The worker survives a crash of the server: the next server finds it by its pid file and keeps it.
    """

    def __init__(self, data_dir: Path, arguments: list[str]) -> None:
        self._data_dir = data_dir
        self._work_dir = data_dir / "local-worker"
        self._pid_file = data_dir / "local_worker.pid"
        self._arguments = [*arguments, "--work-dir", str(self._work_dir)]
        self.problem = ""
        """Why it stays off: nothing would get better by starting it again."""
        self._keeper: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        """The one that this server has started last; none where an earlier server's goes on."""

    def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._keeper:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        pid = self._survivor()
        if pid is None:
            return
        _signal(pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await _gone(pid)
                if self._process:  # by its pid it is gone before the event loop has noticed
                    await self._process.wait()
        except TimeoutError:
            _signal(pid, signal.SIGKILL)
        self._pid_file.unlink(missing_ok=True)

    async def _keep(self) -> None:
        pause_s = FIRST_PAUSE_S
        self._tell("")
        while True:
            began = asyncio.get_running_loop().time()
            try:
                is_final = await self._run() in FINAL
            except OSError as error:  # a full disk, or no process more: the next try may succeed
                log.error("the local worker cannot run now: %s", error)
                is_final = False
            if is_final:
                self._tell(await self._why())
                log.error("the local worker stays off until the server starts again: %s", self.problem)
                return
            lived_s = asyncio.get_running_loop().time() - began
            pause_s = FIRST_PAUSE_S if lived_s > STEADY_AFTER_S else min(2 * pause_s, LONGEST_PAUSE_S)
            log.warning("the local worker has ended; it starts again in %.0f s", pause_s)
            await asyncio.sleep(pause_s)

    async def _run(self) -> int | None:
        """Runs the worker and returns its exit status; None for one that an earlier server has started."""
        survivor = self._survivor()
        if survivor:
            await _gone(survivor)
            return None
        process = self._process = await self._started()
        try:
            self._pid_file.write_text(f"{process.pid}\n")
        except OSError:
            # Nobody would find it by then, neither to end it nor to keep it.
            process.terminate()
            await process.wait()
            raise
        return await process.wait()

    async def _started(self, *more: str, stderr: int | None = None) -> asyncio.subprocess.Process:
        environment = environment_of(os.environ, self._data_dir)
        if stderr is not None:  # it is read here, by its English words
            environment["SIMPLETUNER_LANG"] = ENGLISH
        return await started(
            sys.executable,
            "-m",
            "simpletuner_fleet.cli.main",
            "worker",
            *self._arguments,
            *more,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=None if stderr is None else asyncio.subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )

    async def _why(self) -> str:
        """Runs the worker with --check to learn why it fails, since what it printed before went to the log."""
        process = await self._started("--check", stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                _, said = await process.communicate()
        except TimeoutError:
            return "it does not say why"
        finally:
            if process.returncode is None:
                await killed(process)
        reasons = [
            line.partition("why:")[2].strip()
            for line in said.decode(errors="replace").splitlines()
            if "why:" in line
        ]
        return reasons[-1][:500] if reasons else f"it ends with status {process.returncode}"

    def _tell(self, problem: str) -> None:
        self.problem = problem
        file = self._data_dir / LOCAL_WORKER_PROBLEM
        with suppress(OSError):
            file.write_text(f"{problem}\n") if problem else file.unlink(missing_ok=True)

    def _survivor(self) -> int | None:
        """Returns the pid of the worker that this or an earlier server has started, if it still runs."""
        try:
            pid = int(self._pid_file.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if str(self._work_dir).encode() in words and _alive(pid) else None


def environment_of(server: Mapping[str, str], data_dir: Path) -> dict[str, str]:
    """Returns the variables that the worker needs; jobs must be isolated here, unless the owner chose otherwise."""
    kept = {
        name: value
        for name, value in server.items()
        if name in PASSED_ON or name in ITS_SETTINGS or name.startswith(PASSED_ON_BEGINNINGS)
    }
    if kept.get("SIMPLETUNER_ISOLATION", "auto") == "auto":
        kept["SIMPLETUNER_ISOLATION"] = "required"
    return {**kept, "SIMPLETUNER_HOME": str(data_dir)}  # which it hides from jobs


async def _gone(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _alive(pid: int) -> bool:
    """Tells whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
