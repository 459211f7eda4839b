"""A worker's day as a drawing."""

from simpletuner_fleet.queries.last_day import AttemptBar, WorkerLane
from simpletuner_fleet.web.parts.charts.lanes import lane_drawing
from simpletuner_fleet.web.parts.charts.timeline import TimeWindow

NOW = 1_000_000.0
HOUR_S = 3600.0


def bar(start_h: float, end_h: float, outcome: str = "completed", title: str = "cats") -> AttemptBar:
    start, end = NOW - start_h * HOUR_S, NOW - end_h * HOUR_S
    return AttemptBar(job_id="j_1", title=title, start=start, end=end, outcome=outcome, gpus=1)


def lane(*bars: AttemptBar, away: tuple[tuple[float, float], ...] = ()) -> WorkerLane:
    return WorkerLane(worker_id="w_1", name="gpu-1", status="idle", bars=bars, away=away)


def test_a_bar_stands_where_its_attempt_was_and_looks_as_it_ended() -> None:
    drawn = lane_drawing(lane(bar(12, 6), bar(5, 4, "failed"), bar(3, 2, "released")), TimeWindow(), NOW)
    assert '<rect class="run" x="720.00" y="1" width="360.00"' in drawn
    assert drawn.count('class="lost"') == drawn.count('class="given"') == 1


def test_only_what_the_window_shows_is_drawn_and_a_short_bar_can_still_be_seen() -> None:
    window = TimeWindow(hours=6, back=0.0)
    drawn = lane_drawing(lane(bar(12, 7), bar(1, 1)), window, NOW)
    assert drawn.count("<a ") == 1
    assert '<rect class="run" x="300.00" y="1" width="0.75"' in drawn


def test_where_the_worker_was_away_is_drawn_under_the_bars() -> None:
    drawn = lane_drawing(lane(away=((NOW - HOUR_S, NOW),)), TimeWindow(), NOW)
    assert '<rect class="gone" x="1380.00" y="5" width="60.00" height="6"/>' in drawn


def test_a_title_cannot_leave_its_place() -> None:
    drawn = lane_drawing(lane(bar(2, 1, title="</title><script>")), TimeWindow(), NOW)
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in drawn
