"""Declares how a step reads and writes pools and their machines."""

from typing import Protocol

from simpletuner_fleet.core.provisioning.machine import Machine, UnreadableMachine
from simpletuner_fleet.core.provisioning.pool import MachinePool


class MachinesRead(Protocol):
    def pool(self, name: str) -> MachinePool | None: ...
    def pools(self) -> list[MachinePool]:
        """Returns all of them, by name; those too that are deleted and still have machines."""
        ...

    def machine(self, machine_id: str) -> Machine | None: ...
    def machine_by_join_hash(self, join_hash: str) -> Machine | None:
        """Returns the one that may join with the token of this hash."""
        ...

    def machines_since(self, gone_after: float) -> list[Machine]:
        """Returns all that are not gone, and those that went after this time; by id, the order in which they came."""
        ...

    def machines_that_count(self, *, gone_after: float, made_after: float) -> list[Machine]:
        """Returns all that are not gone, and those that went after `gone_after`, by id.

        Of those before that it returns the ones that went after `made_after` and were ever made: they may have cost.
        """
        ...

    def unreadable_machines(self) -> list[UnreadableMachine]:
        """Returns those that the other methods have left out so far, since their rows cannot be read."""
        ...


class MachinesWrite(Protocol):
    def put_pool(self, pool: MachinePool) -> None: ...
    def delete_pool(self, name: str) -> None: ...
    def put_machine(self, machine: Machine) -> None: ...
