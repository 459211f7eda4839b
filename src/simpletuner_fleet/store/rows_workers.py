"""Workers as rows: columns, parameters, and back."""

from typing import Any

import msgspec

from simpletuner_fleet.core.worker import AdminState, Connection, DrainPlan, Gpu, Worker, WorkerType
from simpletuner_fleet.store.database import Row
from simpletuner_fleet.store.rows_jobs import json_list, strings
from simpletuner_fleet.store.text import name_key, storable, storable_json

WORKER_COLUMNS = (
    *("id", "name", "token_hash", "token_created_at", "created_at", "chosen_type", "reported_type", "admin"),
    *("connection", "labels", "reported_labels", "gpus", "trainers", "max_jobs", "legacy", "local"),
    *("agent_version", "home", "incarnation", "message_seq", "registered_at", "last_heartbeat"),
    *("offline_since", "drain_note", "drain_plan", "datasets", "data_bytes", "data_limit_bytes", "address"),
    *("tls", "former_tokens", "version"),
)

_encode = msgspec.json.Encoder(order="deterministic").encode
_labels = msgspec.json.Decoder(dict[str, str]).decode
_plan = msgspec.json.Decoder(DrainPlan).decode
_gpus = msgspec.json.Decoder(tuple[Gpu, ...]).decode


def worker_params(worker: Worker) -> dict[str, Any]:
    return {
        "id": worker.id,
        "name": storable(worker.name),
        "name_key": name_key(worker.name),
        "token_hash": worker.token_hash,
        "token_created_at": worker.token_created_at,
        "created_at": worker.created_at,
        "chosen_type": None if worker.chosen_type is None else worker.chosen_type.value,
        "reported_type": None if worker.reported_type is None else worker.reported_type.value,
        "admin": worker.admin.value,
        "connection": worker.connection.value,
        "labels": _json(worker.labels),
        "reported_labels": _json(worker.reported_labels),
        "gpus": _json(msgspec.to_builtins(worker.gpus)),
        "trainers": json_list(tuple(storable(trainer) for trainer in worker.trainers)),
        "max_jobs": worker.max_jobs,
        "legacy": 1 if worker.legacy else 0,
        "local": 1 if worker.local else 0,
        "agent_version": storable(worker.agent_version),
        "home": storable(worker.home),
        "incarnation": storable(worker.incarnation),
        "message_seq": worker.message_seq,
        "registered_at": worker.registered_at,
        "last_heartbeat": worker.last_heartbeat,
        "offline_since": worker.offline_since,
        "drain_note": storable(worker.drain_note),
        "drain_plan": None if worker.drain_plan is None else _encode(worker.drain_plan).decode(),
        "datasets": json_list(worker.datasets),
        "data_bytes": worker.data_bytes,
        "data_limit_bytes": worker.data_limit_bytes,
        "address": storable(worker.address),
        "tls": worker.tls,
        "former_tokens": json_list(worker.former_tokens),
        "version": worker.version,
    }


def worker_of(row: Row) -> Worker:
    """From a row of WORKER_COLUMNS."""
    return Worker(
        id=row[0],
        name=row[1],
        token_hash=row[2],
        token_created_at=row[3],
        created_at=row[4],
        chosen_type=None if row[5] is None else WorkerType(row[5]),
        reported_type=None if row[6] is None else WorkerType(row[6]),
        admin=AdminState(row[7]),
        connection=Connection(row[8]),
        labels=_labels(row[9]),
        reported_labels=_labels(row[10]),
        gpus=_gpus(row[11]),
        trainers=strings(row[12]),
        max_jobs=row[13],
        legacy=row[14] == 1,
        local=row[15] == 1,
        agent_version=row[16],
        home=row[17],
        incarnation=row[18],
        message_seq=row[19],
        registered_at=row[20],
        last_heartbeat=row[21],
        offline_since=row[22],
        drain_note=row[23],
        drain_plan=None if row[24] is None else _plan(row[24]),
        datasets=strings(row[25]),
        data_bytes=row[26],
        data_limit_bytes=row[27],
        address=row[28],
        tls=row[29],
        former_tokens=strings(row[30]),
        version=row[31],
    )


def _json(value: Any) -> str:
    return _encode(storable_json(value)).decode()
