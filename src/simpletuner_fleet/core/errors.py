"""Defines the errors that anybody is told. Their docstring is the message; `code` is what programs read.

What only a worker raises about its own machine is in worker_errors.py.
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class FleetError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"
    next_step: ClassVar[str | None] = None

    def __init__(self, detail: str | None = None, *, next_step: str | None = None, **params: Any) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip()
        self.next = next_step or self.next_step
        self.params: Mapping[str, Any] = params
        super().__init__(self.detail)


class Malformed(FleetError):
    """The request could not be read."""

    code = "malformed"


class Invalid(FleetError):
    """A field of the request is not valid."""

    code = "invalid"

    def __init__(self, detail: str, *, path: str, next_step: str | None = None) -> None:
        super().__init__(detail, next_step=next_step, errors=[{"path": path, "detail": detail}])


class DigestMismatch(Invalid):
    """The bytes do not match the announced SHA-256."""

    code = "digest_mismatch"

    def __init__(self, sha256: str) -> None:
        super().__init__(
            f"The received data is not {sha256}; it was discarded.",
            path="$",
            next_step="Upload it again from 0.",
        )


class WrongCurrentPassword(Invalid):
    """The current password is wrong."""

    code = "wrong_current_password"

    def __init__(self) -> None:
        super().__init__("The current password is wrong.", path="$.current_password")


class ScimRefused(FleetError):
    """The request of the directory cannot be carried out as it is."""

    code = "scim_refused"

    def __init__(self, detail: str, *, kind: str = "invalidValue") -> None:
        super().__init__(detail, scim_type=kind)


class Unauthenticated(FleetError):
    """No credentials were sent."""

    code = "unauthenticated"
    next_step = "Send 'Authorization: Bearer st_…' or log in with 'simpletuner login'."


class WrongPassword(Unauthenticated):
    """The name or the password is wrong."""

    code = "wrong_password"
    next_step = "Try again, or ask an administrator for a link to set a new password."


class SignInFailed(FleetError):
    """The log-in with the provider did not succeed."""

    code = "sign_in_failed"
    next_step = "Go back to the log-in page and try again. If it keeps happening, the server's log says more."


class SignInLost(SignInFailed):
    """This log-in was not begun in this browser, took too long, or has already been used."""

    code = "sign_in_lost"
    next_step = "Go back to the log-in page and begin again."


class NotVouchedFor(SignInFailed):
    """The provider's token cannot be trusted."""

    code = "not_vouched_for"
    next_step = (
        "Try again. If it keeps happening, ask an administrator to compare the settings with the provider's."
    )


class NoRole(SignInFailed):
    """The provider knows you, but none of your groups has a role here."""

    code = "no_role"
    next_step = "Ask an administrator to add you to a group that may log in."


class ProviderUnusable(SignInFailed):
    """The provider cannot be used."""

    code = "provider_unusable"
    next_step = "Try again in a moment; administrators can log in with their name and password meanwhile."


class InvalidToken(FleetError):
    """Invalid token."""

    code = "invalid_token"
    next_step = "The token may have been rotated: request a new one, and check it for whitespace."


class Forbidden(FleetError):
    """This credential lacks a permission."""

    code = "forbidden"

    def __init__(self, permission: str) -> None:
        super().__init__(f"This credential lacks the permission '{permission}'.", permission=permission)


class LoginNotFresh(Forbidden):
    """You logged in too long ago for this."""

    code = "login_not_fresh"
    next_step = "Log in again and repeat this."

    def __init__(self) -> None:
        FleetError.__init__(self)


class NotYours(FleetError):
    """This belongs to someone else."""

    code = "not_yours"
    next_step = "Save yours under another name, or ask its owner or an administrator."


class NotForTeam(FleetError):
    """The rules of the team do not allow this."""

    code = "not_for_team"
    next_step = "Ask for something else, or ask a lead of the team or an administrator to change its rules."


class NotInTeam(FleetError):
    """Only members and leads of a team may do this for it."""

    code = "not_in_team"
    next_step = "Name a team of yours, or ask one of its leads."


class MayNotApprove(FleetError):
    """It is for others to approve or reject this job."""

    code = "may_not_approve"
    next_step = "See whose word it waits for with 'simpletuner approvals list'."


class QuotaReached(FleetError):
    """A quota is reached."""

    code = "quota_reached"
    next_step = "See what is used and what is left with 'simpletuner quotas mine'."


class NetworkNotAllowed(FleetError):
    """Workers may not connect from this network."""

    code = "network_not_allowed"
    next_step = "Ask the administrator to add this address to SIMPLETUNER_WORKER_NETWORKS."


class NotFound(FleetError):
    """There is no such thing here."""

    code = "not_found"


def no_such_job(job_id: str) -> NotFound:
    return NotFound(f"There is no job {job_id}.", next_step="See them with 'simpletuner jobs list'.")


def no_such_worker(worker_id: str) -> NotFound:
    return NotFound(f"There is no worker {worker_id}.", next_step="See them with 'simpletuner workers list'.")


def no_such_user(user_id: str) -> NotFound:
    return NotFound(f"There is no user {user_id}.", next_step="See them with 'simpletuner users list'.")


def no_such_token(token_id: str) -> NotFound:
    return NotFound(f"There is no token {token_id}.", next_step="See them with 'simpletuner tokens list'.")


def no_such_pool(name: str) -> NotFound:
    return NotFound(f"There is no pool {name}.", next_step="See them with 'simpletuner pools list'.")


def no_such_machine(machine_id: str) -> NotFound:
    return NotFound(
        f"There is no machine {machine_id}.", next_step="See them with 'simpletuner machines list'."
    )


class LinkUsed(NotFound):
    """This link has been used, has expired, or is not valid."""

    code = "link_used"
    next_step = "Ask for a new one: 'simpletuner users link', or 'simpletuner users reset-password NAME'."


class ApprovalLinkOver(NotFound):
    """This link has been used, has expired, or there is nothing left to decide."""

    code = "approval_link_over"
    next_step = "Log in, and see under Approvals what still waits for you."


class AskedOtherwise(FleetError):
    """This is a name from older guides, and is asked in another way here."""

    code = "asked_otherwise"


class Conflict(FleetError):
    """It is not in a state that allows this."""

    code = "conflict"


class NameTaken(Conflict):
    """A worker with this name already exists."""

    code = "name_taken"
    next_step = "Choose another name, or delete the worker that has it."


class WorkerNotOffline(Conflict):
    """Only an offline worker can be deleted."""

    code = "worker_not_offline"
    next_step = "Stop the worker first; it goes offline when it disconnects or after the heartbeat timeout."


class LastAdmin(Conflict):
    """At least one enabled administrator must remain."""

    code = "last_admin"
    next_step = "Make another user an admin first."


class UsersExist(Conflict):
    """There are users already: the first one has been created."""

    code = "users_exist"
    next_step = "simpletuner users create NAME --role admin, or simpletuner users reset-password NAME"


class UserDisabled(Conflict):
    """This user is disabled."""

    code = "user_disabled"
    next_step = "Enable the user first."


class ForeignUser(Conflict):
    """This user logs in with a provider and has no password here."""

    code = "foreign_user"
    next_step = "Change the user's groups or password at the provider."


class WrongJobState(Conflict):
    """The job is not in a state that allows this."""

    code = "wrong_job_state"


class CannotSaveNow(Conflict):
    """This job's trainer cannot be asked for a checkpoint."""

    code = "cannot_save_now"
    next_step = "Wait for the next checkpoint that its config asks for."


class CannotValidateNow(Conflict):
    """This job's trainer cannot be asked to validate."""

    code = "cannot_validate_now"
    next_step = (
        "Wait for the next validation that its config asks for. SimpleTuner can be asked from 3.2.1 on."
    )


class StaleAttempt(Conflict):
    """This attempt is no longer the job's current one: stop its trainer."""

    code = "stale_attempt"


class AttemptOver(StaleAttempt):
    """This attempt has ended, and its token with it."""

    code = "attempt_over"


class JobSealed(Conflict):
    """The job has ended: its stored files no longer change."""

    code = "job_sealed"
    next_step = "Retry the job to run it again; the retry is a separate job."


class OfferWithdrawn(StaleAttempt):
    """The offer was withdrawn before it was accepted."""

    code = "offer_withdrawn"


class Superseded(Conflict):
    """Another agent has since registered with this worker's token."""

    code = "superseded"
    next_step = "Create a separate worker and token for each machine."


class StaleMessage(Conflict):
    """A newer message from this agent has already been processed."""

    code = "stale_message"


class ObjectsMissing(Conflict):
    """Some files named in the manifest are not stored yet."""

    code = "objects_missing"
    next_step = "Upload these first, then send the manifest again."


class DirectUnavailable(Conflict):
    """This file cannot go straight to the storage."""

    code = "direct_unavailable"
    next_step = "Send it to the orchestrator, in parts."


class StepBackwards(Conflict):
    """A later checkpoint of this attempt is already stored."""

    code = "step_backwards"
    next_step = "Leave it out."


class IdempotencyMismatch(Conflict):
    """This idempotency key was already used with a different request."""

    code = "idempotency_mismatch"


class CountChanged(Conflict):
    """The number of matching jobs has changed since it was confirmed."""

    code = "count_changed"
    next_step = "Look at the list again, and confirm the new number."


class ApprovedAsItIs(Conflict):
    """This job was approved as it is."""

    code = "approved_as_it_is"
    next_step = "Ask somebody who may approve jobs to edit it, or cancel it and submit another."


class JobStillNeeded(Conflict):
    """Somebody still needs what the job has stored."""

    code = "job_still_needed"


class JobDeleted(FleetError):
    """The job was deleted."""

    code = "job_deleted"
    next_step = "To submit it again, send the request with a new idempotency key."


class CannotBePlaced(Conflict):
    """No worker can take this job now, and the request asked not to wait."""

    code = "cannot_be_placed"


class DatasetInUse(Conflict):
    """A job that has not ended uses this dataset."""

    code = "dataset_in_use"
    next_step = "Wait for the job to end, or cancel it, then delete the dataset."


class TooLarge(FleetError):
    """The request is too large."""

    code = "too_large"


class QuotaExceeded(TooLarge):
    """The job would exceed its storage limit."""

    code = "quota_exceeded"
    next_step = "Save fewer or smaller checkpoints, or ask for a higher SIMPLETUNER_JOB_STORAGE_GB."


class UnsupportedMediaType(FleetError):
    """This content type is not accepted here."""

    code = "unsupported_media_type"
    next_step = "Send JSON with 'Content-Type: application/json'."


class TooManyRequests(FleetError):
    """Too many requests."""

    code = "too_many_requests"

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(
            f"Too many requests: try again in {retry_after_s:.0f} s.", retry_after_s=retry_after_s
        )


class StoreUnavailable(FleetError):
    """The database cannot accept this now; nothing was changed."""

    code = "store_unavailable"
    next_step = "Try again shortly. If it keeps happening, check the orchestrator's disk space and database."


class ProviderUnavailable(FleetError):
    """The provider of machines cannot be asked now."""

    code = "provider_unavailable"
    next_step = "Check the pool's settings, its secret and the provider's own status, and try again."


class NotLeader(StoreUnavailable):
    """This orchestrator does not lead, and the leader cannot be reached; nothing was changed."""

    code = "not_leader"
    next_step = "Try again in a moment: another orchestrator takes over within seconds."


class StorageLow(StoreUnavailable):
    """The server's disk is nearly full: uploads are paused, everything else keeps running."""

    code = "storage_low"
    next_step = (
        "It resumes automatically once there is space: delete datasets or old jobs, or enlarge the disk."
    )


class UnreadableRow(StoreUnavailable):
    """A database row is unreadable and was set aside; everything else keeps running."""

    code = "unreadable_row"
    next_step = "Run 'simpletuner doctor server' on the orchestrator's machine: it names the rows to restore."


class IllegalTransition(FleetError):
    """The state machine has no such transition. This is a bug on our side, never a fault of the input."""

    code = "illegal_transition"


class StorageOfAnother(Conflict):
    """The storage belongs to another fleet, or this is not its database."""

    code = "storage_of_another"
    next_step = (
        "Start with the database that belongs to this storage (SIMPLETUNER_DATABASE_URL, "
        "SIMPLETUNER_HOME), or give this fleet its own storage (SIMPLETUNER_STORAGE_URL). To take over "
        "the storage and mark everything this database does not know for deletion: --adopt-storage."
    )
