"""Stores pools and machines in any SQL database."""

import re

import msgspec

from simpletuner_fleet.core.errors import UnreadableRow
from simpletuner_fleet.core.provisioning.machine import Machine, UnreadableMachine
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.store.rows.documents import MACHINES, POOLS
from simpletuner_fleet.store.rows.text import storable_json
from simpletuner_fleet.store.sql.database import Database

_POOL = "SELECT document FROM pools WHERE name = :name"
_POOLS = "SELECT name, document FROM pools ORDER BY name"
_PUT_POOL = (
    "INSERT INTO pools (name, document) VALUES (:name, :document) "
    "ON CONFLICT (name) DO UPDATE SET document = excluded.document"
)
_MACHINE = "SELECT document FROM machines WHERE id = :id"
_JOINING = "SELECT id, document FROM machines WHERE join_hash = :join_hash AND join_hash <> ''"
_SINCE = (
    "SELECT id, document FROM machines WHERE id IN (SELECT id FROM machines WHERE gone_at IS NULL UNION ALL "
    "SELECT id FROM machines WHERE gone_at > :gone_after) ORDER BY id"
)
_THAT_COUNT = (
    "SELECT id, document FROM machines WHERE id IN (SELECT id FROM machines WHERE gone_at IS NULL UNION ALL "
    "SELECT id FROM machines WHERE gone_at > :gone_after UNION ALL "
    "SELECT id FROM machines WHERE gone_at > :made_after AND document NOT LIKE :unmade) ORDER BY id"
)
_UNMADE = '%"rates":[]%'
"""In the document of a machine that was never made. No text within one looks like this: its quotes are escaped."""
_AS_IT_IS = "SELECT gone_at, document FROM machines WHERE id = :id"
_ITS_POOL = re.compile(r'"pool":"([^"\\]+)"')
"""In the document of a machine, also of one that is cut off or has a wrong field; as above, no text looks like this."""
_PUT_MACHINE = (
    "INSERT INTO machines (id, gone_at, join_hash, document) VALUES (:id, :gone_at, :join_hash, :document) "
    "ON CONFLICT (id) DO UPDATE SET gone_at = excluded.gone_at, join_hash = excluded.join_hash, "
    "document = excluded.document"
)


class MachineRowsView:
    _db: Database

    def pool(self, name: str) -> MachinePool | None:
        row = self._db.row(_POOL, {"name": name})
        return None if row is None else POOLS.row(name, row[0])

    def pools(self) -> list[MachinePool]:
        return POOLS.rows(self._db.rows(_POOLS, {}))

    def machine(self, machine_id: str) -> Machine | None:
        row = self._db.row(_MACHINE, {"id": machine_id})
        return None if row is None else MACHINES.row(machine_id, row[0])

    def machine_by_join_hash(self, join_hash: str) -> Machine | None:
        row = self._db.row(_JOINING, {"join_hash": join_hash})
        return None if row is None else MACHINES.row(*row)

    def machines_since(self, gone_after: float) -> list[Machine]:
        return MACHINES.rows(self._db.rows(_SINCE, {"gone_after": float(gone_after)}))

    def machines_that_count(self, *, gone_after: float, made_after: float) -> list[Machine]:
        named = {"gone_after": float(gone_after), "made_after": float(made_after), "unmade": _UNMADE}
        return MACHINES.rows(self._db.rows(_THAT_COUNT, named))

    def unreadable_machines(self) -> list[UnreadableMachine]:
        unreadable = []
        for machine_id in sorted(MACHINES.set_aside):
            row = self._db.row(_AS_IT_IS, {"id": machine_id})
            if row is None:
                continue  # it is another database's
            try:
                MACHINES.row(machine_id, row[1])  # somebody may have mended it
            except UnreadableRow:
                pool = _ITS_POOL.search(row[1])
                unreadable.append(
                    UnreadableMachine(id=machine_id, pool=pool[1] if pool else "", gone_at=row[0])
                )
        return unreadable


class MachineRowsTx(MachineRowsView):
    def put_pool(self, pool: MachinePool) -> None:
        self._db.run(_PUT_POOL, {"name": pool.name, "document": _document(pool)})

    def delete_pool(self, name: str) -> None:
        self._db.run("DELETE FROM pools WHERE name = :name", {"name": name})

    def put_machine(self, machine: Machine) -> None:
        self._db.run(
            _PUT_MACHINE,
            {
                "id": machine.id,
                "gone_at": machine.gone_at,
                "join_hash": machine.join_hash,
                "document": _document(machine),
            },
        )


def _document(row: MachinePool | Machine) -> str:
    return msgspec.json.encode(storable_json(msgspec.to_builtins(row))).decode()
