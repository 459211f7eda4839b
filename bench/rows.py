"""What a benchmark found: figures with their spread, ratios to peers, and a verdict for each target."""

import statistics
from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct, field


class Relation(StrEnum):
    AT_LEAST = "at least"
    AT_MOST = "at most"
    BELOW = "below"


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "FAIL"
    MISSING = "missing"
    """The row could not be measured, or its peer could not. The run does not pass."""
    INFORMATION = "info"
    """The row has no target."""


class Target(Struct, frozen=True, kw_only=True):
    """A promise. With a peer it is about the ratio to that peer, else about the figure itself."""

    what: str
    relation: Relation
    limit: float
    unit: str
    peer: str = ""


class Figure(Struct, frozen=True, kw_only=True):
    """One quantity over several repetitions."""

    unit: str
    median: float
    low: float
    high: float
    repetitions: int


class Row(Struct, kw_only=True):
    what: str
    verdict: Verdict
    figure: Figure | None = None
    target: Target | None = None
    peer: str = ""
    peer_figure: Figure | None = None
    ratio: Figure | None = None
    note: str = ""


def figure_of(values: Sequence[float], unit: str) -> Figure:
    return Figure(
        unit=unit,
        median=statistics.median(values),
        low=min(values),
        high=max(values),
        repetitions=len(values),
    )


def judge(value: float, target: Target) -> Verdict:
    """Decides about the median over the repetitions."""
    return Verdict.PASS if _holds(value, target.relation, target.limit) else Verdict.FAIL


def _holds(value: float, relation: Relation, limit: float) -> bool:
    match relation:
        case Relation.AT_LEAST:
            return value >= limit
        case Relation.AT_MOST:
            return value <= limit
        case Relation.BELOW:
            return value < limit


def information_row(what: str, unit: str, values: Sequence[float], note: str = "") -> Row:
    return Row(what=what, verdict=Verdict.INFORMATION, figure=figure_of(values, unit), note=note)


def judged_row(target: Target, values: Sequence[float], note: str = "") -> Row:
    """A row whose figure itself must reach the target."""
    figure = figure_of(values, target.unit)
    return Row(
        what=target.what, verdict=judge(figure.median, target), figure=figure, target=target, note=note
    )


def compared_row(
    target: Target, unit: str, ours: Sequence[float], peers: Sequence[float], note: str = ""
) -> Row:
    """A row whose ratio to the peer must reach the target; values of one place were measured in one round."""
    ratio = figure_of([mine / theirs for mine, theirs in zip(ours, peers, strict=True)], target.unit)
    return Row(
        what=target.what,
        verdict=judge(ratio.median, target),
        figure=figure_of(ours, unit),
        target=target,
        peer=target.peer,
        peer_figure=figure_of(peers, unit),
        ratio=ratio,
        note=note,
    )


def missing_row(target: Target, why: str) -> Row:
    return Row(what=target.what, verdict=Verdict.MISSING, target=target, peer=target.peer, note=why)


class Results(Struct, kw_only=True):
    """The rows of one benchmark, in the order they are to be read."""

    benchmark: str
    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, what: str, unit: str, values: Sequence[float], note: str = "") -> float:
        """Adds a row for information and returns its median."""
        row = information_row(what, unit, values, note)
        self.rows.append(row)
        return statistics.median(values)

    def judge(self, target: Target, values: Sequence[float], note: str = "") -> None:
        self.rows.append(judged_row(target, values, note))

    def compare(
        self, target: Target, unit: str, ours: Sequence[float], peers: Sequence[float], note: str = ""
    ) -> None:
        self.rows.append(compared_row(target, unit, ours, peers, note))

    def miss(self, target: Target, why: str) -> None:
        self.rows.append(missing_row(target, why))

    def complete(self, targets: Iterable[Target], why: str) -> None:
        """Adds a missing row for every target that has none yet."""
        present = {row.target for row in self.rows}
        for target in targets:
            if target not in present:
                self.miss(target, why)

    @property
    def passed(self) -> bool:
        return all(row.verdict in (Verdict.PASS, Verdict.INFORMATION) for row in self.rows)


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
