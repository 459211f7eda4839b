"""Runs `simpletuner status`: shows the server, workers, queue and running jobs on one screen."""

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from simpletuner_fleet.cli.frame.command_name import as_called
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode
from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.cli.jobs import job_text
from simpletuner_fleet.cli.nouns.machines.pools import MACHINES, useless_sentence
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.core.jobs.states import AT_WORK, WAITING
from simpletuner_fleet.languages import _, ngettext

WORKER_STATES = ("idle", "busy", "draining", "connecting", "offline")
SHOWN_JOBS = 10
MOST_RUNNING, MOST_WAITING = 100, 200
NOT_FOR_US = ("forbidden", "not_found")
"""A token without the right to see it, or a server that is older than what is asked for."""


def status(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        ready = api.get("/health/ready")
        who = _if_allowed(lambda: api.get("/api/whoami", lookup=True))
        workers = _if_allowed(lambda: lookup.workers(api))
        running = _Listed(*lookup.counted_pages(api, {"status": list(AT_WORK)}, MOST_RUNNING))
        waiting = _Listed(*lookup.counted_pages(api, {"status": list(WAITING)}, MOST_WAITING))
        machines = _if_allowed(lambda: api.items(MACHINES, "machines", lookup=True)) or []
        if out.shows_result:
            out.item(_document(api, ready, who, workers, running, waiting), ())
        else:
            _print(out, api, who, workers, running, waiting)
            if useless := useless_sentence(machines):
                print(as_called(clean(useless)))
    return ExitCode.OK


class _Listed(NamedTuple):
    """Holds some jobs, and how many there are; None where an older server does not say."""

    jobs: list[dict[str, Any]]
    total: int | None

    @property
    def number(self) -> int:
        return len(self.jobs) if self.total is None else self.total


def _document(
    api: Api, ready: Any, who: Any, workers: Any, running: _Listed, waiting: _Listed
) -> dict[str, Any]:
    return {
        "schema": "status.v1",
        "server": {"url": api.where.url, "ready": ready},
        "whoami": who,
        "workers": None if workers is None else dict(Counter(worker["status"] for worker in workers)),
        "running": running.jobs,
        "waiting": dict(_reasons(waiting.jobs)),
        "total": {"running": running.total, "waiting": waiting.total},
    }


def _print(out: Output, api: Api, who: Any, workers: Any, running: _Listed, waiting: _Listed) -> None:
    print(_server_line(clean(api.where.url), who))
    print(_("Workers  %(told)s", told=_workers_line(workers)))
    print(_("Queue    %(told)s", told=_queue_line(waiting)))
    for reason, count in _reasons(waiting.jobs).most_common():
        print(f"  {count:>5}  {clean(reason)}")
    if waiting.number > len(waiting.jobs):
        print("  " + _("and %(count)s more", count=waiting.number - len(waiting.jobs)))
    print(_("Running  %(count)s", count=running.number))
    if running.jobs:
        out.table(running.jobs[:SHOWN_JOBS], job_text.LIST[:7])
    if running.number > SHOWN_JOBS:
        print("  " + _("and %(count)s more", count=running.number - SHOWN_JOBS))
    if not workers and workers is not None:
        out.hint(_("Add a GPU machine:  simpletuner workers create NAME"))
    elif not running.jobs and not waiting.jobs:
        out.hint(_("Nothing to do. Submit a job:  simpletuner jobs submit CONFIG"))


def _server_line(url: str, who: Any) -> str:
    if isinstance(who, dict):
        return _("Server   %(url)s  ready, as %(name)s", url=url, name=clean(who.get("name")))
    return _("Server   %(url)s  ready", url=url)


def _workers_line(workers: list[dict[str, Any]] | None) -> str:
    if workers is None:
        return _("not shown: this token lacks admin.workers")
    if not workers:
        return _("none")
    counts = Counter(str(worker["status"]) for worker in workers)
    gpus = sum(int(worker.get("gpu_count") or 0) for worker in workers if worker["status"] != "offline")
    parts = [f"{counts[state]} {state}" for state in WORKER_STATES if counts[state]]
    return ngettext(
        "%(workers)s; %(n)s GPU online", "%(workers)s; %(n)s GPUs online", gpus, workers=", ".join(parts)
    )


def _queue_line(waiting: _Listed) -> str:
    if not waiting.jobs:
        return _("empty")
    if waiting.total is None and len(waiting.jobs) == MOST_WAITING:
        return _("%(count)s or more waiting", count=MOST_WAITING)
    return ngettext("%(n)s waiting", "%(n)s waiting", waiting.number)


def _reasons(waiting: list[dict[str, Any]]) -> Counter[str]:
    return Counter(job_text.reason(job) or str(job["status"]) for job in waiting)


def _if_allowed(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except CliError as error:
        if error.trouble.code in NOT_FOR_US:
            return None
        raise
