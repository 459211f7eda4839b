"""Finds and counts jobs that match a filter, in any order, in any SQL database.

What a job asks of its worker is stored once with its class, as one JSON text that our own encoder wrote: a part of
that text is found exactly, with no function that only one of the databases has.
"""

from itertools import chain
from typing import Any

import msgspec

from simpletuner_fleet.core.jobs.finding import NOT_YET, JobOrder, JobPlace, JobSort, in_order
from simpletuner_fleet.core.jobs.job import TERMINAL, Job, JobState, Results
from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.ports import JobFilter, WaitingGroup
from simpletuner_fleet.store.rows.jobs import JOBS as JOB_ROWS
from simpletuner_fleet.store.sql import statements as sql
from simpletuner_fleet.store.sql.tallies import JOBS, TallyView

ORDERED_BY = {
    JobSort.CREATED: "seq",
    JobSort.STARTED: f"coalesce(started_at, {NOT_YET!r})",
    JobSort.FINISHED: f"coalesce(finished_at, {NOT_YET!r})",
    JobSort.PRIORITY: "priority",
    JobSort.NAME: "coalesce(name, config_name) COLLATE BINARY",
    JobSort.CONFIG: "config_name COLLATE BINARY",
    JobSort.ATTEMPTS: "attempts",
    JobSort.QUEUE: "rank",
}
FLOATS = frozenset({JobSort.STARTED, JobSort.FINISHED, JobSort.QUEUE})
EQUAL = ("owner", "worker_id", "config_name", "team", "hold")
RANGES = (
    ("created_since", "created_at >= :created_since"),
    ("created_until", "created_at < :created_until"),
    ("finished_since", "finished_at >= :finished_since AND finished_at IS NOT NULL"),
    ("finished_until", "finished_at < :finished_until AND finished_at IS NOT NULL"),
)
_TITLE = "(coalesce(name, '') || ' ' || config_name || ' ' || id)"

Conditions = tuple[list[str], dict[str, Any]]


class FindingView(TallyView):
    def jobs_sorted(self, where: JobFilter, order: JobOrder, after: JobPlace | None, limit: int) -> list[Job]:
        if order.sort is JobSort.FINISHED and where.states and TERMINAL.issuperset(where.states):
            return self._ended_page(where, order, after, limit)
        # One state at a time is read in order from its index; several at once would have to be sorted whole.
        states: list[str | None] = [*sorted(set(where.states))] or [None]
        pages = [self._sorted_page(where, state, order, after, limit) for state in states]
        return pages[0] if len(pages) == 1 else in_order(list(chain.from_iterable(pages)), order)[:limit]

    def _sorted_page(
        self, where: JobFilter, state: str | None, order: JobOrder, after: JobPlace | None, limit: int
    ) -> list[Job]:
        conditions, params = job_conditions(where, state)
        by, beyond = ORDERED_BY[order.sort], "<" if order.descending else ">"
        if after is not None:
            conditions.append(f"({by} {beyond} :place OR ({by} = :place AND seq {beyond} :place_seq))")
            params["place"] = float(after.value) if order.sort in FLOATS else after.value
            params["place_seq"] = after.seq
        down = "DESC" if order.descending else "ASC"
        ordered_by = f"seq {down}" if by == "seq" else f"{by} {down}, seq {down}"
        statement = sql.JOBS_SORTED.format(conditions=" AND ".join(conditions), order=ordered_by)
        return self._readable(statement, params, limit)

    def _ended_page(self, where: JobFilter, order: JobOrder, after: JobPlace | None, limit: int) -> list[Job]:
        """Reads ended jobs in the order of the index of their ends, and no further than the page goes."""
        conditions, params = job_conditions(where, None)
        conditions += ["finished_at IS NOT NULL", _in_states(where, params)]
        beyond, down = ("<", "DESC") if order.descending else (">", "ASC")
        if after is not None:
            # The first half says again what the second says, in a way that an index can be entered by.
            conditions.append(
                f"finished_at {beyond}= :place AND (finished_at <> :place OR seq {beyond} :place_seq)"
            )
            params |= {"place": float(after.value), "place_seq": after.seq}
        ordered_by = f"finished_at {down}, seq {down}"
        statement = sql.JOBS_SORTED.format(conditions=" AND ".join(conditions), order=ordered_by)
        return self._readable(statement, params, limit)

    def _readable(self, statement: str, params: dict[str, Any], limit: int) -> list[Job]:
        """Reads further where rows cannot be read: a page that is short would be taken for the last one."""
        asked = limit
        while True:
            rows = list(self._db.rows(statement, {**params, "limit": asked}))
            jobs = JOB_ROWS.rows(rows)
            if len(jobs) >= limit or len(rows) < asked:
                return jobs[:limit]
            asked *= 2

    def jobs_matching(self, where: JobFilter, most_ended: int | None = None) -> dict[str, int]:
        if not where.narrows:
            counted = self._tally(JOBS)
            return {state: counted[state] for state in where.states or counted if counted.get(state)}
        if most_ended is None:
            return self._all_matching(where)
        wanted = frozenset(where.states or JobState)
        counts = self._some_matching(where, wanted & TERMINAL, most_ended)
        for state in wanted - TERMINAL:
            conditions, params = job_conditions(where, state, by_state=True)
            counts |= self._counts(conditions, params)
        return counts

    def _some_matching(self, where: JobFilter, states: frozenset[str], most: int) -> dict[str, int]:
        """Reads no further than to so many that fit."""
        conditions, params = job_conditions(where, None)
        names = {f"state_{at}": str(state) for at, state in enumerate(sorted(states))}
        # As an expression, so that the index of whatever else is asked for is used.
        conditions.append(f"(state || '') IN ({', '.join(f':{name}' for name in names) or 'NULL'})")
        statement = sql.SOME_MATCHING.format(conditions=" AND ".join(conditions))
        return dict(self._db.rows(statement, {**params, **names, "limit": most}))

    def _all_matching(self, where: JobFilter) -> dict[str, int]:
        if len(where.states) == 1:
            conditions, params = job_conditions(where, where.states[0])
        else:
            conditions, params = job_conditions(where, None)
            if where.states:
                conditions.append(_in_states(where, params))
        return self._counts(conditions, params)

    def _counts(self, conditions: list[str], params: dict[str, Any]) -> dict[str, int]:
        return dict(self._db.rows(sql.JOBS_MATCHING.format(conditions=" AND ".join(conditions)), params))

    def waiting_groups(self, where: JobFilter, limit: int) -> list[WaitingGroup]:
        conditions, params = job_conditions(where, None)
        statement = sql.WAITING_GROUPS.format(conditions=" AND ".join(conditions))
        return [
            WaitingGroup(key=key, jobs=jobs, first=first, oldest_at=oldest)
            for key, jobs, first, oldest in self._db.rows(statement, {**params, "limit": limit})
        ]


def job_conditions(where: JobFilter, state: str | None, *, by_state: bool = False) -> Conditions:
    """Returns all conditions of a filter except its states: `state` is the one that is read, if it is only one.

    `by_state` reads no more than the jobs in that state, or an owner's: of a config or worker many more have ended.
    """
    conditions = ["1 = 1"]
    params: dict[str, Any] = {}
    if state is not None:
        # Without the second half SQLite finds those that are named by their ids, and reads not all of the state.
        conditions.append("state = :state" if where.ids is not None else "state = :state AND state <> ''")
        params["state"] = str(state)
    for column in EQUAL:
        value = getattr(where, column)
        if value is not None:
            apart = by_state and column != "owner"
            conditions.append(f"{_column(where, column, apart=apart)} = :{column}")
            params[column] = value
    for field, condition in RANGES:
        moment = getattr(where, field)
        if moment is not None:
            conditions.append(condition)
            params[field] = float(moment)
    if where.dataset is not None:
        conditions.append("id IN (SELECT job_id FROM job_datasets WHERE dataset_id = :dataset)")
        params["dataset"] = where.dataset
    for some in (_named(where), _texts(where), _asked(where), _written(where), _reasons(where)):
        conditions += some[0]
        params |= some[1]
    seen, seen_params = seen_condition(where.seen_by)
    if seen:
        conditions.append(seen)
        params |= seen_params
    return conditions, params


def seen_condition(scope: VisibilityScope | None) -> tuple[str, dict[str, Any]]:
    """Returns `core.people.visibility.may_see` as a condition on rows; empty where everything may be seen."""
    if scope is None or scope.above:
        return "", {}
    params: dict[str, Any] = {}
    allowed = ["visibility = 'everybody'"]
    for column, values, also in (
        ("owner", scope.ids, ""),
        ("team", scope.teams, " AND visibility = 'team'"),
    ):
        names = {f"seen_{column}_{at}": value for at, value in enumerate(sorted(values)) if value}
        if names:
            allowed.append(f"({column} IN ({', '.join(f':{name}' for name in names)}){also})")
            params |= names
    return f"({' OR '.join(allowed)})", params


def _column(where: JobFilter, name: str, *, apart: bool) -> str:
    """Returns the column to compare, so that SQLite uses the index of the few jobs without results, or of ids.

    It would otherwise go through all jobs of an owner, or of a config.
    """
    of_few = name == "owner" and where.results == (Results.MISSING,)
    return f"({name} || '')" if apart or of_few or where.ids is not None else name


def _in_states(where: JobFilter, params: dict[str, Any]) -> str:
    """Returns the condition on the states, and adds their names to the parameters."""
    names = {f"state_{at}": str(state) for at, state in enumerate(where.states)}
    params |= names
    return f"state IN ({', '.join(f':{name}' for name in names)})"


def _named(where: JobFilter) -> Conditions:
    if where.ids is None:
        return [], {}
    names = {f"id_{at}": job_id for at, job_id in enumerate(where.ids)}
    return [f"id IN ({', '.join(f':{name}' for name in names) or 'NULL'})"], names


def _texts(where: JobFilter) -> Conditions:
    if not where.text:
        return [], {}
    text, lowered = f"%{_literally(where.text)}%", f"%{_literally(where.text.lower())}%"
    condition = f"({_TITLE} LIKE :text ESCAPE '!' OR lower({_TITLE}) LIKE :lowered ESCAPE '!')"
    return [condition], {"text": text, "lowered": lowered}


def _asked(where: JobFilter) -> Conditions:
    """Finds what a job asks of its worker in the text that `requirements_text` writes.

    Nothing else in that text looks like it: within a string a quote is escaped, and no other list has pairs of
    strings.
    """
    conditions, params = [], {}
    if where.trainer is not None:
        params["trainer"] = f'"trainer":{_json(where.trainer)}'
        conditions.append("requires <> replace(requires, :trainer, '')")
    for at, pair in enumerate(where.labels):
        params[f"label_{at}"], params[f"later_label_{at}"] = f"[{_json(pair)}", f",{_json(pair)}"
        conditions.append(
            f"(requires <> replace(requires, :label_{at}, '')"
            f" OR requires <> replace(requires, :later_label_{at}, ''))"
        )
    if not conditions:
        return [], {}
    return [f"class_id IN (SELECT class_id FROM classes WHERE {' AND '.join(conditions)})"], params


def _written(where: JobFilter) -> Conditions:
    conditions, params = (["tags <> '[]'"] if where.tags else []), {}
    for at, tag in enumerate(where.tags):
        conditions.append(f"tags <> replace(tags, :tag_{at}, '')")
        params[f"tag_{at}"] = _json(tag)
    return conditions, params


def _reasons(where: JobFilter) -> Conditions:
    conditions: list[str] = []
    params: dict[str, Any] = {}
    if where.reason is not None:
        conditions.append(
            "(reason = :reason OR attempt_id IN (SELECT id FROM attempts"
            " WHERE failure_class = :reason AND failure_class IS NOT NULL))"
        )
        params["reason"] = where.reason
    if where.results:
        # Written out, since an index serves one of them alone.
        alike = " OR ".join(f"results = '{Results(one)}'" for one in where.results)
        conditions.append(alike if len(where.results) == 1 else f"({alike})")
    if where.not_retried:
        conditions.append(
            "NOT EXISTS (SELECT 1 FROM jobs AS again WHERE again.retry_of = jobs.id AND again.retry_of IS NOT NULL)"
        )
    if where.waiting_groups is not None:
        groups = {f"group_{at}": key for at, key in enumerate(where.waiting_groups)}
        listed = ", ".join(f":{name}" for name in groups) or "''"
        conditions.append(f"{sql.WAITS} AND {sql.WAITING_GROUP} IN ({listed})")
        params |= groups
    return conditions, params


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _literally(text: str) -> str:
    """Escapes a text for LIKE, with '!' as the escape character."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")
