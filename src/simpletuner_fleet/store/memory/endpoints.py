"""Keeps endpoints of notifications in the memory store."""

from msgspec.structs import replace

from simpletuner_fleet.core.notices.endpoint import DeliveryTry, Endpoint
from simpletuner_fleet.store.memory.tables import Tables


class MemoryEndpointsView:
    _tables: Tables

    def endpoint(self, endpoint_id: str) -> Endpoint | None:
        return self._tables.endpoints.get(endpoint_id)

    def endpoints(self) -> list[Endpoint]:
        return sorted(self._tables.endpoints.values(), key=lambda one: one.id)

    def deliveries(self, endpoint_id: str, limit: int) -> list[DeliveryTry]:
        return list(reversed(self._tables.deliveries.get(endpoint_id, ())))[:limit]


class MemoryEndpointsTx(MemoryEndpointsView):
    def put_endpoint(self, endpoint: Endpoint) -> None:
        self._tables.set_endpoint(endpoint.id, endpoint)

    def delete_endpoint(self, endpoint_id: str) -> None:
        self._tables.set_endpoint(endpoint_id, None)
        self._tables.set_deliveries(endpoint_id, None)

    def add_delivery(self, delivery: DeliveryTry, keep: int) -> None:
        known = self._tables.deliveries.get(delivery.endpoint_id, ())
        number = known[-1].number + 1 if known else 1
        rows = (*known, replace(delivery, number=number))
        self._tables.set_deliveries(delivery.endpoint_id, rows[-keep:])
