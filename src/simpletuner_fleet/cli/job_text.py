"""A job in words: columns, progress, and why it waits."""

from typing import Any

from simpletuner_fleet.cli.job_progress import number
from simpletuner_fleet.cli.output import Column, dig, field
from simpletuner_fleet.cli.text import clean
from simpletuner_fleet.cli.times import age, between
from simpletuner_fleet.cli.troubles import of_reason

TERMINAL = frozenset({"completed", "failed", "cancelled"})
WAITING = frozenset({"blocked", "queued"})
MAX_WORKERS = 20
KINDS = {
    "wait": "it only takes time",
    "change": "the request must change",
    "admin": "an administrator must act",
}


def progress(job: dict[str, Any]) -> str | None:
    told = job.get("progress")
    if not isinstance(told, dict):
        return None
    step, total = told.get("step"), told.get("total")
    parts = []
    if isinstance(step, int | float):
        whole = isinstance(total, int | float) and total > 0
        parts.append(f"{step:,.0f}/{total:,.0f} {step / total:.0%}" if whole else f"step {step:,.0f}")  # type: ignore[operator]
    loss = told.get("loss")
    if loss is not None:
        parts.append(f"loss {number(loss)}")
    return " ".join(parts) or None


def explanation(job: dict[str, Any]) -> dict[str, Any]:
    told = job.get("explain")
    return told if isinstance(told, dict) else {}


def reason(job: dict[str, Any]) -> str | None:
    """One line: why it waits, or why it ended so."""
    told = explanation(job)
    if told.get("sentence"):
        return str(told["sentence"])
    if told.get("code"):
        return str(told["code"])
    return job.get("error") or job.get("reason")


def gpus(job: dict[str, Any]) -> Any:
    """How many it was given, or asks for."""
    given = job.get("gpus")
    return len(given) if given else dig(job, "requires.gpus")


def worker(job: dict[str, Any]) -> Any:
    return job.get("worker_name") or job.get("worker_id")


def failure(job: dict[str, Any]) -> dict[str, Any]:
    told = job.get("failure")
    return told if isinstance(told, dict) else {}


def failure_told(job: dict[str, Any]) -> str | None:
    """The class in words, and the line that shows it."""
    told = failure(job)
    if not told.get("class"):
        return None
    return ": ".join(filter(None, (str(told["class"]).replace("_", " "), str(told.get("evidence") or ""))))


LIST = (
    field("id"),
    Column("NAME", lambda job: job.get("name") or job.get("config_name"), shrinks=True),
    field("status"),
    Column("GPUS", gpus, right=True, goes=3),
    Column("WORKER", worker, goes=1),
    Column("PROGRESS", progress, goes=2),
    Column("AGE", lambda job: age(job.get("created_at")), goes=4),
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
    Column("LABELS", lambda job: dig(job, "requires.worker_labels")),
    Column("POSITION", lambda job: job.get("queue_position")),
    Column("WORKER", worker),
    Column("ATTEMPT", lambda job: f"{job.get('attempt') or 0} (retries: {job.get('max_retries')})"),
    field("resumed"),
    Column("PROGRESS", progress),
    Column("SAFE STEP", lambda job: job.get("checkpoint_step")),
    Column("REASON", lambda job: reason(job) if job.get("status") in WAITING else None),
    field("error"),
    Column("FAILURE", failure_told),
    Column("CREATED", lambda job: job.get("created_at")),
    Column("STARTED", lambda job: job.get("started_at")),
    Column("FINISHED", lambda job: job.get("finished_at")),
    Column("TOOK", lambda job: between(job.get("started_at"), job.get("finished_at"))),
)


def advice(job: dict[str, Any]) -> tuple[str, ...]:
    """What to do about a job that waits or failed, from the table of troubles."""
    code = explanation(job).get("code")
    if job.get("status") == "failed":
        worker_lost = (job.get("losses") or 0) > (job.get("failures") or 0)
        code = "WORKER_LOST" if worker_lost else "TRAINER_FAILED"
    from_failure = failure(job).get("advice")
    return ((str(from_failure),) if from_failure else ()) + (of_reason(str(code)) if code else ())


def explained(told: dict[str, Any]) -> list[str]:
    """The whole answer of `explain`, one line after the other."""
    sentence = told.get("sentence") or told.get("code") or "no reason is known"
    lines = [clean(f"{told.get('state', 'job')}: {sentence}")]
    lines.append(
        clean(
            f"  code {told.get('code')}, {KINDS.get(str(told.get('class')), 'as of')} ({told.get('as_of')})"
        )
    )
    lines += [
        clean(f"  {step.get('left', 0):>5} left  {step.get('rule') or step.get('step')}")
        for step in told.get("funnel") or ()
    ]
    lines += [
        clean(f"  {verdict.get('name')}: {', '.join(map(str, verdict.get('fails') or ()))}")
        for verdict in (told.get("workers") or ())[:MAX_WORKERS]
    ]
    ahead = told.get("ahead")
    if ahead:
        lines.append(clean(f"  ahead of it: {ahead if isinstance(ahead, int) else len(ahead)}"))
    return lines
