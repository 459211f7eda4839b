"""Finds jobs that match a filter in the memory store."""

from collections import Counter

from simpletuner_fleet.core.jobs.finding import JobOrder, JobPlace, in_order, sort_value
from simpletuner_fleet.core.jobs.job import TERMINAL, Job
from simpletuner_fleet.core.jobs.states import WAITING
from simpletuner_fleet.core.people.visibility import may_see
from simpletuner_fleet.ports import JobFilter, SavedView, WaitingGroup
from simpletuner_fleet.store.memory.tables import Tables
from simpletuner_fleet.store.rows.codec import json_list


class MemoryFindingView:
    _tables: Tables

    def jobs_sorted(self, where: JobFilter, order: JobOrder, after: JobPlace | None, limit: int) -> list[Job]:
        fitting = in_order([job for job in self._tables.jobs.values() if self._fits(job, where)], order)
        if after is None:
            return fitting[:limit]
        place = (after.value, after.seq)
        return [
            job
            for job in fitting
            if ((sort_value(job, order.sort), job.seq) < place) is order.descending
            and (sort_value(job, order.sort), job.seq) != place
        ][:limit]

    def jobs_matching(self, where: JobFilter, most_ended: int | None = None) -> dict[str, int]:
        fitting = [str(job.state) for job in self._tables.jobs.values() if self._fits(job, where)]
        if most_ended is None or not where.narrows:
            return dict(Counter(fitting))
        ended = [state for state in fitting if state in TERMINAL][:most_ended]
        return dict(Counter(ended + [state for state in fitting if state not in TERMINAL]))

    def waiting_groups(self, where: JobFilter, limit: int) -> list[WaitingGroup]:
        groups: dict[str, list[Job]] = {}
        for job in self._tables.jobs.values():
            if job.state in WAITING and self._fits(job, where):
                groups.setdefault(_group(job), []).append(job)
        counted = [
            WaitingGroup(
                key=key,
                jobs=len(jobs),
                first=min(job.id for job in jobs),
                oldest_at=min(job.created_at for job in jobs),
            )
            for key, jobs in groups.items()
        ]
        return sorted(counted, key=lambda group: (-group.jobs, group.first))[:limit]

    def saved_views(self, owner: str) -> list[SavedView]:
        views = self._tables.saved_views
        return [view for (whose, _), view in sorted(views.items()) if whose == owner]

    def _fits(self, job: Job, where: JobFilter) -> bool:
        return (
            (not where.states or job.state in where.states)
            and all(
                getattr(where, field) in (None, getattr(job, field))
                for field in ("owner", "worker_id", "config_name", "team", "hold")
            )
            and (where.ids is None or job.id in where.ids)
            and (where.seen_by is None or may_see(where.seen_by, job.belongs))
            and _in_range(job.created_at, where.created_since, where.created_until)
            and _in_range(job.finished_at, where.finished_since, where.finished_until)
            and where.trainer in (None, job.requires.trainer)
            and (where.dataset is None or job.id in self._tables.dataset_jobs.get(where.dataset, ()))
            and set(where.labels) <= set(job.requires.labels)
            and set(where.tags) <= set(job.tags)
            and not (where.not_retried and any(one.retry_of == job.id for one in self._tables.jobs.values()))
            and (not where.results or job.results in where.results)
            and (where.reason is None or where.reason in (job.reason, self._failure_class(job)))
            and (
                where.waiting_groups is None or (job.state in WAITING and _group(job) in where.waiting_groups)
            )
            and (
                not where.text or where.text.lower() in f"{job.name or ''} {job.config_name} {job.id}".lower()
            )
        )

    def _failure_class(self, job: Job) -> str | None:
        attempt = self._tables.attempts.get(job.attempt_id or "")
        return attempt.failure_class if attempt else None


def _in_range(moment: float | None, since: float | None, until: float | None) -> bool:
    if moment is None:
        return since is None and until is None
    return (since is None or moment >= since) and (until is None or moment < until)


def _group(job: Job) -> str:
    return f"{job.class_id} {job.hold} {json_list(job.refused_by)}"
