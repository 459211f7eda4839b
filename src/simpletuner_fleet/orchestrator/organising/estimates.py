"""Estimates what a job would cost, inside the transaction that would admit it."""

from simpletuner_fleet.core.jobs.job import Job, JobState
from simpletuner_fleet.core.money.estimate import Estimate, PastRun, estimate, hourly_prices, past_run
from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.engine.visibility import restricted
from simpletuner_fleet.ports import JobFilter

RUNS_LOOKED_AT = 10


def estimate_in(transaction: Transaction, job: Job, scope: VisibilityScope) -> Estimate | None:
    """Returns the estimate; None where no price is known of any worker that could take the job.

    Only past jobs that the caller may see are used.
    """
    roster, prices = transaction.index.roster, transaction.organisation.prices
    allowlist = roster.allowlists.get(job.requires.team)
    hourly = hourly_prices(prices, job, roster.workers.values(), allowlist) if job.requires.gpus else None
    if hourly is None:
        return None
    return estimate(job, hourly, prices.currency, _past_runs(transaction, job, scope))


def _past_runs(transaction: Transaction, job: Job, scope: VisibilityScope) -> list[PastRun]:
    seen = restricted(transaction.tx, scope)
    completed = JobFilter(states=(JobState.COMPLETED,), config_name=job.config_name)
    jobs = seen.jobs_page(completed, None, RUNS_LOOKED_AT)
    return [run for one in jobs if (run := past_run(one, seen.attempts_of_job(one.id)))]
