"""Answers requests about the queue and its jobs as older guides write them."""

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Count
from simpletuner_fleet.core.errors import AskedOtherwise
from simpletuner_fleet.core.jobs.finding import SearchWord
from simpletuner_fleet.core.jobs.states import AT_WORK
from simpletuner_fleet.http.api.jobs.jobs import JobListQuery
from simpletuner_fleet.http.api.older.wording import Older, WordedRequest, Wording
from simpletuner_fleet.http.api.queue_views import states_named

SUBMIT = "POST /api/queue/submit"
LIMITS = "POST /api/queue/concurrency"
PRIORITY = "POST /api/queue/{id}/priority"
CLOUD_JOB = "/api/cloud/jobs/{id}"
RECORDS_STAY = (
    "Records are kept for as long as SIMPLETUNER_JOBS_KEEP_DAYS says when the server starts, and are then emptied by "
    "themselves; what a job has stored is deleted the same way."
)
ON_ITS_OWN_MACHINE = (
    "The orchestrator's own machine takes as many jobs as its GPUs allow. For other numbers start the server with "
    "--no-local and a worker beside it: 'simpletuner worker --max-jobs 2 --gpus 0,1'. A quota of the kind 'gpus' limits "
    "GPUs at once, everywhere: POST /api/quotas."
)
KUBERNETES = (
    "Machines of Kubernetes come from a pool: PUT /api/pools/NAME with its provider, and submit with target 'worker' or "
    "'auto'."
)
PLACED_AT_ONCE = (
    "Nothing has to be triggered: whatever can start is placed in the moment in which something becomes free. Why a job "
    "still waits is told by GET /api/jobs/ID/explain."
)
OLDER_FIELDS = {"config_name_to_load": "config_name", "tracker_run_name": "name"}


class CloudListQuery(Struct, kw_only=True):
    status: list[SearchWord] = []
    limit: Count = 50


def submission(asked: WordedRequest) -> WordedRequest:
    """Translates a submission.

    `provider` and all else that chose a cloud is for pools here; our own type reports what is unknown.
    """
    if asked.body.get("target") == "kubeflow":
        raise AskedOtherwise(next_step=KUBERNETES)
    return replace(asked, body={OLDER_FIELDS.get(name, name): value for name, value in asked.body.items()})


def local_limits(asked: WordedRequest) -> WordedRequest:
    if any(name.startswith("local_") for name in asked.body):
        raise AskedOtherwise(next_step=ON_ITS_OWN_MACHINE)
    return asked


def cleared_priority(asked: WordedRequest) -> WordedRequest:
    """Translates null, which took an override back, to the priority of an ordinary job."""
    return replace(asked, body={**asked.body, "priority": asked.body.get("priority") or 0})


def submitted(answer: Wording, asked: WordedRequest) -> Wording:
    warnings = [
        f"{quota.get('kind', 'quota')}: {quota.get('used')} of {quota.get('ceiling')} used"
        for quota in answer["quotas"]
    ]
    return {**answer, "quota_warnings": warnings}


def done_to_a_job(answer: Wording, asked: WordedRequest) -> Wording:
    return {**answer, "success": True, "job_id": answer["id"]}


def one_job(answer: Wording, asked: WordedRequest) -> Wording:
    return {**answer, "job_id": answer["id"]}


def jobs_asked(asked: WordedRequest) -> WordedRequest:
    query: CloudListQuery = asked.query
    return replace(
        asked, query=JobListQuery(status=states_named(query.status), limit=min(max(1, query.limit), 500))
    )


def of_user(asked: WordedRequest) -> WordedRequest:
    return replace(asked, query=JobListQuery(owner=asked.path["user"], limit=500))


def queue_of(answer: Wording, asked: WordedRequest) -> Wording:
    """Returns a user's queue. The counts cover all of their jobs; the lists cover the newest five hundred."""
    by_state = answer["by_state"]
    waiting = [job for job in answer["jobs"] if job["status"] == "queued"]
    running = [job for job in answer["jobs"] if job["status"] in AT_WORK]
    places = [job["queue_position"] for job in waiting if job["queue_position"]]
    return {
        "pending_count": by_state.get("queued", 0),
        "running_count": sum(by_state.get(one, 0) for one in AT_WORK),
        "blocked_count": by_state.get("blocked", 0),
        "best_position": min(places, default=None),
        "pending_jobs": waiting,
        "running_jobs": running,
    }


ROWS = [
    Older(asked=SUBMIT, means=SUBMIT, worded=submission),
    Older(asked=LIMITS, means=LIMITS, worded=local_limits),
    Older(asked=PRIORITY, means=PRIORITY, worded=cleared_priority),
    Older(asked="POST /api/queue/{id}/cancel", means="POST /api/queue/{id}/cancel", answered=done_to_a_job),
    Older(asked="POST /api/queue/{id}/approve", means="POST /api/queue/{id}/approve", answered=done_to_a_job),
    Older(asked="POST /api/queue/{id}/reject", means="POST /api/queue/{id}/reject", answered=done_to_a_job),
    Older(
        asked="GET /api/queue/user/{user}",
        means="GET /api/jobs",
        worded=of_user,
        answered=queue_of,
        query=CloudListQuery,
    ),
    Older(asked="POST /api/queue/process", instead=PLACED_AT_ONCE),
    Older(asked="POST /api/queue/cleanup", instead=RECORDS_STAY),
    Older(asked="POST /api/cloud/jobs/submit", means=SUBMIT, worded=submission, answered=submitted),
    Older(asked="POST /api/cloud/{provider}/submit", means=SUBMIT, worded=submission, answered=submitted),
    Older(asked="GET /api/cloud/jobs", means="GET /api/jobs", worded=jobs_asked, query=CloudListQuery),
    Older(asked=f"GET {CLOUD_JOB}", means="GET /api/jobs/{id}", answered=one_job),
    Older(asked=f"GET {CLOUD_JOB}/logs", means="GET /api/jobs/{id}/logs"),
    Older(asked=f"POST {CLOUD_JOB}/cancel", means="POST /api/jobs/{id}/cancel", answered=done_to_a_job),
    Older(asked=f"POST {CLOUD_JOB}/retry", means="POST /api/jobs/{id}/retry", answered=done_to_a_job),
    Older(asked=f"DELETE {CLOUD_JOB}", instead=RECORDS_STAY),
    Older(asked="GET /api/system/status", means="GET /api/admin/workers"),
]
