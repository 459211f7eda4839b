"""Reads rows that a list shows beside others: one that cannot be read is as one that is not there."""

from simpletuner_fleet.core.errors import UnreadableRow
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.training.checkpoint import StoredManifest
from simpletuner_fleet.ports import View


def readable_job(view: View, job_id: str) -> Job | None:
    try:
        return view.job(job_id)
    except UnreadableRow:
        return None


def readable_attempt(view: View, attempt_id: str) -> Attempt | None:
    try:
        return view.attempt(attempt_id)
    except UnreadableRow:
        return None


def readable_newest_checkpoint(view: View, job_id: str) -> StoredManifest | None:
    try:
        return view.newest_checkpoint(job_id)
    except UnreadableRow:
        return None
