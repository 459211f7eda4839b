"""An orchestrator that tells real receivers what happens."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.delivery.apprise.sending import AppriseSender
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.sender import MessageSender
from simpletuner_fleet.delivery.smtp import Relay
from simpletuner_fleet.orchestrator.notices.deliverer import Deliverer
from simpletuner_fleet.orchestrator.runtime import note_start
from simpletuner_fleet.ports import Store
from simpletuner_fleet.store.sealing import SealedVault
from tests.delivery.conftest import LOOPBACK
from tests.delivery.receivers import Certificates
from tests.http.api_kit import Agent, Running, orchestrator

PUBLIC = "https://fleet.example.org"
JOB_EVENTS = ["job.failed", "job.completed"]


class NotifyingServer(Struct):
    running: Running
    ca: str
    relay: Relay | None = None
    has_apprise: bool = True

    async def start(self) -> Deliverer:
        """As whoever leads does."""
        apprise = AppriseSender() if self.has_apprise else None
        sender = MessageSender(OutboundConnector(LOOPBACK, self.ca), self.relay, PUBLIC, "host", apprise)
        deliverer = self.running.deps.deliverer = Deliverer(self.running.fleet, sender)
        deliverer.start()
        return deliverer

    async def stop(self) -> None:
        if self.running.deps.deliverer:
            await self.running.deps.deliverer.stop()
            self.running.deps.deliverer = None

    async def add(self, url: str, channel: str = "webhook", token: str | None = None, **more: Any) -> Any:
        body = {"name": "mine", "channel": channel, "address": url, "events": JOB_EVENTS, **more}
        if token is None:
            return await self.running.post("/api/notifications", body)
        async with self.running.as_user(token) as http:
            answer = await http.post("/api/notifications", json=body)
            assert answer.status_code == 201, answer.text
            return answer.json()

    async def sees(self, path: str, is_so: Callable[[Any], Any]) -> Any:
        """Looks there until it is so."""
        async with asyncio.timeout(5):
            while True:
                answer = await self.running.get(path)
                if is_so(answer):
                    return answer
                await asyncio.sleep(0.02)

    async def ends(self, agent: Agent, status: str = "failed", **options: Any) -> str:
        """A job of the admin runs and ends so."""
        await self.running.submit(**options)
        offer = await agent.take()
        await agent.report(offer, status, exit_code=0 if status == "completed" else 1)
        return str(offer["job_id"])


@asynccontextmanager
async def notifying_server(
    tmp_path: Path, certs: Certificates, store: Store | None = None, relay: Relay | None = None, **policy: Any
) -> AsyncIterator[NotifyingServer]:
    vault = SealedVault.at(tmp_path / "key")
    async with orchestrator(store, Policy(max_retries=0, **policy), vault=vault) as running:
        await note_start(running.fleet, "0")
        made = NotifyingServer(running, certs.ca, relay)
        await made.start()
        try:
            yield made
        finally:
            await made.stop()
