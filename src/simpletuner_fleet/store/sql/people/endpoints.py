"""Stores endpoints of notifications and what was sent there, in any SQL database."""

import msgspec

from simpletuner_fleet.core.notices.endpoint import DeliveryTry, Endpoint
from simpletuner_fleet.store.rows.documents import ENDPOINTS
from simpletuner_fleet.store.rows.text import storable_json
from simpletuner_fleet.store.sql.database import Database

_ONE = "SELECT document FROM endpoints WHERE id = :id"
_ALL = "SELECT id, document FROM endpoints ORDER BY id"
_PUT = (
    "INSERT INTO endpoints (id, document) VALUES (:id, :document) "
    "ON CONFLICT (id) DO UPDATE SET document = excluded.document"
)
_NEWEST = "SELECT document FROM deliveries WHERE endpoint_id = :endpoint_id ORDER BY number DESC LIMIT :limit"
_LAST = "SELECT max(number) FROM deliveries WHERE endpoint_id = :endpoint_id"
_ADD = "INSERT INTO deliveries (endpoint_id, number, document) VALUES (:endpoint_id, :number, :document)"
_DROP = "DELETE FROM deliveries WHERE endpoint_id = :endpoint_id AND number <= :number"


class EndpointsView:
    _db: Database

    def endpoint(self, endpoint_id: str) -> Endpoint | None:
        row = self._db.row(_ONE, {"id": endpoint_id})
        return None if row is None else ENDPOINTS.row(endpoint_id, row[0])

    def endpoints(self) -> list[Endpoint]:
        return ENDPOINTS.rows(self._db.rows(_ALL, {}))

    def deliveries(self, endpoint_id: str, limit: int) -> list[DeliveryTry]:
        rows = self._db.rows(_NEWEST, {"endpoint_id": endpoint_id, "limit": limit})
        return [msgspec.json.decode(row[0], type=DeliveryTry) for row in rows]


class EndpointsTx(EndpointsView):
    def put_endpoint(self, endpoint: Endpoint) -> None:
        self._db.run(_PUT, {"id": endpoint.id, "document": _text(endpoint)})

    def delete_endpoint(self, endpoint_id: str) -> None:
        self._db.run("DELETE FROM endpoints WHERE id = :id", {"id": endpoint_id})
        self._db.run("DELETE FROM deliveries WHERE endpoint_id = :id", {"id": endpoint_id})

    def add_delivery(self, delivery: DeliveryTry, keep: int) -> None:
        row = self._db.row(_LAST, {"endpoint_id": delivery.endpoint_id})
        number = (row[0] or 0) + 1 if row else 1
        numbered = msgspec.structs.replace(delivery, number=number)
        self._db.run(
            _ADD, {"endpoint_id": delivery.endpoint_id, "number": number, "document": _text(numbered)}
        )
        self._db.run(_DROP, {"endpoint_id": delivery.endpoint_id, "number": number - keep})


def _text(row: Endpoint | DeliveryTry) -> str:
    return msgspec.json.encode(storable_json(msgspec.to_builtins(row))).decode()
