"""Decides over all pools what becomes of the existing machines, and which new ones are brought."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.provisioning.growth import FleetNow, Wanted, grow
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.provisioning.money import budget_is_used_up, spending_towards
from simpletuner_fleet.core.provisioning.offers import ListedMachine, ProviderSnapshot
from simpletuner_fleet.core.provisioning.pool import MachinePool, NoMachine
from simpletuner_fleet.core.provisioning.upkeep import Upkeep, WorkerFacts, dropped, strays, tended


class Stray(Struct, frozen=True, kw_only=True):
    pool: str
    listed: ListedMachine


class ProvisioningDecision(Struct, frozen=True, kw_only=True):
    changed: tuple[tuple[Machine, Machine], ...] = ()
    """Each machine before and after, where it is another."""
    strays: tuple[Stray, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    no_machine: Mapping[str, dict[str, NoMachine]] = {}
    """By pool and line."""


def decide(
    pools: Sequence[MachinePool],
    machines: Sequence[Machine],
    snapshots: Mapping[str, ProviderSnapshot],
    workers: Mapping[str, WorkerFacts],
    fleet: FleetNow,
    our_beginning: str,
) -> ProvisioningDecision:
    """Decides on all machines that are not gone.

    Of those that are, `machines` has what was made and went this month, for its cost, and what has failed since
    yesterday. `snapshots` has no pool that did not answer.
    """
    taken = frozenset(machine.provider_id for machine in machines if machine.is_live and machine.provider_id)
    changed: list[tuple[Machine, Machine]] = []
    after_of: dict[str, list[Machine]] = {}
    for pool in pools:
        own = [machine for machine in machines if machine.pool == pool.name]
        if pool.name in fleet.being_looked_at:
            after_of[pool.name] = own
            continue
        upkeep = Upkeep(
            pool=pool,
            now=fleet.now,
            snapshot=snapshots.get(pool.name),
            workers=workers,
            budget_over=budget_is_used_up(pool, spending_towards(pool, own, fleet.now), fleet.lead_s),
            lead_s=fleet.lead_s,
            listening_since=fleet.listening_since,
            under_way=fleet.under_way,
        )
        over, there = _over_and_there(own, upkeep.snapshot)
        after = tended(there, upkeep, taken)
        after_of[pool.name] = [*over, *after]
        changed += [pair for pair in zip(there, after, strict=True) if pair[0] != pair[1]]
    # Those of a pool that cannot be read are known all the same: they are no strays where another pool sees them.
    others = [machine for machine in machines if machine.pool not in after_of]
    live = [machine for rows in (*after_of.values(), others) for machine in rows if machine.is_live]
    unknown = _unknown(pools, snapshots, live, our_beginning)
    growth = grow(pools, snapshots, after_of, fleet)
    changed += [(one, dropped(one, fleet.now)) for one in live if one.id in growth.needless]
    return ProvisioningDecision(
        changed=tuple(changed),
        strays=tuple(unknown),
        wanted=tuple(growth.wanted),
        no_machine=growth.no_machine,
    )


def _over_and_there(
    machines: Sequence[Machine], snapshot: ProviderSnapshot | None
) -> tuple[list[Machine], list[Machine]]:
    """Separates machines that are gone and no longer listed: they count for money alone.

    There may be thousands of them in a month.
    """
    shown = {word for one in (snapshot.machines if snapshot else ()) for word in (one.provider_id, one.name)}
    over: list[Machine] = []
    there: list[Machine] = []
    for machine in machines:
        is_over = machine.state is MachineState.GONE and not (
            machine.provider_id in shown or machine.name in shown
        )
        (over if is_over else there).append(machine)
    return over, there


def _unknown(
    pools: Sequence[MachinePool],
    snapshots: Mapping[str, ProviderSnapshot],
    machines: Sequence[Machine],
    beginning: str,
) -> list[Stray]:
    """Returns each stray once, though two pools of one account see the same machines."""
    unknown: list[Stray] = []
    seen: set[tuple[str, str]] = set()
    for pool in pools:
        snapshot = snapshots.get(pool.name)
        for listed in strays(snapshot, machines, beginning) if snapshot else ():
            key = (pool.request.provider, listed.provider_id)
            if key not in seen:
                seen.add(key)
                unknown.append(Stray(pool=pool.name, listed=listed))
    return unknown


def with_state_for_people(
    pool: MachinePool, no_machine: dict[str, NoMachine], trouble: str, unseen_at: float | None
) -> MachinePool:
    """Returns the pool with what people are told of it; `unseen_at` is now if its provider did not answer."""
    unseen_since = None if unseen_at is None else pool.unseen_since or unseen_at
    return replace(pool, no_machine=no_machine, trouble=trouble, unseen_since=unseen_since)
