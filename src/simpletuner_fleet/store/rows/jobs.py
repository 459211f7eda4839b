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
from simpletuner_fleet.core.money.rates import Rates
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.store.rows.batches import Table
from simpletuner_fleet.store.rows.codec import (
    JSON_LIST,
    TRUTH,
    Codec,
    Selection,
    enum_codec,
    json_codec,
    optional,
    optional_enum,
)
from simpletuner_fleet.store.rows.codec import RowCodec as RowCodec

_encode = msgspec.json.Encoder(order="deterministic").encode
_object: Callable[[str], dict[str, Any]] = msgspec.json.Decoder(dict[str, Any]).decode
_requirements: Callable[[str], Requirements] = msgspec.json.Decoder(Requirements).decode


@lru_cache(maxsize=4096)
def requirements_text(requires: Requirements) -> str:
    return _encode(requires).decode()


@lru_cache(maxsize=4096)
def requirements_of(text: str) -> Requirements:
    return _requirements(text)


def progress_text(progress: Progress) -> str:
    return _encode(progress.fields()).decode()


def progress_of(text: str) -> Progress:
    """Reads progress as a worker reports it: rows may be older than the rules about progress."""
    return read_progress(_object(text))


FIXED_IN_JOBS = frozenset(
    {"seq", "config_name", "config_version", "requires", "class_id", "owner", "created_at"}
    | {"depends_on", "retry_of", "resume_from", "team", "visibility"}
)
"""What is fixed is set when the row is added; a save leaves it alone, and with it the indexes over it."""
FIXED_IN_ATTEMPTS = frozenset({"worker_id", "worker_name", "offered_at", "gpu_kind", "hourly_micros"})
OFTEN_IN_JOBS = frozenset(
    {"id", "state", "progress", "started_at", "finished_at", "results", "version"} | {"spent_micros"}
)
OFTEN_IN_ATTEMPTS = frozenset(
    {"id", "job_id", "number", "epoch"}
    | {"state", "accepted_at", "started_at", "ended_at", "outcome", "exit_code", "checkpoint_step"}
)
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
RATES = json_codec(Rates)
JOBS = RowCodec(Job, JOB_CODECS, FIXED_IN_JOBS, OFTEN_IN_JOBS)
ATTEMPTS = RowCodec(
    Attempt,
    {
        "state": enum_codec(AttemptState),
        "gpus": JSON_LIST,
        "gpu_indices": json_codec(tuple[int, ...]),
        "outcome": optional_enum(Outcome),
        "stopping": optional(json_codec(Stopping)),
        "saving": optional(json_codec(Saving)),
        "validating": optional(json_codec(Validating)),
        "rates": RATES,
    },
    FIXED_IN_ATTEMPTS,
    OFTEN_IN_ATTEMPTS,
)
JOB_TABLE = Table(name="jobs", columns=JOBS.columns, fixed=FIXED_IN_JOBS, guard="version")
JOB_OFTEN_TABLE = Table(
    name="jobs", columns=JOBS.columns, fixed=frozenset(JOBS.columns) - OFTEN_IN_JOBS, guard="version"
)
JOB_EDIT_TABLE = Table(
    name="jobs", columns=JOBS.columns, fixed=FIXED_IN_JOBS - {"requires", "class_id"}, guard="version"
)
"""What a waiting job asks of its worker may be edited: seldom, and with the other columns."""
EDITED_JOB = Selection[Job](JOB_EDIT_TABLE.update_columns[:-1], JOB_CODECS)
ATTEMPT_TABLE = Table(name="attempts", columns=ATTEMPTS.columns, key=4, fixed=FIXED_IN_ATTEMPTS)
"""Found by its id, job, number and epoch, of which none ever changes."""
ATTEMPT_OFTEN_TABLE = Table(
    name="attempts", columns=ATTEMPTS.columns, key=4, fixed=frozenset(ATTEMPTS.columns) - OFTEN_IN_ATTEMPTS
)
