"""Reads rows that are one JSON document each."""

import logging
from collections.abc import Iterable
from typing import Generic

import msgspec

from simpletuner_fleet.core.errors import UnreadableRow
from simpletuner_fleet.core.notices.endpoint import Endpoint
from simpletuner_fleet.core.people.approvals import Approval
from simpletuner_fleet.core.provisioning.machine import Machine
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.core.publishing import Publication
from simpletuner_fleet.store.rows.codec import UNREADABLE, S, described

log = logging.getLogger(__name__)


class DocumentRows(Generic[S]):
    def __init__(self, struct: type[S], name: str) -> None:
        self._name = name
        self._decode = msgspec.json.Decoder(struct).decode
        self.set_aside: dict[str, str] = {}
        """Why, by id, rows could not be read since the start."""

    def row(self, row_id: str, document: str) -> S:
        """Raises UnreadableRow."""
        try:
            return self._decode(document)
        except UNREADABLE as error:
            if row_id not in self.set_aside:
                log.error("the %s %s cannot be read and is set aside: %s", self._name, row_id, error)
            self.set_aside[row_id] = described(error)
            raise UnreadableRow(f"The {self._name} {row_id} cannot be read.") from error

    def unreadable(self, documents: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Returns why rows cannot be read, by their ids. It notes nothing: they may be another database's."""
        why: dict[str, str] = {}
        for row_id, document in documents:
            try:
                self._decode(document)
            except UNREADABLE as error:
                why[row_id] = described(error)
        return why

    def rows(self, documents: Iterable[tuple[str, str]]) -> list[S]:
        """Returns the rows that can be read: one that cannot must not hide the others."""
        readable = []
        for row_id, document in documents:
            try:
                readable.append(self.row(row_id, document))
            except UnreadableRow:
                continue
        return readable


ENDPOINTS = DocumentRows(Endpoint, "endpoint")
POOLS = DocumentRows(MachinePool, "pool")
MACHINES = DocumentRows(Machine, "machine")
APPROVALS = DocumentRows(Approval, "approval")
PUBLICATIONS = DocumentRows(Publication, "publication")
