"""What a benchmark found: figures with their spread, ratios, and whether each target was reached."""

import statistics
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, field


class Figure(Struct, kw_only=True):
    """One quantity over several repetitions."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    repetitions: int
    note: str = ""


class Target(Struct, kw_only=True):
    """`reached` is about the median over the repetitions."""

    name: str
    value: float
    relation: Literal["at most", "at least", "below"]
    limit: float
    unit: str
    reached: bool


class Result(Struct, kw_only=True):
    benchmark: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, unit: str, values: Sequence[float], note: str = "") -> float:
        """Its median."""
        median = statistics.median(values)
        self.figures.append(
            Figure(
                name=name,
                unit=unit,
                median=median,
                low=min(values),
                high=max(values),
                repetitions=len(values),
                note=note,
            )
        )
        return median

    def at_most(self, name: str, value: float, limit: float, unit: str) -> None:
        self._judge(name, value, "at most", limit, unit, value <= limit)

    def at_least(self, name: str, value: float, limit: float, unit: str) -> None:
        self._judge(name, value, "at least", limit, unit, value >= limit)

    def below(self, name: str, value: float, limit: float, unit: str) -> None:
        self._judge(name, value, "below", limit, unit, value < limit)

    def _judge(
        self,
        name: str,
        value: float,
        relation: Literal["at most", "at least", "below"],
        limit: float,
        unit: str,
        reached: bool,
    ) -> None:
        self.targets.append(
            Target(name=name, value=value, relation=relation, limit=limit, unit=unit, reached=reached)
        )

    def note(self, text: str) -> None:
        self.notes.append(text)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def told(result: Result) -> str:
    lines = [f"{result.benchmark}: {result.title}"]
    width = max((len(figure.name) for figure in result.figures), default=0)
    lines += [
        f"  {figure.name:<{width}}  {_shown(figure)}{f'   {figure.note}' if figure.note else ''}"
        for figure in result.figures
    ]
    for target in result.targets:
        verdict = "pass" if target.reached else "MISS"
        lines.append(
            f"  {verdict}  {target.name}: {_number(target.value)} {target.unit}"
            f" ({target.relation} {_number(target.limit)})"
        )
    lines += [f"  note  {text}" for text in result.notes]
    return "\n".join(lines)


def _shown(figure: Figure) -> str:
    middle = f"{_number(figure.median):>9} {figure.unit}"
    if figure.repetitions == 1:
        return middle
    return f"{middle}  ({_number(figure.low)} to {_number(figure.high)}, {figure.repetitions} repetitions)"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
