"""Waits until a job has ended, or raises when that takes too long."""

import time
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, fail
from simpletuner_fleet.cli.jobs.finishing_notes import finishing_text
from simpletuner_fleet.cli.jobs.job_text import TERMINAL
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.cli.remote.changes import looks
from simpletuner_fleet.languages import _

Job = dict[str, Any]


def wait_for_end(api: Api, job: str, timeout_s: float | None) -> Job:
    """Waits for the job with this id or beginning of one; the time begins before anything is asked."""
    api.until = time.monotonic() + timeout_s if timeout_s else None
    return _ended(api, lookup.job_id(api, job), timeout_s)


def _ended(api: Api, job_id: str, timeout_s: float | None) -> Job:
    job: Job = {"status": "unknown"}
    said = ""
    for job in looks(api, lambda: lookup.job(api, job_id), api.until):
        text = finishing_text(job)
        if text and text != said and (job.get("progress") or {}).get("waiting_for"):
            said = text
            api.note(text)
        if job["status"] in TERMINAL:
            return job
    raise fail(
        _("job %(job_id)s did not end within %(timeout_s)s s", job_id=job_id, timeout_s=f"{timeout_s:g}"),
        _("it is %(status)s", status=job["status"]),
        f"simpletuner jobs explain {job_id}",
        "E_TIMEOUT",
        ExitCode.TIMEOUT,
    )
