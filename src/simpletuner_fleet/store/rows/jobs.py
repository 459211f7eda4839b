"""Jobs and attempts as rows: the columns are the fields, and a codec says how a value is stored."""

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
    Stopping,
)
from simpletuner_fleet.core.jobs.progress import Progress, read_progress
from simpletuner_fleet.store.rows.batches import Table
from simpletuner_fleet.store.rows.codec import JSON_LIST, TEXT, TRUTH, Codec, enum_codec, json_codec, optional
from simpletuner_fleet.store.rows.codec import RowCodec as RowCodec
from simpletuner_fleet.store.rows.text import storable_json

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
    return _encode(storable_json(progress.fields())).decode()


def progress_of(text: str) -> Progress:
    """Reads it as a worker's: rows may be older than the rules about progress."""
    return read_progress(_object(text))


JOBS = RowCodec(
    Job,
    {
        "config_name": TEXT,
        "requires": Codec(requirements_text, requirements_of),
        "state": enum_codec(JobState),
        "hold": enum_codec(Hold),
        "retry_on_failure": TRUTH,
        "depends_on": JSON_LIST,
        "name": optional(TEXT),
        "lost_workers": JSON_LIST,
        "gpus": JSON_LIST,
        "progress": optional(Codec(progress_text, progress_of)),
        "error": optional(TEXT),
        "reason": optional(TEXT),
    },
)
ATTEMPTS = RowCodec(
    Attempt,
    {
        "worker_name": TEXT,
        "state": enum_codec(AttemptState),
        "gpus": JSON_LIST,
        "gpu_indices": json_codec(tuple[int, ...]),
        "outcome": optional(enum_codec(Outcome)),
        "error": optional(TEXT),
        "last_lines": optional(TEXT),
        "failure_class": optional(TEXT),
        "failure_evidence": optional(TEXT),
        "stopping": optional(json_codec(Stopping)),
        "reason": optional(TEXT),
    },
)
JOB_TABLE = Table(
    name="jobs",
    columns=JOBS.columns,
    fixed=frozenset(
        {"seq", "config_name", "config_version", "requires", "class_id", "owner", "created_at"}
        | {"depends_on", "retry_of"}
    ),
    guard="version",
)
"""What is fixed is set when the job is added; a save leaves it alone, and with it the indexes over it."""
ATTEMPT_TABLE = Table(name="attempts", columns=ATTEMPTS.columns, key=4)
"""Found by its id, job, number and epoch, of which none ever changes."""
