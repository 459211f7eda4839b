"""A server in this process with people and machines that a test moves as it likes, while pages look on."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.http.access.sessions import COOKIE
from simpletuner_fleet.http.edge.edge import EdgeSettings
from simpletuner_fleet.orchestrator.people.passwords import Passwords
from simpletuner_fleet.web import routes
from simpletuner_fleet.web.frame.problems import problem_page
from tests.e2e.proxy import Proxy
from tests.http.api_kit import Running, TurnedClock, orchestrator
from tests.web.browser import Role
from tests.web.fleet import CONFIGS, LIMITS, PEOPLE, QUICK_HASH
from tests.web.machines import A100, Crew, Machine, Model, Work

LOOK_AWAY_S = 86_400.0
"""Nobody sends heartbeats here, and nobody is missed."""


class PresentClock(TurnedClock):
    """Goes by itself."""

    def now(self) -> float:
        self.at = time.time()
        return self.at


class Stage(Struct):
    running: Running
    crew: Crew
    sessions: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.running.listening.url

    def cookies(self, role: Role) -> dict[str, str]:
        return {} if role == "nobody" else {COOKIE: self.sessions[role]}

    async def machine(self, name: str = "gpu-1", model: Model = A100) -> Machine:
        return await self.crew.machine(name, model)

    async def begin(self, **options: object) -> Work:
        """A job of the admin's that runs."""
        work = await self.crew.begin("admin", **{"config_name": "sdxl-cats", "target": "worker", **options})
        await work.report("running")
        return work


class Behind:
    """The stage, as it is seen through a network with faults."""

    def __init__(self, stage: Stage, proxy: Proxy) -> None:
        self._stage = stage
        self.url = proxy.url

    def cookies(self, role: Role) -> dict[str, str]:
        return self._stage.cookies(role)


@asynccontextmanager
async def set_stage(folder: Path) -> AsyncIterator[Stage]:
    blobs = FolderBlobs(folder / "storage")
    policy = Policy(heartbeat_timeout_s=LOOK_AWAY_S, offer_timeout_s=LOOK_AWAY_S)
    settings = EdgeSettings(limits=LIMITS)
    console: dict[str, Any] = {
        "clock": PresentClock(),
        "pages": routes.ROUTES,
        "problem_page": problem_page,
        "passwords": Passwords(QUICK_HASH),
    }
    try:
        async with (
            orchestrator(None, policy, settings, blobs, **console) as running,
            Crew(running) as crew,
        ):
            stage = Stage(running, crew)
            for role, name in PEOPLE.items():
                stage.sessions[role] = await crew.let_in(role, name)
            await running.save_config("sdxl-cats", CONFIGS["sdxl-cats"])
            yield stage
    finally:
        blobs.close()
