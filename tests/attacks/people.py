"""People who log in to a server in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from simpletuner_fleet.http.access.sessions import COOKIE
from simpletuner_fleet.orchestrator.people.passwords import Cost, Passwords
from tests.http.api_kit import UNUSED_TLS, Running, orchestrator

PASSWORD = "plum kettle 7 fog"


class People:
    def __init__(self, running: Running) -> None:
        self.running = running
        self.clients: list[httpx2.AsyncClient] = []

    async def log_in(self, name: str, role: str) -> httpx2.AsyncClient:
        known = (await self.running.get("/api/admin/users"))["users"]
        if name not in [one["name"] for one in known]:
            body = {"name": name, "role": role, "password": PASSWORD}
            await self.running.post("/api/admin/users", body)
        client = httpx2.AsyncClient(
            base_url=self.running.listening.url,
            headers={"Sec-Fetch-Site": "same-origin"},
            trust_env=False,
            verify=UNUSED_TLS,
        )
        self.clients.append(client)
        answer = await client.post("/api/login", json={"name": name, "password": PASSWORD})
        assert answer.status_code == 200, answer.text
        assert COOKIE in client.cookies
        return client

    def copy_of(self, browser: httpx2.AsyncClient) -> httpx2.AsyncClient:
        """Whoever has copied the cookies of a browser."""
        return httpx2.AsyncClient(
            base_url=self.running.listening.url,
            headers={"Sec-Fetch-Site": "same-origin", "Cookie": f"{COOKIE}={browser.cookies[COOKIE]}"},
            trust_env=False,
            verify=UNUSED_TLS,
        )


@asynccontextmanager
async def people(**choices: Any) -> AsyncIterator[People]:
    async with orchestrator(passwords=Passwords(Cost(memory_kib=64)), **choices) as running:
        here = People(running)
        try:
            yield here
        finally:
            for client in here.clients:
                await client.aclose()
