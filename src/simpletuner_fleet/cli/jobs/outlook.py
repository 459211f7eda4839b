"""Describes when a waiting job would start, and what would start now, for `jobs get` and `jobs explain`."""

from datetime import UTC, datetime
from typing import Any

from simpletuner_fleet.cli.frame.errors import CliError, ExitCode
from simpletuner_fleet.cli.frame.quantities import parse, span
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.languages import _, current, ngettext
from simpletuner_fleet.languages.names import target_name

Outlook = dict[str, Any]


def outlook_of(api: Api, job_id: str) -> Outlook:
    """Returns the outlook, or an empty dictionary where an older server does not have this call."""
    try:
        return dict(api.get(f"/api/jobs/{segment(job_id)}/outlook", lookup=True))
    except CliError as error:
        if error.trouble.exit != ExitCode.NOT_FOUND:
            raise
        return {}


def outlook_lines(outlook: Outlook, requires: dict[str, Any], now: datetime | None = None) -> list[str]:
    lines = _start_lines(outlook.get("start") or {}, now or datetime.now(UTC))
    for one in outlook.get("busy") or ():
        lines.append(clean(_busy_text(one.get("worker"), one.get("job"))))
    ways = outlook.get("now_with") or ()
    if ways:
        lines.append(_("It would start now with"))
        lines += ["  " + clean(_way_text(way, requires)) for way in ways]
    return lines


def _start_lines(start: dict[str, Any], now: datetime) -> list[str]:
    at = parse(start.get("at"))
    if at is None:
        return []
    sentence = _(
        "Starts in about %(wait)s: %(worker)s is busy with %(job)s until %(time)s.",
        wait=span((at - now).total_seconds()),
        worker=start.get("worker"),
        job=start.get("job"),
        time=at.astimezone().strftime("%H:%M"),
    )
    return [clean(sentence), "  " + _how_sure(int(start.get("ahead") or 0))]


def _busy_text(worker: Any, job: Any) -> str:
    if not job:
        return _("%(worker)s is busy; when that ends is not known.", worker=worker)
    return _("%(worker)s is busy with %(job)s; when that ends is not known.", worker=worker, job=job)


def _how_sure(ahead: int) -> str:
    if not ahead:
        return _("By that job's own rate; nobody is ahead of it.")
    return ngettext(
        "A rough guess: %(n)s job is ahead of it.", "A rough guess: %(n)s jobs are ahead of it.", ahead
    )


def _way_text(way: dict[str, Any], requires: dict[str, Any]) -> str:
    if way.get("gpus"):
        return ngettext(
            "%(n)s GPU instead of %(asked)s",
            "%(n)s GPUs instead of %(asked)s",
            way["gpus"],
            asked=requires.get("gpus"),
        )
    if way.get("min_vram_gb"):
        return _(
            "%(gb)s GB of GPU memory instead of %(asked)s",
            gb=f"{way['min_vram_gb']:g}",
            asked=f"{requires.get('min_vram_gb') or 0:g}",
        )
    if way.get("without_label"):
        return _("the label %(label)s left out", label=way["without_label"])
    return _(
        "any target instead of %(target)s",
        target=target_name(current(), str(requires.get("target") or "")),
    )
