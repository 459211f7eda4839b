"""Lets those who may administer workers manage them."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from simpletuner_fleet.core.bounds import Count, FreeText, Seconds
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.money.prices import gpu_price
from simpletuner_fleet.core.workers.worker import Worker, WorkerStatus
from simpletuner_fleet.engine.memory.gpu_history import GpuPoint
from simpletuner_fleet.http.api.admin.connection_commands import (
    ConnectionCommands,
    connection_command,
    connection_commands,
)
from simpletuner_fleet.http.api.admin.sessions import require_fresh_login
from simpletuner_fleet.http.api.deps import JoinAddress, deps_of
from simpletuner_fleet.http.edge.routes import Call, Route, rfc3339
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.http.views.workers import WorkerListView, WorkerView, worker_view
from simpletuner_fleet.orchestrator.workers import administer
from simpletuner_fleet.orchestrator.workers.administer import CreateWorker
from simpletuner_fleet.ports import View
from simpletuner_fleet.queries import read_models
from simpletuner_fleet.queries.worker_details import with_newest_heartbeat

TAGS = ("administration",)
PERMISSION = "admin.workers"
MAX_IDS_CHARS = 8000


class CreateWorkerBody(CreateWorker, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes the worker to create. A misspelt choice is an error, not ignored."""


class WorkerToken(Struct, kw_only=True):
    worker_id: str
    token: str
    """Shown in this answer and never again."""
    name: str
    worker_type: str
    labels: dict[str, str]
    connection_command: str
    connection_commands: ConnectionCommands
    """The same for other ways to install and run it."""
    address: JoinAddress
    """The address of this server that these commands name, and how sure it is."""


class Pulse(Struct, kw_only=True):
    """Holds the figures of a worker that change with every heartbeat, which is too often for an event."""

    last_heartbeat: str | None
    memory_used_gb: dict[str, float | None]
    """The samples by the GPU's uuid, as the worker reported them last."""
    read_at: dict[str, str | None]
    """When it read each: a driver may be slow, and a worker away."""


class PulsesView(Struct):
    workers: dict[str, Pulse]


class WorkerListQuery(Struct, kw_only=True):
    status: list[WorkerStatus] = []
    label: list[str] = []
    """`key=glob`; may be repeated."""
    local: bool = False
    """Whether to list the agent beside this server too, which nobody created."""


class PulsesQuery(Struct, kw_only=True):
    ids: Annotated[str, Meta(max_length=MAX_IDS_CHARS)] = ""
    """Of these workers, with commas between; empty: of all."""


class DrainBody(Struct, kw_only=True, forbid_unknown_fields=True):
    note: FreeText = ""
    timeout_s: Seconds | None = None
    """After so long what still runs there is stopped and goes on elsewhere; null waits for it to end."""
    checkpoint_first: bool = True
    """Whether each trainer is asked for a checkpoint before it is stopped at the deadline."""


class ChangeWorkerBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Describes a change of a worker. What is left out stays as it is."""

    labels: dict[FreeText, FreeText] | UnsetType = UNSET
    """These replace all labels: what is left out is removed."""
    price_micros: Count | UnsetType | None = UNSET
    """What an hour of one of its GPUs costs, in millionths of the currency's unit; null: nobody says so of this worker."""


async def list_workers(call: Call[None]) -> WorkerListView:
    query: WorkerListQuery = call.query
    workers = await read_models.workers(
        deps_of(call).fleet, query.status, [_label(text) for text in query.label]
    )
    return WorkerListView([_shown(call, seen) for seen in workers if query.local or not seen.worker.local])


async def get_worker(call: Call[Any]) -> WorkerView:
    return _shown(call, await read_models.one_worker(deps_of(call).fleet, call.path["id"]))


async def pulses(call: Call[None]) -> PulsesView:
    fleet, wanted = deps_of(call).fleet, [id for id in call.query.ids.split(",") if id]

    def look(view: View) -> list[Worker]:
        named = [view.worker(id) for id in wanted]
        return [worker for worker in named if worker] if wanted else view.workers()

    return PulsesView(
        {
            worker.id: _pulse(with_newest_heartbeat(fleet, worker), fleet.gpu_history.latest(worker.id))
            for worker in await fleet.read(look)
        }
    )


def _pulse(worker: Worker, latest: dict[str, GpuPoint]) -> Pulse:
    return Pulse(
        last_heartbeat=rfc3339(worker.last_heartbeat),
        memory_used_gb={uuid: point.memory_used_gb for uuid, point in latest.items()},
        read_at={uuid: rfc3339(point.at) for uuid, point in latest.items()},
    )


async def create_worker(call: Call[CreateWorkerBody]) -> WorkerToken:
    require_fresh_login(call)
    worker, token = await administer.create_worker(deps_of(call).fleet, call.body, call.actor)
    return _with_token(call, worker, token)


async def rotate_token(call: Call[None]) -> WorkerToken:
    require_fresh_login(call)
    worker, token = await administer.rotate_token(deps_of(call).fleet, call.path["id"], call.actor)
    return _with_token(call, worker, token)


async def drain(call: Call[DrainBody | None]) -> WorkerView:
    options = call.body or DrainBody()
    await administer.drain(
        deps_of(call).fleet,
        call.path["id"],
        options.note,
        call.actor,
        timeout_s=options.timeout_s,
        checkpoint_first=options.checkpoint_first,
    )
    return await get_worker(call)


async def resume(call: Call[None]) -> WorkerView:
    await administer.resume(deps_of(call).fleet, call.path["id"], call.actor)
    return await get_worker(call)


async def change_worker(call: Call[ChangeWorkerBody]) -> WorkerView:
    fleet, worker_id, body = deps_of(call).fleet, call.path["id"], call.body
    if body.labels is not UNSET:
        await administer.set_labels(fleet, worker_id, body.labels, call.actor)
    if body.price_micros is not UNSET:
        await administer.set_price(fleet, worker_id, body.price_micros, call.actor)
    return await get_worker(call)


async def delete_worker(call: Call[None]) -> Done:
    await administer.delete_worker(deps_of(call).fleet, call.path["id"], call.actor)
    return Done(id=call.path["id"])


def _label(text: str) -> tuple[str, str]:
    key, equals, pattern = text.partition("=")
    if not equals or not key:
        raise Invalid("Write a required label as key=value; the value may contain wildcards.", path="$.label")
    return key, pattern


def _shown(call: Call[Any], seen: read_models.SeenWorker) -> WorkerView:
    fleet = deps_of(call).fleet
    worker = with_newest_heartbeat(fleet, seen.worker)
    shown = worker_view(worker, seen.held, fleet.policy, fleet.clock.now(), seen.gpu_holders)
    prices = fleet.organisation.prices
    known = {price for gpu in worker.gpus if (price := gpu_price(prices, worker, gpu)) is not None}
    shown.effective_price_micros = known.pop() if len(known) == 1 else None
    return shown


def _with_token(call: Call[Any], worker: Worker, token: str) -> WorkerToken:
    deps = deps_of(call)
    address = deps.join_address(call)
    registration = (worker, token, address.url, deps.fingerprint)
    return WorkerToken(
        worker_id=worker.id,
        token=token,
        name=worker.name,
        worker_type=worker.worker_type,
        labels=worker.labels,
        connection_command=connection_command(*registration),
        connection_commands=connection_commands(*registration),
        address=address,
    )


ROUTES = [
    Route(
        "GET",
        "/api/admin/workers",
        list_workers,
        PERMISSION,
        answer=WorkerListView,
        summary="List all workers",
        query=WorkerListQuery,
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/admin/pulses",
        pulses,
        PERMISSION,
        answer=PulsesView,
        summary="Workers' last heartbeats and the memory in use on their GPUs",
        query=PulsesQuery,
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/admin/workers",
        create_worker,
        PERMISSION,
        CreateWorkerBody,
        WorkerToken,
        "Create a worker and its token",
        status=201,
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/admin/workers/{id}",
        get_worker,
        PERMISSION,
        answer=WorkerView,
        summary="One worker",
        tags=TAGS,
    ),
    Route(
        "PATCH",
        "/api/admin/workers/{id}",
        change_worker,
        PERMISSION,
        ChangeWorkerBody,
        WorkerView,
        "Set a worker's labels, or what its GPUs cost",
        tags=TAGS,
    ),
    Route(
        "DELETE",
        "/api/admin/workers/{id}",
        delete_worker,
        PERMISSION,
        answer=Done,
        summary="Remove a worker that is offline",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/admin/workers/{id}/drain",
        drain,
        PERMISSION,
        DrainBody,
        WorkerView,
        "Let a worker finish what it runs and offer it nothing more",
        body_required=False,
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/admin/workers/{id}/resume",
        resume,
        PERMISSION,
        answer=WorkerView,
        summary="Undo a drain",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/admin/workers/{id}/token",
        rotate_token,
        PERMISSION,
        answer=WorkerToken,
        summary="Rotate a worker's token; the old one is refused at once",
        tags=TAGS,
    ),
]
