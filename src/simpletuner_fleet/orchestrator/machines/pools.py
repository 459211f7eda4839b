"""Lets people make, change and delete pools, and end machines by hand."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid, NameTaken, no_such_machine, no_such_pool
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.provisioning.machine import (
    IN_USE,
    Machine,
    MachineEndReason,
    MachineInput,
    MachineState,
    moved,
)
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolRequest, check_pool, check_same_place
from simpletuner_fleet.core.restoring import HANDS_OFF
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.stored_secrets import stored_secrets
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.machines.machine_rows import save_machine
from simpletuner_fleet.orchestrator.organising.naming import known_person, known_team
from simpletuner_fleet.ports import View

CheckSettings = Callable[[MachinePool], None]


async def save_pool(
    fleet: Fleet,
    name: str,
    request: PoolRequest,
    actor: Actor,
    check_settings: CheckSettings,
    *,
    new: bool = False,
) -> MachinePool:
    """Makes a pool, or changes it for future machines. Where it gets them cannot change while it has some."""
    check_pool(name, request)

    def step(transaction: Transaction) -> MachinePool:
        asked = _with_ids(transaction, request)
        before = transaction.tx.pool(name)
        if before and new:
            raise NameTaken(
                f"There is a pool {name} already.", next_step="Choose another name, or change that one."
            )
        pool = MachinePool(
            name=name,
            request=asked,
            created_at=before.created_at if before else transaction.now,
            created_by=before.created_by if before else actor.id,
        )
        if before and _has_machines(transaction.tx, name):
            check_same_place(before.request, asked)
        if request.secret and not stored_secrets(transaction.tx, [request.secret]):
            raise Invalid(
                f"There is no secret '{request.secret}'.",
                path="$.secret",
                next_step=f"Store it with 'simpletuner secrets set {request.secret}'.",
            )
        check_settings(pool)
        transaction.tx.put_pool(pool)
        _keep_machines_for(transaction, pool)
        transaction.record(_event(EventType.POOL_SAVED, name, actor, **_said(transaction, pool)))
        transaction.publish("pool", id=name, audience=pool.audience)
        return pool

    return await fleet.act(step)


def _with_ids(transaction: Transaction, request: PoolRequest) -> PoolRequest:
    """Replaces names, which may change, by ids; raises Invalid for an unknown person or team."""
    teams = [known_team(transaction, called, "$.teams") for called in request.teams]
    people = [known_person(transaction.tx, called, "$.people") for called in request.people]
    return replace(request, teams=tuple(dict.fromkeys(teams)), people=tuple(dict.fromkeys(people)))


def _keep_machines_for(transaction: Transaction, pool: MachinePool) -> None:
    """Gives the pool's audience to its workers. What runs there goes on, whoever it belongs to."""
    for machine in transaction.tx.machines_since(float("inf")):
        worker = transaction.tx.worker(machine.worker_id) if machine.worker_id else None
        if machine.pool == pool.name and worker is not None and worker.audience != pool.audience:
            transaction.save_worker(replace(worker, audience=pool.audience))


def _said(transaction: Transaction, pool: MachinePool) -> dict[str, Any]:
    """Returns what the audit log keeps: who may use the pool, by their present names."""
    names = transaction.organisation.names
    said: dict[str, Any] = {"provider": pool.request.provider}
    for field in ("teams", "people"):
        if named := getattr(pool.request, field):
            said[field] = [names.get(one, one) for one in named]
    return said


async def delete_pool(fleet: Fleet, name: str, actor: Actor) -> MachinePool:
    """Deletes a pool. Its machines finish what they run and are destroyed; the pool goes with the last of them."""

    def step(transaction: Transaction) -> MachinePool:
        pool = existing_pool(transaction.tx, name)
        if pool.deleted_at is None:
            pool = replace(pool, deleted_at=transaction.now)
            transaction.record(_event(EventType.POOL_DELETED, name, actor))
            transaction.publish("pool", id=name, audience=pool.audience)
            if _has_machines(transaction.tx, name):
                transaction.tx.put_pool(pool)
            else:
                transaction.tx.delete_pool(name)
        return pool

    return await fleet.act(step)


async def take_in_hand(fleet: Fleet, actor: Actor) -> bool:
    """Resumes the pools after a restore, once somebody has made sure that no other server uses them.

    Returns False where it was so already.
    """

    def step(transaction: Transaction) -> bool:
        if transaction.tx.setting(HANDS_OFF) is None:
            return False
        transaction.tx.delete_setting(HANDS_OFF)
        transaction.record(_event(EventType.POOLS_RESUMED, "", actor))
        return True

    return await fleet.act(step)


async def end_machine(fleet: Fleet, machine_id: str, actor: Actor, *, now: bool) -> Machine:
    """Ends a machine: it finishes what it runs, or is destroyed at once."""

    def step(transaction: Transaction) -> Machine:
        machine = existing_machine(transaction.tx, machine_id)
        after = _ended(machine, transaction.now, at_once=now)
        if after != machine:
            save_machine(transaction, machine, after, actor)
        return after

    return await fleet.act(step)


def _ended(machine: Machine, now: float, *, at_once: bool) -> Machine:
    if machine.state in (MachineState.DESTROYING, MachineState.GONE):
        return machine
    if machine.state is MachineState.WANTED:
        return moved(machine, MachineInput.DROP, now, MachineEndReason.ASKED_FOR)
    if machine.state in IN_USE and not at_once:
        draining = machine.state is MachineState.DRAINING
        return machine if draining else moved(machine, MachineInput.DRAIN, now, MachineEndReason.ASKED_FOR)
    return moved(machine, MachineInput.DESTROY, now, MachineEndReason.ASKED_FOR)


def existing_pool(view: View, name: str) -> MachinePool:
    pool = view.pool(name)
    if pool is None:
        raise no_such_pool(name)
    return pool


def existing_machine(view: View, machine_id: str) -> Machine:
    machine = view.machine(machine_id)
    if machine is None:
        raise no_such_machine(machine_id)
    return machine


def _has_machines(view: View, name: str) -> bool:
    return any(machine.pool == name for machine in view.machines_since(float("inf"))) or any(
        one.is_live and one.may_be_of(name) for one in view.unreadable_machines()
    )


def _event(type_: EventType, name: str, actor: Actor, **details: Any) -> Event:
    return Event(type=type_, actor=actor, target_type="pool", target_id=name, details=dict(details))
