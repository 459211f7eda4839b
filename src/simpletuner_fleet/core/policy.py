"""Lists every interval, limit and count that the rules use; the unit is in the name."""

from functools import cached_property

from msgspec import Struct

from simpletuner_fleet.core.people.visibility import Visibility


class Policy(Struct, frozen=True, kw_only=True, dict=True):
    heartbeat_interval_s: float = 30.0
    heartbeat_timeout_s: float = 120.0
    health_check_interval_s: float = 60.0
    """The longest time between two health checks; short timeouts are checked more often."""
    reconnect_grace_s: float = 2.0
    """How long a worker's stream may be gone before the worker is shown as reconnecting."""
    offer_timeout_s: float = 15.0
    offer_resend_s: float = 3.0
    ping_interval_s: float = 15.0
    ephemeral_ttl_s: float = 3600.0
    max_retries: int = 3
    retry_backoff_s: float = 5.0
    retry_backoff_max_s: float = 300.0
    poison_worker_count: int = 2
    results_wait_s: float = 86_400.0
    """How long a job whose trainer has ended well waits for its results to be stored."""
    start_failures_allowed: int = 3
    """So many jobs in a row that a worker could not start, and it is set aside."""
    set_aside_s: float = 300.0
    """For how long, the first time; twice as long each time that it is no better then."""
    set_aside_max_s: float = 3600.0
    start_tries: int = 10
    """So often a job that its workers cannot start is tried."""
    start_tries_unclear: int = 3
    """The same where it may be the job's own fault."""
    mass_loss_wait_s: float = 300.0
    """How long jobs stay with their workers when much of the fleet has vanished at once."""
    mass_loss_requeues_per_s: float = 5.0
    """How many of them are given away after that."""
    priority_point_s: float = 3600.0
    """One point of priority is worth this much waiting, so a low priority is late, never starved."""
    reserve_after_s: float = 300.0
    """A job that waited this long for GPUs may hold a fitting worker's free GPUs until enough are free."""
    cancel_grace_s: float = 30.0
    checkpoint_wait_s: float = 300.0
    """How long a trainer that is to save a checkpoint before it stops is waited for."""
    resume_tries: int = 3
    """So often a checkpoint that cannot be fetched is tried before an older one is."""
    token_warn_age_s: float = 90 * 86_400.0
    waits_long_s: float = 3600.0
    """A job that has waited so long for a worker has waited too long: whoever wants to know is told."""
    told_at_once: int = 200
    """So many jobs at most are told in one step that a job they depend on has ended; others are told after it."""
    placed_at_once: int = 200
    """So many jobs at most are placed in one step; others after it, since nobody else is answered meanwhile."""
    given_up_at_once: int = 100
    """So many attempts of a silent worker at most are given up in one step, for the same reason."""
    require_approval: bool = False
    approval_link_s: float = 86_400.0
    """For how long a link in a mail lets its reader approve without logging in; 0: there are no such links."""
    default_visibility: Visibility = Visibility.EVERYBODY
    """Of what people make who say nothing of it, and whose team does not."""
    checkpoints_keep: int = 10
    """The newest so many of each job stay; artifacts always do."""
    max_object_bytes: int = 200 * 2**30
    max_manifest_files: int = 10_000
    job_storage_bytes: int = 2 * 2**40
    """What one job may have stored at a time, checkpoints and artifacts together."""
    data_storage_bytes: int = 2 * 2**40
    """What all datasets together may take; the same content counts once."""
    user_storage_bytes: int | None = None
    """What all jobs of one person may have stored at a time; None: no limit beside each job's own."""
    max_dataset_files: int = 100_000
    jobs_keep_days: float | None = None
    """Jobs that ended longer ago lose logs, metrics, checkpoints and artifacts; None: never."""
    audit_keep_days: float | None = None
    """Older entries of the audit log lose all but their hash; None: never."""
    object_grace_s: float = 3600.0
    """How long an uploaded file that no manifest names is kept for the manifest to come."""
    object_delete_delay_s: float = 86_400.0
    """How long a stored file that nobody has stands on the list of those to be deleted."""

    @cached_property
    def sweep_interval_s(self) -> float:
        """Returns an interval short enough to see a loss soon after its timeout, at most the health check's own."""
        return min(self.health_check_interval_s, self.heartbeat_timeout_s / 8, self.offer_timeout_s / 5)


class Limits(Struct, frozen=True, kw_only=True):
    """Limits how many attempts may live at once; None is no limit."""

    global_running: int | None = None
    user_running: int | None = None
    team_running: int | None = None


NO_LIMITS = Limits()
NOTHING_STARTS = Limits(global_running=0)
MAX_PRIORITY = 1000
PRIORITY_NAMES = {"low": -10, "normal": 0, "high": 10, "urgent": 100}
MAX_LABELS = 64
MAX_LABEL_KEY_CHARS = 63
MAX_LABEL_VALUE_CHARS = 255
MAX_NAME_CHARS = 128
MAX_GPUS_PER_JOB = 1024
MAX_NODES_PER_JOB = 128
MAX_RETRIES = 100
MAX_DEPENDENCIES = 100
MAX_GRACE_S = 3600.0
MAX_DRAIN_TIMEOUT_S = 30 * 86_400.0
