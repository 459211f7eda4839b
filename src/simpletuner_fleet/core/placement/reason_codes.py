"""Names the reasons for which a job waits, and the fields of each; the table itself is in `reasons.py`."""

from enum import StrEnum

from msgspec import Struct

from simpletuner_fleet.core.placement.matching import Refusal


class Code(StrEnum):
    NO_WORKERS = "NO_WORKERS"
    KEPT_FOR_OTHERS = "KEPT_FOR_OTHERS"
    LABELS_MATCH_NONE = "LABELS_MATCH_NONE"
    NODES_MATCH_NONE = "NODES_MATCH_NONE"
    GPU_COUNT_TOO_LARGE = "GPU_COUNT_TOO_LARGE"
    VRAM_TOO_SMALL = "VRAM_TOO_SMALL"
    WRONG_ACCELERATOR = "WRONG_ACCELERATOR"
    TRAINER_MISSING = "TRAINER_MISSING"
    DATA_TOO_LARGE = "DATA_TOO_LARGE"
    NOT_FOR_TEAM = "NOT_FOR_TEAM"
    TOO_DEAR = "TOO_DEAR"
    PRICE_UNKNOWN = "PRICE_UNKNOWN"
    COST_LIMIT = "COST_LIMIT"
    PATH_NOT_GRANTED = "PATH_NOT_GRANTED"
    ALL_MATCHING_BUSY = "ALL_MATCHING_BUSY"
    ALL_MATCHING_OFFLINE = "ALL_MATCHING_OFFLINE"
    ALL_MATCHING_RECONNECTING = "ALL_MATCHING_RECONNECTING"
    ALL_MATCHING_DRAINING = "ALL_MATCHING_DRAINING"
    ALL_MATCHING_INTERRUPTED = "ALL_MATCHING_INTERRUPTED"
    ALL_MATCHING_SET_ASIDE = "ALL_MATCHING_SET_ASIDE"
    ALL_MATCHING_NOT_LISTENING = "ALL_MATCHING_NOT_LISTENING"
    ALL_MATCHING_UNUSABLE = "ALL_MATCHING_UNUSABLE"
    BEHIND_OTHERS = "BEHIND_OTHERS"
    OVER_SHARE = "OVER_SHARE"
    HELD_AFTER_RESTORE = "HELD_AFTER_RESTORE"
    SETTING_UNREADABLE = "SETTING_UNREADABLE"
    RETRY_BACKOFF = "RETRY_BACKOFF"
    START_TIME = "START_TIME"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    DEPENDENCY = "DEPENDENCY"
    QUOTA_USER = "QUOTA_USER"
    QUOTA_TEAM = "QUOTA_TEAM"
    QUOTA_GLOBAL = "QUOTA_GLOBAL"
    QUOTA = "QUOTA"
    LOCAL_GPU_BUSY = "LOCAL_GPU_BUSY"
    LOCAL_NO_GPU = "LOCAL_NO_GPU"
    WAITING_FOR_MACHINE = "WAITING_FOR_MACHINE"
    MACHINE_CEILING = "MACHINE_CEILING"
    MACHINE_TOO_DEAR = "MACHINE_TOO_DEAR"
    MACHINE_COST_LIMIT = "MACHINE_COST_LIMIT"
    NO_MACHINE_OFFERED = "NO_MACHINE_OFFERED"
    MACHINES_FAILED = "MACHINES_FAILED"
    MACHINE_UNREADABLE = "MACHINE_UNREADABLE"
    ASKING_FOR_MACHINE = "ASKING_FOR_MACHINE"
    NOT_WAITING = "NOT_WAITING"


class Kind(StrEnum):
    """Says what it takes to end a job's wait: time, another request, or somebody with rights."""

    WAIT = "wait"
    CHANGE = "change"
    ADMIN = "admin"


class Reason(Struct, frozen=True, kw_only=True):
    code: Code
    kind: Kind
    sentence: str
    label: str
    """A few words, for counting jobs by it."""
    refusals: tuple[Refusal, ...] = ()
    """Why the workers that come closest refuse the job, where it is a matter of workers."""
    impossible: bool = False
    """No registered worker could ever take the job."""
    fixes: tuple[str, ...] = ()
    """What would help; part of the explanation that the API gives."""
    advice: tuple[str, ...] = ()
    """What a person at a command line does next, where the explanation brings no fixes."""
    trouble: str = ""
    """The client's trouble whose next steps help here, too."""
