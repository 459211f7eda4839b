"""Draws a job's progress: a bar, loss, speed, time left, and the steps that would be lost if it died now."""

from typing import Any

from simpletuner_fleet.cli.frame.output import STYLES, Output
from simpletuner_fleet.cli.frame.quantities import age, span
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.languages import _, current, ngettext, spoken_number
from simpletuner_fleet.languages.code_texts import reason_text
from simpletuner_fleet.languages.details import detail_text

WIDEST_BAR = 50
BESIDE_THE_BAR = 28
Job = dict[str, Any]


def headline(job: Job) -> str:
    """Returns the job's id, name, worker and attempt on one line, without its state."""
    name = job.get("name") or job.get("config_name")
    where = job.get("worker_name") or job.get("worker_id")
    attempt = job.get("attempt") or 0
    resumed = detail_text(current(), str(job.get("resumed") or ""))
    resumed = resumed or (_("attempt %(attempt)s", attempt=attempt) if attempt > 1 else "")
    parts = [str(job["id"]), name, _("on %(where)s", where=where) if where else None, resumed]
    return clean("  ".join(str(part) for part in parts if part))


def counted(job: Job) -> tuple[int, int] | None:
    """Returns the step and the total, or None until both are known."""
    progress = job.get("progress")
    step, total = (
        (progress.get("step"), progress.get("total")) if isinstance(progress, dict) else (None, None)
    )
    if isinstance(step, int | float) and isinstance(total, int | float) and total > 0:
        return int(step), int(total)
    return None


def facts(job: Job) -> list[str]:
    progress = job.get("progress")
    progress = progress if isinstance(progress, dict) else {}
    rate, left_s = progress.get("rate"), progress.get("eta_s")
    parts = [
        fetching(progress),
        _("loss %(loss)s", loss=number(progress["loss"])) if progress.get("loss") is not None else None,
        f"lr {number(progress['lr'])}" if progress.get("lr") is not None else None,
        pace(rate) if isinstance(rate, int | float) and rate > 0 else None,
        _("ETA %(span)s", span=span(left_s))
        if isinstance(left_s, int | float) and job["status"] == "running"
        else None,
        at_risk(job),
    ]
    return [clean(fact) for fact in parts if fact]


def fetching(progress: Job) -> str | None:
    """Says how much of the data has been fetched to the worker, before the trainer starts."""
    if progress.get("phase") != "fetching data":
        return None
    done_bytes, total = progress.get("done_bytes") or 0, progress.get("total_bytes") or 0
    return _(
        "fetching data %(done)s of %(total)s GB",
        done=spoken_number(done_bytes / 1e9, 1),
        total=spoken_number(total / 1e9, 1),
    )


def at_risk(job: Job) -> str | None:
    """Counts the steps since the newest checkpoint that is stored off the worker; None unless the job runs."""
    progress = job.get("progress")
    step = progress.get("step") if isinstance(progress, dict) else None
    if "checkpoint_step" not in job or not isinstance(step, int | float) or job["status"] != "running":
        return None
    safe = job["checkpoint_step"]
    if safe is None:
        return ngettext(
            "at risk: %(n)s step, none stored yet", "at risk: %(n)s steps, none stored yet", int(step)
        )
    return ngettext(
        "at risk: %(n)s step (safe: %(safe)s)",
        "at risk: %(n)s steps (safe: %(safe)s)",
        max(0, int(step) - safe),
        safe=spoken_number(safe),
    )


def pace(rate: float) -> str:
    if rate >= 1:
        return _("%(rate)s steps/s", rate=f"{rate:.3g}")
    return _("%(seconds)s s/step", seconds=f"{1 / rate:.3g}")


def number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def drawn(job: Job, out: Output) -> Any:
    from rich.console import Group  # heavy, and only a terminal needs it
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    state = str(job["status"])
    lines: list[Any] = [Text.assemble((headline(job), "bold"), "  ", (clean(state), STYLES.get(state, "")))]
    steps = counted(job)
    if steps:
        step, total = steps
        row = Table.grid(padding=(0, 2, 0, 0))
        width = max(10, min(WIDEST_BAR, out.console().width - BESIDE_THE_BAR))
        style = "green" if state == "completed" else "cyan"
        bar = ProgressBar(
            total=total, completed=step, width=width, complete_style=style, finished_style=style
        )
        row.add_row(bar, Text(f"{step:,}/{total:,}  {step / total:.0%}", no_wrap=True))
        lines.append(row)
    parts = facts(job)
    if parts:
        lines.append(Text("   ".join(parts)))
    waits = job.get("explain")
    if isinstance(waits, dict) and waits.get("sentence"):
        reason = reason_text(current(), waits)
        lines.append(
            Text(clean(_("%(reason)s (for %(span)s)", reason=reason, span=age(job.get("created_at")))))
        )
    if job.get("error"):
        lines.append(Text(clean(job["error"]), style="red"))
    return Group(*lines)
