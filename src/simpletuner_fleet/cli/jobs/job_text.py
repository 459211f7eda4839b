"""Describes a job in words: the columns of lists, its progress, and why it waits."""

from typing import Any

from simpletuner_fleet.cli.frame.amounts import known_money, money
from simpletuner_fleet.cli.frame.output import Column, dig, field
from simpletuner_fleet.cli.frame.quantities import age, between
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.cli.jobs.job_progress import fetching, number
from simpletuner_fleet.cli.remote.advice import of_reason
from simpletuner_fleet.core.jobs.states import CUT_SHORT
from simpletuner_fleet.core.jobs.states import TERMINAL as TERMINAL
from simpletuner_fleet.core.jobs.states import WAITING as WAITING
from simpletuner_fleet.core.money.amounts import typed_amount
from simpletuner_fleet.languages import _, current
from simpletuner_fleet.languages.code_texts import fix_texts, funnel_texts, kind_text, reason_text
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.languages.names import failure_name

MAX_WORKERS = 20


def progress(job: dict[str, Any]) -> str | None:
    report = job.get("progress")
    if not isinstance(report, dict):
        return None
    being_fetched = fetching(report)
    if being_fetched:
        return being_fetched
    step, total = report.get("step"), report.get("total")
    parts = []
    if isinstance(step, int | float):
        if isinstance(total, int | float) and total > 0:
            parts.append(f"{step:,.0f}/{total:,.0f} {step / total:.0%}")
        else:
            parts.append(_("step %(step)s", step=f"{step:,.0f}"))
    loss = report.get("loss")
    if loss is not None:
        parts.append(_("loss %(loss)s", loss=number(loss)))
    return " ".join(parts) or None


def explanation(job: dict[str, Any]) -> dict[str, Any]:
    explain = job.get("explain")
    return explain if isinstance(explain, dict) else {}


def reason(job: dict[str, Any]) -> str | None:
    """Says in one line why a job waits, is being stopped, or ended as it did."""
    why = explanation(job)
    if why.get("sentence") or why.get("code"):
        return reason_text(current(), why)
    stopping = detail_text(current(), str(dig(job, "stopping.sentence") or ""))
    return stopping or error(job) or job.get("reason")


def error(job: dict[str, Any]) -> str:
    return detail_text(current(), str(job.get("error") or ""))


def gpus(job: dict[str, Any]) -> Any:
    """Returns how many GPUs the job has been given, or else asks for."""
    assigned = job.get("gpus")
    return len(assigned) if assigned else dig(job, "requires.gpus")


def worker(job: dict[str, Any]) -> Any:
    return job.get("worker_name") or job.get("worker_id")


def failure(job: dict[str, Any]) -> dict[str, Any]:
    details = job.get("failure")
    return details if isinstance(details, dict) else {}


def failure_text(job: dict[str, Any]) -> str | None:
    """Names the class of the failure, and the line of the log that shows it."""
    details = failure(job)
    if not details.get("class"):
        return None
    name = failure_name(current(), str(details["class"]))
    return ": ".join(filter(None, (name, str(details.get("evidence") or ""))))


def attempts(job: dict[str, Any]) -> str:
    return _(
        "%(attempt)s (retries: %(retries)s)", attempt=job.get("attempt") or 0, retries=job.get("max_retries")
    )


def results(job: dict[str, Any]) -> str | None:
    """Says where the results of a job are; None where there is nothing to say."""
    match job.get("results"):
        case "stored":
            return _("stored")
        case "pending":
            why = (job.get("progress") or {}).get("waiting_for")
            return _("not stored yet: %(why)s", why=why) if why else _("being uploaded")
        case "missing":
            return _("MISSING: they exist only on the worker's disk")
    return None


def cost(job: dict[str, Any]) -> str | None:
    """Says what the job has cost until now; None where its cost is not known."""
    known = job.get("cost")
    if not isinstance(known, dict):
        return None
    currency = str(known["currency"])
    until_now = known_money(known["micros"], currency, at_least=bool(known["at_least"]))
    hourly = money(known["hourly_micros"], currency) if known["hourly_micros"] else None
    return _("%(amount)s, %(hourly)s an hour", amount=until_now, hourly=hourly) if hourly else until_now


def cost_limit(job: dict[str, Any]) -> str | None:
    """Says what the job may cost in all, and how much of that is spent."""
    if job.get("max_cost_micros") is None:
        return None
    live = dig(job, "cost.live_micros") or 0
    most, spent = typed_amount(job["max_cost_micros"]), typed_amount((job.get("spent_micros") or 0) + live)
    if job.get("on_max_cost") == "finish":
        return _("%(most)s (%(spent)s spent), then the running attempt may finish", most=most, spent=spent)
    return _("%(most)s (%(spent)s spent)", most=most, spent=spent)


def status(job: dict[str, Any]) -> str:
    """Returns the status; a job whose results are not stored must not look as if it were done."""
    if job.get("results") == "missing":
        return _("completed, RESULTS MISSING")
    return "finishing" if job.get("phase") == "finishing" else str(job.get("status"))


LIST = (
    field("id"),
    Column("NAME", lambda job: job.get("name") or job.get("config_name"), shrinks=True),
    Column("STATUS", status),
    Column("GPUS", gpus, right=True, goes=3),
    Column("WORKER", worker, goes=1),
    Column("PROGRESS", progress, goes=2),
    Column("AGE", lambda job: age(job.get("created_at")), goes=4),
    Column("TAGS", lambda job: ", ".join(job.get("tags") or ()), goes=5),
    Column("REASON", reason, shrinks=True),
)

DETAIL = (
    field("id"),
    field("name"),
    Column("CONFIG", lambda job: job.get("config_name")),
    field("status"),
    field("target"),
    field("priority"),
    Column("GPUS", lambda job: job.get("gpus") or dig(job, "requires.gpus")),
    Column("OWNER", lambda job: job.get("owner")),
    Column("TAGS", lambda job: ", ".join(job.get("tags") or ())),
    Column("NOTE", lambda job: job.get("note")),
    Column("LABELS", lambda job: dig(job, "requires.worker_labels")),
    Column("POSITION", lambda job: job.get("queue_position")),
    Column("WORKER", worker),
    Column("ATTEMPT", attempts),
    Column("GOES ON FROM", lambda job: job.get("resume_from")),
    Column("RESUMED", lambda job: detail_text(current(), str(job.get("resumed") or ""))),
    Column("PROGRESS", progress),
    Column("RESULTS", results),
    Column("SAFE STEP", lambda job: job.get("checkpoint_step")),
    Column("REASON", lambda job: reason(job) if job.get("status") in WAITING else None),
    Column("ERROR", error),
    Column("FAILURE", failure_text),
    Column("COST", cost),
    Column("COST LIMIT", cost_limit),
    Column("CREATED", lambda job: job.get("created_at")),
    Column("STARTED", lambda job: job.get("started_at")),
    Column("FINISHED", lambda job: job.get("finished_at")),
    Column("TOOK", lambda job: between(job.get("started_at"), job.get("finished_at"))),
)


def advice(job: dict[str, Any]) -> tuple[str, ...]:
    """Returns what the user can do about a job that waits or failed."""
    code = explanation(job).get("code")
    if job.get("status") == "failed":
        worker_lost = (job.get("losses") or 0) > (job.get("failures") or 0)
        code = "WORKER_LOST" if worker_lost else "TRAINER_FAILED"
        code = None if job.get("reason") == "cost_limit" else code
    from_failure = failure(job).get("advice")
    first = (current().gettext(str(from_failure)),) if from_failure else ()
    if job.get("status") in CUT_SHORT and job.get("checkpoint_step") is not None:
        more = " --max-cost AMOUNT" if job.get("reason") == "cost_limit" else ""
        first = (f"simpletuner jobs retry {job['id']} --resume-from {job['id']}{more}", *first)
    return first + (of_reason(str(code)) if code else ())


def fixes(why: dict[str, Any]) -> list[str]:
    """Returns what would let a waiting job start, as the server says; otherwise what usually helps."""
    return fix_texts(current(), why) or list(of_reason(str(why.get("code"))))


def explained(why: dict[str, Any]) -> list[str]:
    """Returns the whole answer of `explain`, line by line."""
    words = current()
    sentence = reason_text(words, why) or _("reason unknown")
    lines = [clean(f"{why.get('state', 'job')}: {sentence}")]
    what_it_takes = kind_text(words, str(why.get("class") or ""))
    as_of = why.get("as_of")
    lines.append(
        "  "
        + clean(
            _("code %(code)s, %(kind)s (%(as_of)s)", code=why.get("code"), kind=what_it_takes, as_of=as_of)
        )
    )
    lines += [
        clean("  " + _("%(left)5d left  %(rule)s", left=left, rule=rule))
        for left, rule in funnel_texts(words, why.get("funnel") or ())
    ]
    lines += [
        clean(f"  {verdict.get('name')}: {_refusal_text(verdict)}")
        for verdict in (why.get("workers") or ())[:MAX_WORKERS]
    ]
    ahead = why.get("ahead")
    if ahead:
        lines.append("  " + _("ahead of it: %(jobs)s", jobs=ahead if isinstance(ahead, int) else len(ahead)))
    return lines


def _refusal_text(verdict: dict[str, Any]) -> str:
    """Returns the codes; in brackets the workers that hold its GPUs, or the labels that it has instead."""
    codes = ", ".join(map(str, verdict.get("fails") or ()))
    more = verdict.get("gpus_held_through") or verdict.get("has_labels") or ()
    return f"{codes} ({', '.join(map(str, more))})" if more else codes
