"""Converts jobs and attempts to rows: the columns are the fields, and a codec says how a value is stored.

Their texts were made storable when the rows were set, so that memory holds what will be read back.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from simpletuner_fleet.core.jobs.job import (
    Attempt,
    AttemptState,
    Hold,
    Job,
    JobState,
    Outcome,
    Requirements,
    Results,
    Saving,
    Stopping,
    Validating,
)
from simpletuner_fleet.core.jobs.progress import Progress, read_progress
from simpletuner_fleet.core.jobs.requests.deleting import AttemptFiles, DeletedJob
from simpletuner_fleet.core.money.rates import Rates
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.store.rows.batches import Table
from simpletuner_fleet.store.rows.codec import (
    JSON_LIST,
    NO_ITEMS,
    TRUTH,
    Codec,
    enum_codec,
    json_codec,
    optional,
    optional_enum,
)
from simpletuner_fleet.store.rows.codec import RowCodec as RowCodec

_encode = msgspec.json.Encoder(order="deterministic").encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_object: Callable[[str], dict[str, Any]] = msgspec.json.Decoder(dict[str, Any]).decode
_requirements: Callable[[str], Requirements] = msgspec.json.Decoder(Requirements).decode


@lru_cache(maxsize=4096)
def requirements_text(requires: Requirements) -> str:
    return _encode(requires).decode()


@lru_cache(maxsize=4096)
def requirements_of(text: str) -> Requirements:
    return _requirements(text)


def progress_text(progress: Progress) -> str:
    """Returns what was said, by name. Only the fields beside the known ones have to be put among them first."""
    return _encode_sorted(progress.fields() if progress.more else progress).decode()


def progress_of(text: str) -> Progress:
    """Reads progress as a worker reports it: rows may be older than the rules about progress."""
    return read_progress(_object(text))


FIXED_IN_JOBS = frozenset(
    {"seq", "config_name", "config_version", "owner", "created_at"}
    | {"depends_on", "retry_of", "resume_from", "team", "visibility"}
)
"""What is fixed is set when the row is added; a save leaves it alone, and with it the indexes over it."""
FIXED_IN_ATTEMPTS = frozenset({"worker_id", "worker_name", "offered_at", "gpu_kind", "hourly_micros"})
_PROGRESS_OF_JOB = frozenset({"id", "progress", "started_at", "spent_micros", "version"})
"""What a running job changes: no index is over these columns, and no trigger watches them."""
_STATE_OF_JOB = _PROGRESS_OF_JOB | {"state", "finished_at", "results"}
_PLACE_OF_JOB = _STATE_OF_JOB | {
    *("hold", "not_before", "epoch", "attempts", "attempt_id", "worker_id", "gpus"),
}
"""What an offer changes."""
_ASKED_BY_JOB = frozenset({"requires", "class_id"})
"""What a waiting job asks of its worker may be edited: seldom, and with the other columns."""
JOB_UPDATES = (
    *(_PROGRESS_OF_JOB, _STATE_OF_JOB, _PLACE_OF_JOB),
    frozenset(Job.__struct_fields__) - FIXED_IN_JOBS - _ASKED_BY_JOB,
)
_PROGRESS_OF_ATTEMPT = frozenset(
    {"id", "job_id", "number", "epoch", "accepted_at", "started_at", "exit_code", "checkpoint_step"}
)
"""No index is over these columns but those by which the row is found."""
ATTEMPT_UPDATES = (_PROGRESS_OF_ATTEMPT, _PROGRESS_OF_ATTEMPT | {"state", "ended_at", "outcome"})
"""What one attempt after another changes while all goes well."""
JOB_CODECS = {
    "requires": Codec(requirements_text, requirements_of),
    "state": enum_codec(JobState),
    "results": enum_codec(Results),
    "hold": enum_codec(Hold),
    "retry_on_failure": TRUTH,
    "visibility": enum_codec(Visibility),
    "depends_on": JSON_LIST,
    "lost_workers": JSON_LIST,
    "refused_by": JSON_LIST,
    "gpus": JSON_LIST,
    "tags": JSON_LIST,
    "progress": optional(Codec(progress_text, progress_of)),
}
RATES = json_codec(Rates)._replace(words=NO_ITEMS)
JOBS = RowCodec(Job, JOB_CODECS, FIXED_IN_JOBS, JOB_UPDATES)
ATTEMPTS = RowCodec(
    Attempt,
    {
        "state": enum_codec(AttemptState),
        "gpus": JSON_LIST,
        "gpu_indices": json_codec(tuple[int, ...])._replace(words=NO_ITEMS),
        "outcome": optional_enum(Outcome),
        "stopping": optional(json_codec(Stopping)),
        "saving": optional(json_codec(Saving)),
        "validating": optional(json_codec(Validating)),
        "rates": RATES,
    },
    FIXED_IN_ATTEMPTS,
    ATTEMPT_UPDATES,
)
DELETED_JOBS = RowCodec(
    DeletedJob,
    {
        "visibility": enum_codec(Visibility),
        "attempts": json_codec(tuple[AttemptFiles, ...]),
        "files_left": TRUTH,
    },
)
JOB_TABLE = Table(name="jobs", columns=JOBS.columns, guard="version")
ATTEMPT_TABLE = Table(name="attempts", columns=ATTEMPTS.columns, key=4)
"""Found by its id, job, number and epoch, of which none ever changes."""
JOB_UPDATE_TABLES = tuple(JOB_TABLE.narrowed(columns) for columns in JOBS.updates)
ATTEMPT_UPDATE_TABLES = tuple(ATTEMPT_TABLE.narrowed(columns) for columns in ATTEMPTS.updates)
