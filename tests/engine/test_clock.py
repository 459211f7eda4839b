"""The orchestrator's clock goes on whatever becomes of its machine."""

import time

import pytest

from simpletuner_fleet.engine.clock import SteadyClock

NIGHT_S = 8 * 3600.0


def test_a_night_in_which_the_machine_is_suspended_passes_for_its_clock_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suspended_s, read = [0.0], time.clock_gettime

    def boottime_runs_on(which: int) -> float:
        return read(which) + (suspended_s[0] if which == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", boottime_runs_on)
    clock = SteadyClock()
    before = clock.now()
    suspended_s[0] = NIGHT_S
    assert NIGHT_S <= clock.now() - before < NIGHT_S + 60


def test_a_step_of_the_wall_clock_is_not_seen() -> None:
    wall = [1000.0]
    clock = SteadyClock(wall=lambda: wall[0], monotonic=lambda: 5.0)
    wall[0] = 9000.0
    assert clock.now() == 1000.0
