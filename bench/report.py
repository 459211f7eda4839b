"""A run as people and programs read it: a header about the machine, then one table for each benchmark."""

from collections.abc import Sequence

import msgspec

from bench.machine import Machine
from bench.rows import Figure, Results, Row, Target, Verdict

COLUMNS = ("what", "figure (median, spread)", "target", "peer, same run", "ratio (spread)", "verdict")
MISSING = Verdict.MISSING.value


class Report(msgspec.Struct, kw_only=True):
    at: str
    quick: bool
    machine: Machine
    results: list[Results]

    @property
    def passed(self) -> bool:
        return all(results.passed for results in self.results)


def markdown(report: Report) -> str:
    """Returns the rows as one table for a document."""
    lines = [
        f"{report.at[:10]}. {header(report.machine)}",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * 6 + "|",
    ]
    for results in report.results:
        lines += [
            f"| {' | '.join((f'`{results.benchmark}`: {row.what}', *_cells(row)[1:]))} |"
            for row in results.rows
        ]
    return "\n".join(lines) + "\n"


def header(machine: Machine) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return (
        f"{machine.cores} cores, {machine.memory_gib:g} GiB, {machine.architecture}, Linux {machine.kernel}\n"
        f"{versions}\n"
        f"load average {machine.load:g} (1 minute), {machine.busy_percent:.0f} % of all cores busy now"
    )


def table(results: Results) -> str:
    """Leaves out columns that no row has anything for."""
    rows = [_cells(row) for row in results.rows]
    columns = [number for number in range(len(COLUMNS)) if any(row[number] for row in rows)]
    cells = [tuple(line[number] for number in columns) for line in (COLUMNS, *rows)]
    widths = [max(len(line[number]) for line in cells) for number in range(len(columns))]
    lines = [f"{results.benchmark}: {results.title}", *(_aligned(line, widths) for line in cells)]
    lines += [f"  note: {row.what}: {row.note}" for row in results.rows if row.note]
    lines += [f"  note: {text}" for text in results.notes]
    return "\n".join(lines)


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return ("  " + "  ".join(padded)).rstrip()


def summary(results: Sequence[Results]) -> str:
    counts: dict[str, int] = {}
    for row in (row for result in results for row in result.rows if row.target):
        counts[row.verdict] = counts.get(row.verdict, 0) + 1
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "no row has a target"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.what,
        _figure_text(row.figure) if row.figure else MISSING,
        _target_text(row.target),
        f"{row.peer} {_figure_text(row.peer_figure) if row.peer_figure else MISSING}" if row.peer else "",
        _figure_text(row.ratio) if row.ratio else "",
        row.verdict,
    )


def _figure_text(figure: Figure) -> str:
    median = f"{number_text(figure.median)} {figure.unit}"
    if figure.repetitions == 1:
        return median
    return f"{median} ({number_text(figure.low)} to {number_text(figure.high)}, n={figure.repetitions})"


def _target_text(target: Target | None) -> str:
    if target is None:
        return ""
    return f"{target.relation} {number_text(target.limit)} {target.unit}"


def number_text(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
