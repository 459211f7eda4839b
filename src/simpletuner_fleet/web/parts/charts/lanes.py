"""Draws one worker's day: a background, when it was away, and a bar for each attempt."""

from markupsafe import Markup, escape

from simpletuner_fleet.queries.last_day import WorkerLane
from simpletuner_fleet.web.parts.charts.timeline import DAY_HOURS, TimeWindow

MINUTE_S = 60.0
NARROWEST_GAP, NARROWEST_BAR, ROUNDING = 2.0, 3.0, 2.0
"""In minutes of a whole day; of a part of it accordingly less."""
LOOKS = {"failed": "lost", "lost": "lost", "released": "given", "cancelled": "given"}


def lane_drawing(lane: WorkerLane, window: TimeWindow, now: float) -> Markup:
    """Returns the content of the lane's SVG, one unit wide for each minute.

    The markup is assembled by hand, since a page has thousands of these elements.
    """
    since, until, scale = window.since(now), window.until(now), window.hours / DAY_HOURS
    parts = [f'<rect class="ground" x="0" y="5" width="{window.hours * 60}" height="6"/>']
    for start, end in lane.away:
        if end > since and start < until:
            width = max((end - start) / MINUTE_S, NARROWEST_GAP * scale)
            x = (start - since) / MINUTE_S
            parts.append(f'<rect class="gone" x="{x:.2f}" y="5" width="{width:.2f}" height="6"/>')
    for bar in lane.bars:
        if bar.end > since and bar.start < until:
            width = max((bar.end - bar.start) / MINUTE_S, NARROWEST_BAR * scale)
            x, look = (bar.start - since) / MINUTE_S, LOOKS.get(bar.outcome, "run")
            parts.append(
                f'<a href="/jobs/{escape(bar.job_id)}" tabindex="-1"><title>{escape(bar.title)}</title>'
                f'<rect class="{look}" x="{x:.2f}" y="1" width="{width:.2f}" height="14" rx="{ROUNDING * scale}"/></a>'
            )
    return Markup("".join(parts))
