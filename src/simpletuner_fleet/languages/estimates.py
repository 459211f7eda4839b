"""Says in words what a job would cost: the amount first, then how sure that is."""

from simpletuner_fleet.core.money.amounts import amount_text
from simpletuner_fleet.core.money.estimate import Estimate, Sureness
from simpletuner_fleet.languages import _, current, ngettext
from simpletuner_fleet.languages.numbers import in_language


def estimate_texts(known: Estimate) -> list[str]:
    lines = [_amount(known), _how_sure(known)]
    if known.unpriced_workers:
        lines.append(
            ngettext(
                "%(n)s worker that could take it has no known price.",
                "%(n)s workers that could take it have no known price.",
                known.unpriced_workers,
            )
        )
    return lines


def _amount(known: Estimate) -> str:
    def text(micros: int) -> str:
        return in_language(current().lang, amount_text(micros, known.currency))

    if known.likely_micros is not None and known.low_micros is not None and known.high_micros is not None:
        if known.low_micros == known.high_micros:
            return _("Costs about %(likely)s", likely=text(known.likely_micros))
        return _(
            "Costs about %(likely)s, between %(low)s and %(high)s",
            likely=text(known.likely_micros),
            low=text(known.low_micros),
            high=text(known.high_micros),
        )
    if known.high_micros is not None:
        return _("Costs at most %(high)s", high=text(known.high_micros))
    if known.hourly_low_micros == known.hourly_high_micros:
        return _("Costs %(hourly)s an hour", hourly=text(known.hourly_low_micros))
    return _(
        "Costs between %(low)s and %(high)s an hour",
        low=text(known.hourly_low_micros),
        high=text(known.hourly_high_micros),
    )


def _how_sure(known: Estimate) -> str:
    match known.sure:
        case Sureness.GOOD:
            return ngettext(
                "By %(n)s earlier run of this config.", "By %(n)s earlier runs of this config.", known.runs
            )
        case Sureness.ROUGH:
            return ngettext(
                "A rough guess, by %(n)s earlier run of this config.",
                "A rough guess, by %(n)s earlier runs of this config.",
                known.runs,
            )
        case Sureness.CEILING:
            return _("By its time limit alone: this config has not completed a run yet.")
        case Sureness.UNKNOWN:
            return _(
                "How long it takes is not known: no run of this config has completed, and it has no time limit."
            )
