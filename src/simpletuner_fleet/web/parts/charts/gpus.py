"""Draws a GPU's last hours: utilization as an area, memory as a line, with gaps where nothing was reported."""

from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.engine.memory.gpu_history import MEAN_OVER_S, GpuPoint

WIDTH, HEIGHT = 600.0, 60.0
LONGEST_STEP_S = MEAN_OVER_S * 1.5
"""Means are so far apart; whatever is farther was a silence."""
ROWS = 12


class GpuChart(Struct, frozen=True, kw_only=True):
    busy: str
    """An area, as a path for SVG."""
    full: str
    """A line."""
    rows: list[GpuPoint]
    """Some of it in figures, the newest first."""


def gpu_chart(points: Sequence[GpuPoint], vram_gb: float, since: float, until: float) -> GpuChart:
    def spot(point: GpuPoint, share: float) -> tuple[float, float]:
        across = (point.at - since) / max(1.0, until - since) * WIDTH
        return across, HEIGHT - 1 - max(0.0, min(1.0, share)) * (HEIGHT - 2)

    busy = [(one.at, spot(one, one.utilization / 100)) for one in points if one.utilization is not None]
    full = [
        (one.at, spot(one, one.memory_used_gb / vram_gb))
        for one in points
        if one.memory_used_gb is not None and vram_gb > 0
    ]
    every = max(1, len(points) // ROWS)
    return GpuChart(
        busy="".join(_area(stretch) for stretch in _stretches(busy)),
        full="".join(_line(stretch) for stretch in _stretches(full)),
        rows=list(points)[::-every][:ROWS],
    )


Spots = list[tuple[float, float]]


def _stretches(spots: Sequence[tuple[float, tuple[float, float]]]) -> list[Spots]:
    """Splits the points where nothing was reported for a while."""
    stretches: list[Spots] = []
    last = float("-inf")
    for at, spot in spots:
        if at - last > LONGEST_STEP_S:
            stretches.append([])
        stretches[-1].append(spot)
        last = at
    return stretches


def _line(stretch: Spots) -> str:
    if len(stretch) == 1:
        (x, y) = stretch[0]
        return f"M{x - 1:.1f} {y:.1f}L{x + 1:.1f} {y:.1f}"
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in stretch)


def _area(stretch: Spots) -> str:
    first, last = stretch[0][0], stretch[-1][0]
    if len(stretch) == 1:
        first, last = first - 1, last + 1
        stretch = [(first, stretch[0][1]), (last, stretch[0][1])]
    top = "L".join(f"{x:.1f} {y:.1f}" for x, y in stretch)
    return f"M{first:.1f} {HEIGHT:.1f}L{top}L{last:.1f} {HEIGHT:.1f}Z"
