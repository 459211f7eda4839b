"""Stores pools and machines in any SQL database."""

import msgspec

from simpletuner_fleet.core.provisioning.machine import Machine
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.store.rows.text import storable_json
from simpletuner_fleet.store.sql.database import Database

_POOL = "SELECT document FROM pools WHERE name = :name"
_POOLS = "SELECT document FROM pools ORDER BY name"
_PUT_POOL = (
    "INSERT INTO pools (name, document) VALUES (:name, :document) "
    "ON CONFLICT (name) DO UPDATE SET document = excluded.document"
)
_MACHINE = "SELECT document FROM machines WHERE id = :id"
_JOINING = "SELECT document FROM machines WHERE join_hash = :join_hash AND join_hash <> ''"
_SINCE = (
    "SELECT document FROM machines WHERE id IN (SELECT id FROM machines WHERE gone_at IS NULL UNION ALL "
    "SELECT id FROM machines WHERE gone_at > :gone_after) ORDER BY id"
)
_THAT_COUNT = (
    "SELECT document FROM machines WHERE id IN (SELECT id FROM machines WHERE gone_at IS NULL UNION ALL "
    "SELECT id FROM machines WHERE gone_at > :gone_after UNION ALL "
    "SELECT id FROM machines WHERE gone_at > :made_after AND document NOT LIKE :unmade) ORDER BY id"
)
_UNMADE = '%"rates":[]%'
"""In the document of a machine that was never made. No text within one looks like this: its quotes are escaped."""
_PUT_MACHINE = (
    "INSERT INTO machines (id, gone_at, join_hash, document) VALUES (:id, :gone_at, :join_hash, :document) "
    "ON CONFLICT (id) DO UPDATE SET gone_at = excluded.gone_at, join_hash = excluded.join_hash, "
    "document = excluded.document"
)


class MachineRowsView:
    _db: Database

    def pool(self, name: str) -> MachinePool | None:
        row = self._db.row(_POOL, {"name": name})
        return None if row is None else msgspec.json.decode(row[0], type=MachinePool)

    def pools(self) -> list[MachinePool]:
        return [msgspec.json.decode(row[0], type=MachinePool) for row in self._db.rows(_POOLS, {})]

    def machine(self, machine_id: str) -> Machine | None:
        row = self._db.row(_MACHINE, {"id": machine_id})
        return None if row is None else msgspec.json.decode(row[0], type=Machine)

    def machine_by_join_hash(self, join_hash: str) -> Machine | None:
        row = self._db.row(_JOINING, {"join_hash": join_hash})
        return None if row is None else msgspec.json.decode(row[0], type=Machine)

    def machines_since(self, gone_after: float) -> list[Machine]:
        rows = self._db.rows(_SINCE, {"gone_after": float(gone_after)})
        return [msgspec.json.decode(row[0], type=Machine) for row in rows]

    def machines_that_count(self, *, gone_after: float, made_after: float) -> list[Machine]:
        named = {"gone_after": float(gone_after), "made_after": float(made_after), "unmade": _UNMADE}
        return [msgspec.json.decode(row[0], type=Machine) for row in self._db.rows(_THAT_COUNT, named)]


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
