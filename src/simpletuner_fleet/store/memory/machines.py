"""Keeps pools and machines in the memory store."""

from simpletuner_fleet.core.provisioning.machine import Machine, UnreadableMachine
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.store.memory.tables import Tables


class MemoryMachinesView:
    _tables: Tables

    def pool(self, name: str) -> MachinePool | None:
        return self._tables.pools.get(name)

    def pools(self) -> list[MachinePool]:
        return [self._tables.pools[name] for name in sorted(self._tables.pools)]

    def machine(self, machine_id: str) -> Machine | None:
        return self._tables.machines.get(machine_id)

    def machine_by_join_hash(self, join_hash: str) -> Machine | None:
        rows = self._tables.machines.values()
        return next((one for one in rows if join_hash and one.join_hash == join_hash), None)

    def machines_since(self, gone_after: float) -> list[Machine]:
        rows = self._tables.machines
        return [
            rows[id] for id in sorted(rows) if (gone_at := rows[id].gone_at) is None or gone_at > gone_after
        ]

    def machines_that_count(self, *, gone_after: float, made_after: float) -> list[Machine]:
        return [
            one
            for one in self.machines_since(min(gone_after, made_after))
            if one.gone_at is None or one.gone_at > gone_after or (one.gone_at > made_after and one.rates)
        ]

    def unreadable_machines(self) -> list[UnreadableMachine]:
        return []


class MemoryMachinesTx(MemoryMachinesView):
    def put_pool(self, pool: MachinePool) -> None:
        self._tables.set_pool(pool.name, pool)

    def delete_pool(self, name: str) -> None:
        self._tables.set_pool(name, None)

    def put_machine(self, machine: Machine) -> None:
        self._tables.set_machine(machine.id, machine)
