import os
import subprocess

import pytest
from msgspec.structs import replace

from bench.machine import Machine, children, describe, fork_exec_ms, pin, why_not_idle
from bench.programs import wait_until

IDLE = Machine(
    cores=4, memory_gib=8.0, kernel="6.1", architecture="x86_64", versions={}, load=0.4, busy_percent=2.0
)


def test_an_idle_machine_may_be_measured() -> None:
    assert why_not_idle(IDLE) == ""


@pytest.mark.parametrize("machine", [replace(IDLE, load=2.5), replace(IDLE, busy_percent=40.0)])
def test_a_busy_machine_is_told_with_its_load(machine: Machine) -> None:
    assert f"load average {machine.load:g} (at most 2)" in why_not_idle(machine)
    assert f"{machine.busy_percent:g} %" in why_not_idle(machine)


def test_a_machine_tells_its_versions_and_how_busy_it_is() -> None:
    machine = describe()
    assert machine.cores >= 1
    assert machine.versions["Python"].startswith("3.")
    assert 0 <= machine.busy_percent <= 100


def test_a_process_is_kept_on_its_core() -> None:
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen(["sleep", "30"]) as process:
        try:
            pin(process.pid, {core})
            assert os.sched_getaffinity(process.pid) == {core}
            wait_until(lambda: children(os.getpid())[process.pid] == "sleep 30", "the program begins")
        finally:
            process.kill()


def test_a_fork_takes_time() -> None:
    assert all(duration > 0 for duration in fork_exec_ms(times=3))
