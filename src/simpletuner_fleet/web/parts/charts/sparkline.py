"""Draws a curve in a few pixels, as an SVG path with gaps where there was no number."""

from collections.abc import Sequence

from simpletuner_fleet.core.training.bands import Bucket

WIDTH, HEIGHT, MARGIN = 120.0, 28.0, 2.0


def path(buckets: Sequence[Bucket]) -> str:
    """Returns the path; empty where there is nothing to draw yet."""
    levels = [level for bucket in buckets for level in (bucket.min, bucket.max) if level is not None]
    if len(buckets) < 2 or not levels:
        return ""
    low, high = min(levels), max(levels)
    across = WIDTH / (len(buckets) - 1)
    drawn: list[str] = []
    pen_up = True
    for place, bucket in enumerate(buckets):
        if bucket.min is None or bucket.max is None:
            pen_up = True
            continue
        middle = (bucket.min + bucket.max) / 2
        share = (middle - low) / (high - low) if high > low else 0.5
        y = HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN)
        drawn.append(f"{'M' if pen_up else 'L'}{place * across:.1f} {y:.1f}")
        pen_up = False
    return "".join(drawn)
