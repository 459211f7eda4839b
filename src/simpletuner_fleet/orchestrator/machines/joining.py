"""Lets a machine's worker join: it shows its one-time token and gets a token of its own."""

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import InvalidToken
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.provisioning.machine import (
    MAY_JOIN,
    Machine,
    MachineInput,
    MachineState,
    moved,
)
from simpletuner_fleet.core.provisioning.offers import worker_labels, worker_type_of
from simpletuner_fleet.core.provisioning.upkeep import HEARD_AGAIN_WITHIN_S
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.machines.machine_rows import save_machine

UNKNOWN = "Invalid token: no machine is expected with it."
USED = "Invalid token: it was used already, and is good for one machine once."
LATE = "Invalid token: its time to join is over."
START_ANEW = "Let the pool start another machine."


class JoinedMachine(Struct, frozen=True, kw_only=True):
    worker_id: str
    name: str
    token: str


async def join(fleet: Fleet, join_token: str, home: str) -> JoinedMachine:
    """Returns the worker and its token.

    A repeat from the same folder gets the same answer until the worker has registered: an answer may be lost.
    """
    join_hash = tokens.hashed(join_token)

    def step(transaction: Transaction) -> JoinedMachine:
        machine = transaction.tx.machine_by_join_hash(join_hash)
        if machine is None:
            raise InvalidToken(UNKNOWN, next_step=START_ANEW)
        if machine.home and machine.home != home:
            raise InvalidToken(USED, next_step=START_ANEW)
        if transaction.now >= max(machine.join_until, fleet.began_at + HEARD_AGAIN_WITHIN_S):
            raise InvalidToken(LATE, next_step=START_ANEW)
        token = transaction.ids.derived_token(tokens.WORKER, f"machine:{machine.id}:{home}")
        worker = (
            _first(transaction, machine, home, token)
            if machine.state in MAY_JOIN
            else _again(transaction, machine)
        )
        return JoinedMachine(worker_id=worker.id, name=worker.name, token=token)

    return await fleet.act(step)


def _first(transaction: Transaction, machine: Machine, home: str, token: str) -> Worker:
    pool = transaction.tx.pool(machine.pool)
    if pool is None:
        raise InvalidToken(UNKNOWN, next_step=START_ANEW)
    worker = Worker(
        id=transaction.ids.new("w"),
        name=machine.name,
        token_hash=tokens.hashed(token),
        token_created_at=transaction.now,
        created_at=transaction.now,
        chosen_type=worker_type_of(pool),
        labels=worker_labels(pool),
        spot=machine.spot,
        audience=pool.audience,
    )
    transaction.add_worker(worker)
    transaction.record(
        Event(
            type=EventType.WORKER_CREATED,
            actor=ORCHESTRATOR,
            target_type="worker",
            target_id=worker.id,
            details={"name": worker.name, "labels": worker.labels, "worker_type": worker.worker_type},
        )
    )
    joined = moved(replace(machine, home=home, worker_id=worker.id), MachineInput.JOIN, transaction.now)
    save_machine(transaction, machine, joined)
    return worker


def _again(transaction: Transaction, machine: Machine) -> Worker:
    worker = transaction.tx.worker(machine.worker_id)
    if machine.state is not MachineState.JOINED or worker is None or worker.registered_at is not None:
        raise InvalidToken(USED, next_step=START_ANEW)
    return worker
