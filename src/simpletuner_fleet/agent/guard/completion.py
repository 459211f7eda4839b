"""Checks, for a trainer that ended with exit code 0, whether its training is complete."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.agent.data.resume import resumed_from
from simpletuner_fleet.agent.metrics.event_ends import last_point
from simpletuner_fleet.agent.metrics.metric_files import furthest, latest_bar, newest
from simpletuner_fleet.agent.metrics.readings import Readings
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.training.completion import NOT_CHECKED, CleanExit
from simpletuner_fleet.core.training.metrics import Point
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.contract import Paths

LOOK_BACK_BYTES = 4 * 2**20
"""After its last step a trainer draws pictures, saves and uploads: its last bar may be far from the log's end."""
EVENT_ENDS_WITHIN_S = 10.0
EVENTS_WITHIN_S = 60.0
"""How long TensorBoard's files are read, where nothing else tells that the training is complete."""


async def checked(
    ending: AttemptEnding, offer: JobSubmit, habits: CheckpointHabits, paths: Paths, output_log: Path
) -> AttemptEnding:
    """Returns the ending, with the reason why the training is not complete where its exit code says that it is."""
    if ending.reason is not EndReason.EXITED or ending.exit_code != 0:
        return ending

    def look(events: Sequence[Point]) -> str | None:
        return habits.shortfall(offer, _seen(ending.last_lines, offer, habits, paths, output_log, events))

    shortfall = await asyncio.to_thread(look, ())
    if shortfall is None:
        return ending
    folder, begun_at = habits.output_folder(paths), resumed_from(offer) or 0
    # A long training's files hold more than can be read from their start.
    last = await asyncio.to_thread(last_point, folder, begun_at, EVENT_ENDS_WITHIN_S)
    if last and await asyncio.to_thread(look, [last]) is None:
        return ending
    readings = Readings((), folder, begun_at, after_end_s=EVENTS_WITHIN_S)
    await asyncio.to_thread(readings.read, at_once=True)
    while readings.behind:
        await asyncio.to_thread(readings.read, at_once=True)
    shortfall = await asyncio.to_thread(look, readings.latest())
    if shortfall and (readings.cut_short or readings.gave_up):
        shortfall = NOT_CHECKED
    return replace(ending, shortfall=shortfall)


def _seen(
    last_lines: str,
    offer: JobSubmit,
    habits: CheckpointHabits,
    paths: Paths,
    output_log: Path,
    events: Sequence[Point],
) -> CleanExit:
    """Finds the furthest step that anything tells; a trainer that had nothing left to do tells none."""
    begun_at = resumed_from(offer) or 0
    points = furthest([newest(habits.progress_files(paths)), list(events)])
    bar = latest_bar(output_log, LOOK_BACK_BYTES)
    steps = [begun_at, points[-1].step if points else 0, bar.step if bar else 0]
    total = (bar.total if bar else None) or (points[-1].total if points else None)
    return CleanExit(last_lines=last_lines, step=max(steps), total=total)
