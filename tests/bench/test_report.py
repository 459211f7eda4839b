from bench.machine import Machine
from bench.report import Report, header, markdown, number_text, summary, table
from bench.rows import Relation, Results, Target

SPEED = Target(what="speed", relation=Relation.AT_LEAST, limit=100.0, unit="/s")
RATIO = Target(what="ratio", relation=Relation.AT_LEAST, limit=1.0, unit="x", peer="Other")


def machine() -> Machine:
    return Machine(
        cores=2,
        memory_gib=4.0,
        kernel="6.1",
        architecture="aarch64",
        versions={"Python": "3.11.7"},
        load=0.25,
        busy_percent=3.0,
    )


def results() -> Results:
    made = Results(benchmark="b", title="a title")
    made.add("fork", "ms", [1.0, 3.0, 2.0])
    made.judge(SPEED, [50.0])
    made.compare(RATIO, "/s", [30.0], [20.0], "side by side")
    return made


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_a_table_has_figure_target_peer_ratio_and_verdict() -> None:
    lines = table(results()).splitlines()
    cells = [cells_of(line) for line in lines]
    assert lines[0] == "b: a title"
    assert cells[1] == [
        "what",
        "figure (median, spread)",
        "target",
        "peer, same run",
        "ratio (spread)",
        "verdict",
    ]
    assert cells[2] == ["fork", "2 ms (1 to 3, n=3)", "info"]
    assert cells[3] == ["speed", "50.0 /s", "at least 100 /s", "FAIL"]
    assert cells[4] == ["ratio", "30.0 /s", "at least 1 x", "Other 20.0 /s", "1.5 x", "pass"]
    assert lines[-1] == "  note: ratio: side by side"


def test_a_missing_peer_shows_as_missing() -> None:
    made = Results(benchmark="b", title="t")
    made.complete([RATIO], "it is not installed")
    assert cells_of(table(made).splitlines()[2]) == [
        "ratio",
        "missing",
        "at least 1 x",
        "Other missing",
        "missing",
    ]
    assert summary([made]) == "1 missing"


def test_columns_that_nobody_fills_are_left_out() -> None:
    made = Results(benchmark="b", title="t")
    made.add("fork", "ms", [1.0])
    assert table(made).splitlines()[1].split() == ["what", "figure", "(median,", "spread)", "verdict"]


def test_a_run_passes_only_as_a_whole() -> None:
    good = Results(benchmark="g", title="t")
    good.judge(SPEED, [200.0])
    assert Report(at="", quick=True, machine=machine(), results=[good]).passed
    assert not Report(at="", quick=True, machine=machine(), results=[good, results()]).passed
    assert summary([good, results()]) == "2 pass, 1 FAIL"


def test_the_rows_of_a_run_are_one_table_in_a_document() -> None:
    report = Report(at="2026-11-15T18:00:00Z", quick=False, machine=machine(), results=[results()])
    lines = markdown(report).splitlines()
    assert lines[0].startswith("2026-11-15. 2 cores")
    rows = [line for line in lines if line.startswith("|")]
    assert {row.count("|") for row in rows} == {7}
    assert rows[-1] == "| `b`: ratio | 30.0 /s | at least 1 x | Other 20.0 /s | 1.5 x | pass |"


def test_the_header_says_machine_versions_and_load() -> None:
    text = header(machine())
    assert "2 cores, 4 GiB, aarch64, Linux 6.1" in text
    assert "Python 3.11.7" in text
    assert "load average 0.25" in text


def test_numbers_have_as_many_digits_as_help() -> None:
    assert [number_text(value) for value in (1234.5, 99.96, 0.01234, -0.5)] == [
        "1,234",
        "100.0",
        "0.0123",
        "-0.5",
    ]
