"""Causes the failures that a config asks for, so that a worker's answer to each can be tested with a real process."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable

import numpy as np

from simpletuner_fleet.trainers.demo.learning.diffusion import Example
from simpletuner_fleet.trainers.demo.settings import Settings

HANG_LOOK_S = 0.05


class AskedForFailure(RuntimeError):
    """The config said to fail at this step."""


class Faults:
    """Causes the failures that a config asks for, before a step.

    Those at a step act only in the attempts named, or in all when none is named.
    """

    def __init__(self, settings: Settings, *, attempt: int, stopping: Callable[[], bool]) -> None:
        self._settings, self._stopping = settings, stopping
        self._active = not settings.demo_faults_on_attempts or attempt in settings.demo_faults_on_attempts

    def before(self, step: int) -> None:
        if self._settings.demo_step_delay_s:
            time.sleep(self._settings.demo_step_delay_s)
        if not self._active:
            return
        if step == self._settings.demo_fail_at_step:
            raise AskedForFailure(self._settings.demo_fail_message)
        if step == self._settings.demo_crash_signal_at_step:
            os.kill(os.getpid(), signal.Signals[self._settings.demo_crash_signal])
        if step == self._settings.demo_hang_at_step:
            self._hang()

    def spoil(self, step: int, example: Example) -> Example:
        """Returns a batch of NaN at that step: from then on the weights are NaN too, as after a real explosion."""
        if not self._active or step != self._settings.demo_nan_at_step:
            return example
        return dataclasses.replace(example, noisy=np.full_like(example.noisy, np.nan))

    def _hang(self) -> None:
        """Makes no step and prints no line until somebody says stop."""
        while not self._stopping():
            time.sleep(HANG_LOOK_S)
