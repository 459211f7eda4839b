"""Shows Create Worker: a name and options, then the token once, then whether the machine joins or why it fails."""

from msgspec import Struct

from simpletuner_fleet.core.workers.worker import Connection, Worker, WorkerStatus
from simpletuner_fleet.http.api.admin.connection_commands import WHEEL, package
from simpletuner_fleet.http.api.deps import Deps
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import N_, _, ngettext
from simpletuner_fleet.queries.worker_details import Joining, joining
from simpletuner_fleet.web.frame.page import page, spoken
from simpletuner_fleet.web.parts.jobs.demo import demo_job
from simpletuner_fleet.web.parts.refusals import refusal_text
from simpletuner_fleet.web.parts.worker_rows import status_names, tls_text

PERMISSION = "admin.workers"
REFUSALS_SHOWN = 5
REGISTERS_WITHIN_S = 5.0
"""After it has looked at our certificate; who takes longer has probably given up."""
GLOB_CHARS = frozenset("*?[")
COMMANDS = (
    ("uv", N_("uv"), N_("Installs and starts it in one step. Needs uv on the GPU machine.")),
    ("pip", N_("pip"), N_("Installs into the Python environment that is active on the GPU machine.")),
    (
        "systemd",
        N_("systemd"),
        N_(
            "Starts with the machine and comes back after a crash. Needs simpletuner-fleet to be installed there."
        ),
    ),
    (
        "container",
        N_("Container"),
        N_("Replace the image named here with the one that contains your trainer."),
    ),
    (
        "environment",
        N_("Cloud"),
        N_(
            "Environment variables for a cloud machine, where 'simpletuner-fleet worker' is the command to start."
        ),
    ),
)


class CreateQuery(Struct, kw_only=True):
    worker: str = ""


class Step(Struct, frozen=True, kw_only=True):
    done: bool
    text: str
    at: float | None = None
    counts: bool = False
    """Its time runs on."""


class JoinTrouble(Struct, frozen=True, kw_only=True):
    text: str
    at: float


class JoinBox(Struct, frozen=True, kw_only=True):
    worker: Worker
    status: str
    came: bool
    steps: list[Step]
    troubles: list[JoinTrouble]
    demo: str
    """The body of a job for this very machine; empty where it cannot take one."""


async def create(call: Call[None]) -> Reply:
    deps, worker_id = deps_of(call), call.query.worker
    machine = await joining(deps.fleet, worker_id) if worker_id else None
    with spoken(call):
        box = join_box(machine, deps) if machine else None
        return page(
            call,
            "workers/worker_create.html",
            box=box,
            commands=COMMANDS,
            address=deps.join_address(call),
            wheel=package() if package() == WHEEL else "",
            status_names=status_names(),
            may_submit=call.principal.can("queue.submit"),
        )


def join_box(machine: Joining, deps: Deps) -> JoinBox:
    worker = machine.worker
    came = worker.registered_at is not None and worker.registered_at >= worker.token_created_at
    return JoinBox(
        worker=worker,
        status=machine.status,
        came=came,
        steps=_steps(worker, came),
        troubles=_troubles(machine, deps),
        demo=demo_body(worker, machine.status) if came else "",
    )


def _steps(worker: Worker, came: bool) -> list[Step]:
    token_made = Step(done=True, text=_("Token created"), at=worker.token_created_at)
    if not came:
        waiting = _("Waiting for %(worker)s", worker=worker.name)
        return [token_made, Step(done=False, text=waiting, at=worker.token_created_at, counts=True)]
    return [
        token_made,
        Step(done=True, text=_connected_text(worker), at=worker.registered_at),
        Step(done=True, text=_gpus_text(worker)),
    ]


def _connected_text(worker: Worker) -> str:
    tls = tls_text(worker)
    if tls:
        return _("Connected from %(ip)s: %(tls)s", ip=worker.address, tls=tls)
    return _("Connected from %(ip)s", ip=worker.address)


def _gpus_text(worker: Worker) -> str:
    if not worker.gpus:
        return _("No GPU found: it accepts only jobs that need none")
    return ngettext(
        "%(n)s GPU found: %(name)s",
        "%(n)s GPUs found: %(name)s",
        len(worker.gpus),
        name=worker.gpu_name or "",
    )


def _troubles(machine: Joining, deps: Deps) -> list[JoinTrouble]:
    troubles = [JoinTrouble(text=refusal_text(entry), at=entry.at) for entry in machine.refusals]
    troubles += [
        JoinTrouble(
            text=_(
                "%(ip)s rejected this server's certificate. If it is your machine, its --ssl-fingerprint "
                "may be wrong.",
                ip=ip,
            ),
            at=at,
        )
        for ip, at in _turned_away(machine.worker, deps)
    ]
    return sorted(troubles, key=lambda one: -one.at)[:REFUSALS_SHOWN]


def _turned_away(worker: Worker, deps: Deps) -> list[tuple[str, float]]:
    until = deps.fleet.clock.now() - REGISTERS_WITHIN_S
    looks = deps.certificate_looks.between(worker.token_created_at, until)
    registered_at = worker.registered_at or 0.0
    return [(ip, at) for ip, at in looks if ip != worker.address or at > registered_at]


def demo_body(worker: Worker, status: str) -> str:
    """Returns a demo job for this machine, which is chosen by the hostname label that it reports of itself."""
    host = worker.effective_labels.get("hostname", "")
    able = status in (WorkerStatus.IDLE, WorkerStatus.BUSY) and worker.connection is Connection.CONNECTED
    if not able or "demo" not in worker.trainers or not host or GLOB_CHARS & set(host):
        return ""
    gpus = 1 if any(not gpu.unusable for gpu in worker.gpus) else 0
    return demo_job(f"demo on {worker.name}", "worker", gpus, {"hostname": host})


ROUTES = (
    Route("GET", "/admin/workers/create", create, PERMISSION, summary="Create a worker", query=CreateQuery),
)
