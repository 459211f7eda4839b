"""Names what programs know by a code: states, kinds of worker, targets, and the events of the audit log."""

from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.languages.words import Words

WORKER_STATUSES = {
    "connecting": N_("Connecting"),
    "idle": N_("Idle"),
    "busy": N_("Busy"),
    "draining": N_("Draining"),
    "offline": N_("Offline"),
}
JOB_STATUSES = {
    "blocked": N_("Blocked"),
    "queued": N_("Queued"),
    "dispatched": N_("Dispatched"),
    "running": N_("Running"),
    "cancelling": N_("Cancelling"),
    "completed": N_("Completed"),
    "failed": N_("Failed"),
    "cancelled": N_("Cancelled"),
}
WORKER_STATUS_MEANINGS = {
    "connecting": N_("Worker is establishing connection"),
    "idle": N_("Ready to receive jobs"),
    "busy": N_("Currently running a job"),
    "draining": N_("Finishing current job, then shutting down"),
    "offline": N_("Disconnected (heartbeat timeout)"),
}
WORKER_TYPES = {"ephemeral": N_("Ephemeral"), "persistent": N_("Persistent")}
TARGETS = {"worker": N_("Worker"), "local": N_("Local"), "auto": N_("Auto")}
ROLES = {"admin": N_("Administrator"), "member": N_("Member"), "viewer": N_("Viewer")}
TEAM_ROLES = {"viewer": N_("Viewer"), "member": N_("Member"), "lead": N_("Lead")}
VISIBILITIES = {
    "private": N_("Only its owner"),
    "team": N_("Its team"),
    "everybody": N_("Everybody"),
}
FAILURES = {
    "time_limit": N_("Time limit reached"),
    "cost_limit": N_("Cost limit reached"),
    "model_missing": N_("Model not found"),
    "model_gated": N_("No access to the model"),
    "captions_missing": N_("Missing captions"),
    "data_missing": N_("The data folder is missing on the worker"),
    "file_missing": N_("A file named in the config is missing"),
    "incomplete": N_("Ended before the last step"),
    "gpu_out_of_memory": N_("GPU out of memory"),
    "watchdog_nan": N_("The loss became NaN or infinite"),
    "watchdog_stall": N_("Training stalled"),
    "disk_full": N_("Disk full"),
    "path_not_granted": N_("Path not accessible to jobs"),
    "out_of_memory": N_("Out of system memory"),
    "memory_limit": N_("The worker's memory limit for jobs reached"),
    "process_limit": N_("The worker's process limit for jobs reached"),
    "cuda": N_("CUDA or GPU driver error"),
    "nccl": N_("Processes lost contact with each other (NCCL)"),
    "segfault": N_("Native crash (segmentation fault)"),
    "import_error": N_("Missing Python package"),
    "config": N_("Invalid setting in the config"),
    "start_failed": N_("The trainer did not start"),
    "data": N_("The data could not be put in place"),
    "killed": N_("Stopped externally"),
    "user_code": N_("Error in the training code"),
    "unknown": N_("Unknown failure"),
}
"""By class, as `core.failure` finds it."""

BLAMES = {
    "worker": N_("Something is wrong on the worker's machine: its disk, its processes or its installation."),
    "unclear": N_("A program could not be executed: the worker lacks it, or the job names it wrongly."),
}
"""Why a worker could not start what it was given, by a `core.workers.start_trouble.Blame`."""

TRIAL_STATES = {"good": N_("Good"), "bad": N_("Wrong"), "not_made": N_("Not checked")}
"""What came of a look at a provider."""

TRIAL_NAMES = {
    "discovery": N_("Its description of itself"),
    "issuer": N_("Its name for itself"),
    "places": N_("Its addresses"),
    "signatures": N_("How it signs"),
    "keys": N_("Its keys"),
    "pkce": N_("PKCE with S256"),
    "scopes": N_("Scopes"),
    "redirect": N_("The redirect address"),
    "client": N_("Client id and secret"),
}

MACHINE_STATUSES = {
    "wanted": N_("Wanted"),
    "asked": N_("Requested"),
    "booting": N_("Booting"),
    "joined": N_("Joined"),
    "draining": N_("Draining"),
    "destroying": N_("Being destroyed"),
    "gone": N_("Gone"),
}
MACHINE_ENDS = {
    "idle": N_("It was idle"),
    "not_needed": N_("It was no longer needed"),
    "refused": N_("The provider refused"),
    "never_made": N_("The provider never made it"),
    "boot_deadline": N_("It did not join in time"),
    "lost": N_("Its worker went silent"),
    "left": N_("Its worker has left"),
    "worker_deleted": N_("Its worker was deleted"),
    "vanished": N_("It vanished from the provider's list"),
    "asked_for": N_("Somebody ended it"),
    "pool_deleted": N_("Its pool was deleted"),
    "budget": N_("The pool's budget is used up"),
    "price": N_("It costs more than the pool allows"),
    "stray": N_("It carried our name and nobody knew of it"),
}
"""By the reason that a machine has in `core.provisioning`."""

MACHINE_USES = {
    "idle": N_("Costs money and is idle"),
    "not_joined": N_("Costs money and has not joined"),
    "silent": N_("Costs money and is not heard"),
    "not_gone": N_("Costs money and is not gone yet"),
}
"""By what `core.provisioning.useless` says of a machine that costs and does nothing."""

EVENTS = {
    "approval_rule.deleted": N_("Approval rule deleted"),
    "approval_rule.set": N_("Approval rule set"),
    "config.deleted": N_("Config deleted"),
    "config.saved": N_("Config saved"),
    "dataset.added": N_("Dataset added"),
    "dataset.deleted": N_("Dataset deleted"),
    "job.accepted": N_("Job accepted by its worker"),
    "job.approval_expired": N_("Approval came too late"),
    "job.approval_link_used": N_("Decided by a link in a mail"),
    "job.approval_given": N_("One of several approvals given"),
    "job.approved": N_("Job approved"),
    "job.cancel_requested": N_("Cancellation requested"),
    "job.cancelled": N_("Job cancelled"),
    "job.completed": N_("Job completed"),
    "job.results_stored": N_("Results stored late"),
    "job.dispatched": N_("Job dispatched"),
    "job.failed": N_("Job failed"),
    "job.dropped": N_("Checkpoint deleted"),
    "job.emptied": N_("Old job's files deleted"),
    "job.deleted": N_("Job deleted"),
    "job.publish_asked": N_("Publishing requested"),
    "job.published": N_("Model published"),
    "job.publish_failed": N_("Publishing failed"),
    "job.lost": N_("Worker lost during job"),
    "job.offer_expired": N_("Offer expired"),
    "job.priority_set": N_("Priority changed"),
    "job.tagged": N_("Tags changed"),
    "job.noted": N_("Note changed"),
    "job.edited": N_("Waiting job edited"),
    "job.chosen_by_filter": N_("All matching jobs acted on"),
    "job.checkpoint_pinned": N_("Checkpoint pinned"),
    "job.checkpoint_unpinned": N_("Checkpoint unpinned"),
    "job.readopted": N_("Running job readopted"),
    "job.rejected": N_("Job rejected"),
    "job.released": N_("Job returned by its worker"),
    "job.requeued": N_("Job queued again"),
    "job.started": N_("Job started"),
    "job.stop_requested": N_("Stop requested"),
    "job.checkpoint_requested": N_("Checkpoint requested"),
    "job.validation_requested": N_("Validation requested"),
    "job.stored": N_("Checkpoint or result stored"),
    "job.submitted": N_("Job submitted"),
    "job.unblocked": N_("Job unblocked"),
    "job.loss_nan": N_("Loss is not a number"),
    "job.waits_long": N_("Job has waited too long"),
    "limits.set": N_("Limits changed"),
    "notification.added": N_("Notification added"),
    "notification.changed": N_("Notification changed"),
    "notification.deleted": N_("Notification deleted"),
    "notification.key_rotated": N_("Webhook secret rotated"),
    "notification.paused": N_("Notification paused"),
    "notification.replayed": N_("Notification replayed"),
    "notification.resumed": N_("Notification resumed"),
    "notification.tested": N_("Notification tested"),
    "machine.asked": N_("Machine requested"),
    "machine.booting": N_("Machine is booting"),
    "machine.destroying": N_("Machine is being destroyed"),
    "machine.draining": N_("Machine set to drain"),
    "machine.gone": N_("Machine gone"),
    "machine.joined": N_("Machine joined"),
    "machine.wanted": N_("Machine wanted"),
    "pool.deleted": N_("Pool deleted"),
    "pool.resumed": N_("Pools looked after again"),
    "pool.saved": N_("Pool saved"),
    "currency.set": N_("Currency chosen"),
    "price.deleted": N_("Price deleted"),
    "price.set": N_("Price set"),
    "quota.deleted": N_("Quota taken away"),
    "quota.nearly_used": N_("Quota nearly used"),
    "quota.reached": N_("Quota reached"),
    "quota.set": N_("Quota set"),
    "secret.deleted": N_("Secret deleted"),
    "secret.given": N_("Secret given to a job"),
    "secret.saved": N_("Secret saved"),
    "server.audit_cut": N_("Old entries of the audit log emptied"),
    "server.audit_contradicted": N_("Audit log contradicts an earlier head"),
    "server.admin_token_set": N_("Administrator's token set"),
    "server.started": N_("Server started"),
    "server.restored": N_("Restored from a backup"),
    "team.changed": N_("Team changed"),
    "team.created": N_("Team created"),
    "team.deleted": N_("Team deleted"),
    "team.member_set": N_("Team member changed"),
    "token.created": N_("API token created"),
    "token.revoked": N_("API token revoked"),
    "user.created": N_("User created"),
    "user.disabled": N_("User disabled"),
    "user.enabled": N_("User enabled"),
    "user.link_made": N_("One-time link created"),
    "user.login": N_("User logged in"),
    "user.login_failed": N_("Log-in failed"),
    "user.logout": N_("User logged out"),
    "user.password_set": N_("Password set"),
    "scim.user_set": N_("User saved by SCIM"),
    "scim.user_deleted": N_("User deleted by SCIM"),
    "scim.group_set": N_("Group saved by SCIM"),
    "scim.group_deleted": N_("Group deleted by SCIM"),
    "sign_in.provider_added": N_("Provider added"),
    "sign_in.provider_changed": N_("Provider changed"),
    "sign_in.provider_tested": N_("Provider tested"),
    "sign_in.provider_deleted": N_("Provider deleted"),
    "role.set": N_("Role set"),
    "role.deleted": N_("Role deleted"),
    "user.role_changed": N_("Role changed"),
    "worker.cleaned_up": N_("Offline worker cleaned up"),
    "worker.connected": N_("Worker connected"),
    "worker.created": N_("Worker created"),
    "worker.deleted": N_("Worker deleted"),
    "worker.disconnected": N_("Worker disconnected"),
    "worker.drained": N_("Worker set to drain"),
    "worker.in_use_again": N_("Worker in use again"),
    "worker.interrupted": N_("Machine about to be taken away"),
    "worker.price_set": N_("Worker price set"),
    "worker.labels_set": N_("Labels changed"),
    "worker.lost": N_("Worker lost"),
    "worker.registered": N_("Worker registered"),
    "worker.registration_failed": N_("Registration failed"),
    "worker.resumed": N_("Worker resumed"),
    "worker.set_aside": N_("Worker set aside"),
    "worker.status_changed": N_("Worker status changed"),
    "worker.token_rotated": N_("Worker token rotated"),
}


def status_name(words: Words, kind: str, status: str) -> str:
    """Names a status; `kind` is job or worker."""
    return _named(words, WORKER_STATUSES if kind == "worker" else JOB_STATUSES, status)


def status_meaning(words: Words, status: str) -> str:
    return _named(words, WORKER_STATUS_MEANINGS, status)


def worker_type_name(words: Words, worker_type: str) -> str:
    return _named(words, WORKER_TYPES, worker_type)


def target_name(words: Words, target: str) -> str:
    return _named(words, TARGETS, target)


def role_name(words: Words, role: str) -> str:
    return _named(words, ROLES, role)


def team_role_name(words: Words, role: str) -> str:
    return _named(words, TEAM_ROLES, role)


def visibility_name(words: Words, visibility: str) -> str:
    return _named(words, VISIBILITIES, visibility)


def failure_name(words: Words, failure_class: str) -> str:
    return _named(words, FAILURES, failure_class)


def machine_status_name(words: Words, status: str) -> str:
    return _named(words, MACHINE_STATUSES, status)


def machine_end_name(words: Words, why: str) -> str:
    return _named(words, MACHINE_ENDS, why)


def event_name(words: Words, event_type: str) -> str:
    return _named(words, EVENTS, event_type)


def _named(words: Words, table: dict[str, str], code: str) -> str:
    """Returns the name; a code that is newer than this table is shown as it is."""
    return words.gettext(table[code]) if code in table else code


def blame_name(words: Words, blame: str) -> str:
    return words.gettext(BLAMES[blame]) if blame in BLAMES else blame
