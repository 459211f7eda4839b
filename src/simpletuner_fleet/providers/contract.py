"""Defines what every provider of machines must do, and what it is given.

A provider keeps nothing in memory that matters: a new orchestrator makes a new provider and asks it for its list. The
process may end after any call, and any call may be repeated. No call waits longer than `settle_s`.
"""

from pathlib import Path
from typing import Protocol

import httpx2
from msgspec import Struct

from simpletuner_fleet.core.money.amounts import DEFAULT_CURRENCY
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.core.provisioning.pool import MachinePool


class ProviderRefused(Exception):
    """The provider refused: nothing was made, and nothing will be.

    There is no offer any more, no money, or the request was wrong.
    """


class ProviderUnsure(Exception):
    """The provider gave no answer, or none to be sure of: what was asked may have been done."""


class ProviderSurroundings(Struct, frozen=True, kw_only=True):
    """Holds what a provider of machines is made with: its pool, its key, its folder and more."""

    pool: MachinePool
    key: str | None
    """The value of the secret that the pool names."""
    folder: Path
    """Where it may keep files, alone."""
    environment: dict[str, str]
    """What a worker on this very machine may have of the server's environment."""
    http: httpx2.AsyncClient
    currency: str = DEFAULT_CURRENCY
    """Whose millionths prices are told in."""


class MachineOrder(Struct, frozen=True, kw_only=True):
    """Describes the machine that a provider is asked to make."""

    name: str
    offer: MachineOffer
    environment: dict[str, str]
    """With which `simpletuner worker` joins by itself: the one-time token is in it."""


class CreatedMachine(Struct, frozen=True, kw_only=True):
    provider_id: str
    hourly_micros: int | None = None
    """In millionths of the currency's unit, where the provider says so."""


class MachineProvider(Protocol):
    settle_s: float
    """After so long the list shows what was made before, whatever became of the answer, and not what was ended before."""
    sweep_s: float
    """How often it may be asked for its list."""

    async def offers(self) -> list[MachineOffer]: ...
    async def create(self, order: MachineOrder) -> CreatedMachine:
        """Raises ProviderRefused if nothing was made; whatever else it raises leaves that open."""
        ...

    async def machines(self) -> list[ListedMachine]:
        """Returns all machines, never only a part of them; raises an exception where it cannot."""
        ...

    async def destroy(self, provider_id: str) -> None:
        """Destroys the machine. It does no harm if the machine is gone already, or if this was asked before."""
        ...

    async def boot_log(self, provider_id: str) -> str:
        """Returns the end of what the machine printed, or an empty text where that is not available."""
        ...
