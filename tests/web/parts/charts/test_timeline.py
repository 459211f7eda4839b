"""Steps through the last day: each stays within it, and there is none that leads nowhere."""

from simpletuner_fleet.web.parts.charts.timeline import HOUR_S, TimeWindow, window_of

NOW = 1_000_000.0
DAY = TimeWindow()


def test_the_whole_day_can_only_be_looked_at_more_closely() -> None:
    assert (DAY.wider, DAY.earlier, DAY.later) == (None, None, None)
    assert (DAY.since(NOW), DAY.until(NOW)) == (NOW - 24 * HOUR_S, NOW)
    assert DAY.closer == TimeWindow(hours=12, back=6.0), "around the same middle"


def test_each_step_stays_within_the_day() -> None:
    half = window_of(12, 0.0)
    assert half.later is None
    assert half.earlier == TimeWindow(hours=12, back=6.0)
    assert half.earlier.earlier == TimeWindow(hours=12, back=12.0)
    assert window_of(12, 12.0).earlier is None
    assert window_of(12, 12.0).wider == DAY
    assert window_of(1, 2.0).closer is None


def test_whatever_is_asked_for_becomes_a_window_that_there_is() -> None:
    assert window_of(23, 99.0) == DAY
    assert window_of(2, -1.0) == TimeWindow(hours=3, back=0.0)
