"""Converts workers to rows. Beside their fields, a row has the key by which names compare."""

from typing import Any

import msgspec

from simpletuner_fleet.core.workers.audience import Audience
from simpletuner_fleet.core.workers.interruption import Interruption
from simpletuner_fleet.core.workers.start_trouble import StartTrouble
from simpletuner_fleet.core.workers.worker import AdminState, Connection, DrainPlan, Gpu, Worker, WorkerType
from simpletuner_fleet.store.rows.batches import Table
from simpletuner_fleet.store.rows.codec import (
    JSON_LIST,
    TRUTH,
    Codec,
    RowCodec,
    enum_codec,
    json_codec,
    json_list,
    optional,
    optional_enum,
    strings,
)
from simpletuner_fleet.store.rows.text import name_key, storable, storable_json

_gpus = json_codec(tuple[Gpu, ...], lambda gpus: storable_json(msgspec.to_builtins(gpus)))
_labels = json_codec(dict[str, str], storable_json)

WORKERS = RowCodec(
    Worker,
    {
        "chosen_type": optional_enum(WorkerType),
        "reported_type": optional_enum(WorkerType),
        "admin": enum_codec(AdminState),
        "connection": enum_codec(Connection),
        "labels": _labels,
        "reported_labels": _labels,
        "gpus": _gpus,
        "trainers": Codec(lambda names: json_list(tuple(map(storable, names))), strings),
        "saves_on_request": optional(Codec(lambda names: json_list(tuple(map(storable, names))), strings)),
        "validates_on_request": optional(
            Codec(lambda names: json_list(tuple(map(storable, names))), strings)
        ),
        "legacy": TRUTH,
        "local": TRUTH,
        "spot": TRUTH,
        "interruption": optional(
            json_codec(Interruption, lambda known: storable_json(msgspec.to_builtins(known)))
        ),
        "audience": optional(json_codec(Audience, lambda known: storable_json(msgspec.to_builtins(known)))),
        "drain_plan": optional(json_codec(DrainPlan)),
        "start_trouble": optional(
            json_codec(StartTrouble, lambda trouble: storable_json(msgspec.to_builtins(trouble)))
        ),
        "datasets": JSON_LIST,
        "former_tokens": JSON_LIST,
        "retired": JSON_LIST,
    },
)
WORKER_TABLE = Table(
    name="workers",
    columns=(*WORKERS.columns, "name_key"),
    guard="version",
)
MARKS_TABLE = Table(name="workers", columns=("id", "message_seq", "last_heartbeat"))


def worker_values(worker: Worker) -> tuple[Any, ...]:
    """Returns the values in the order of WORKER_TABLE's columns."""
    return (*WORKERS.values(worker), name_key(worker.name))
