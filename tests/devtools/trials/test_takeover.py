"""What `./dev takeover` says of figures, and that it says no where a goal is missed."""

from devtools.trials.takeover import missed, summary


def test_the_median_and_the_worst_of_a_hundred_are_told() -> None:
    assert summary([1.0] * 98 + [2.0, 9.0]) == {"median_s": 1.0, "p99_s": 9.0, "max_s": 9.0}


def test_goals_that_are_met_leave_nothing_to_say() -> None:
    assert missed([2.9] * 50, [7.9] * 50, []) == []


def test_each_goal_that_is_missed_is_named() -> None:
    said = missed([2.0] * 49 + [3.2], [5.0] * 49 + [8.5], ["j_1"])
    assert [line.split(":")[0] for line in said] == [
        "j_1 ran before, and was disturbed",
        "the next accepted submit",
        "all workers back",
    ]
