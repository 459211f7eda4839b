"""Returns the metrics of a training as plain columns, or as a data frame where pandas is installed."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from simpletuner_fleet.client.errors import fail
from simpletuner_fleet.client.table.result_answers import MetricsView
from simpletuner_fleet.client.troubles import USAGE
from simpletuner_fleet.languages import _

if TYPE_CHECKING:
    import pandas

Column = list[Any]


class Metrics(Struct, frozen=True, kw_only=True):
    """Holds the curves of one job. A point stands for neighbouring steps: their last, smallest and largest value."""

    job_id: str
    view: MetricsView
    """As the server told it."""

    @property
    def keys(self) -> list[str]:
        """Returns the names of all curves, also of those that were not asked for."""
        return self.view.keys

    def columns(self) -> dict[str, Column]:
        """Returns columns with one row for each point of each curve: `key`, `step`, `at`, `min`, `max`, `last`."""
        rows = [
            (key, point.step, _time(point.at), point.min, point.max, float(point.last))
            for key, points in self.view.series.items()
            for point in points
        ]
        names = ("key", "step", "at", "min", "max", "last")
        return {name: [row[place] for row in rows] for place, name in enumerate(names)}

    def by_step(self) -> dict[str, Column]:
        """Returns columns with one row for each step: `step`, and one for each curve, None where it has no point."""
        values = {
            key: {point.step: float(point.last) for point in points}
            for key, points in self.view.series.items()
        }
        steps = sorted({step for known in values.values() for step in known})
        return {
            "step": list(steps),
            **{key: [known.get(step) for step in steps] for key, known in values.items()},
        }

    def to_pandas(self, *, by_step: bool = True) -> "pandas.DataFrame":
        """Returns a data frame: by step with a column for each curve, or with one row for each point."""
        try:
            import pandas
        except ImportError:
            raise fail(
                _("there is no pandas here"),
                _("the client works without it, and gives plain columns"),
                ("pip install pandas", _("or use .by_step() or .columns()")),
                "E_NO_PANDAS",
                USAGE,
            ) from None
        if by_step:
            return pandas.DataFrame(self.by_step()).set_index("step")
        return pandas.DataFrame(self.columns())


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
