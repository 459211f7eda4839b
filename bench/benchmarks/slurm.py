"""Starts against Slurm, measured in the same run; without Slurm the row is missing."""

import time
from pathlib import Path

from bench.benchmarks import stamping_trainer
from bench.benchmarks.latency import PAUSE_S, Submitter
from bench.options import Options
from bench.peers.slurm import installed, running_slurm
from bench.programs import BenchmarkFailed, running_agents, running_server, scratch, wait_until
from bench.rows import Results
from bench.targets import START_AGAINST_SLURM

TARGETS = (START_AGAINST_SLURM,)
TITLE = "from submission to the first instruction, against Slurm, which must be installed"


def measure(options: Options, results: Results) -> None:
    if not installed():
        raise BenchmarkFailed("Slurm is not installed here, or we are not root")
    jobs = 5 if options.quick else 20
    with scratch() as folder:
        with running_server(folder) as server, running_agents(server, folder):
            (waits,) = Submitter(server, folder).measure_single_jobs(jobs, 1)
        slurm_ms = _measure_slurm(folder, jobs)
    ours = [1e3 / wait_ms for wait_ms in sorted(waits.start_ms)]
    results.compare(START_AGAINST_SLURM, "/s", ours, [1e3 / wait_ms for wait_ms in sorted(slurm_ms)])


def _measure_slurm(folder: Path, jobs: int) -> list[float]:
    stamps = folder / "slurm-stamps"
    command = stamping_trainer.command(folder, stamps, 0)
    waits = []
    with running_slurm(folder) as slurm:
        for _ in range(jobs):
            stamps.unlink(missing_ok=True)
            sent_ns = time.time_ns()
            slurm.submit(command)
            wait_until(lambda: stamps.exists() and "E" in stamps.read_text(), "Slurm starts a job")
            (run,) = stamping_trainer.read_runs(stamps.read_text())
            waits.append((run.started_ns - sent_ns) / 1e6)
            time.sleep(PAUSE_S)
    return waits
