"""One tab of the console as the server has to do with it."""

import asyncio
import re
import time
from importlib.resources import files

import httpx2

from tests.web.browser import Role
from tests.web.console import Console

SCRIPT = files("simpletuner_fleet") / "web" / "static" / "js" / "frame" / "live.js"
OPENED_EVERY_S = 10.0
"""How often somebody opens the page anew."""


def of_script(name: str) -> int:
    """A constant of the script that real tabs run."""
    constant = re.search(rf"const {name} = (\d+);", SCRIPT.read_text("utf-8"))
    assert constant, name
    return int(constant[1])


class Tab:
    """Opens its page now and then, follows the stream of events, and fetches its regions when one concerns them."""

    def __init__(
        self, console: Console, path: str, role: Role, opened_every_s: float = OPENED_EVERY_S
    ) -> None:
        self._client = httpx2.AsyncClient(
            base_url=console.url, cookies=console.cookies(role), timeout=30.0, trust_env=False
        )
        self._path = path
        self._opened_every_s = opened_every_s
        self._topics: set[str] = set()
        self._dirty = asyncio.Event()
        self.took_s: list[float] = []
        self.opened = 0

    async def look_for(self, seconds: float, after_s: float) -> None:
        """Opens its page after a while: twenty people do not sit down in one moment."""
        await asyncio.sleep(after_s)
        async with self._client:
            await self._open()
            following = [
                asyncio.create_task(one) for one in (self._follow(), self._patch(), self._come_again())
            ]
            done, _ = await asyncio.wait(following, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            for task in done:
                task.result()

    async def _open(self) -> None:
        text = await self._fetch()
        self.opened += 1
        self._topics = {
            topic for topics in re.findall(r'data-region="([^"]*)"', text) for topic in topics.split()
        }

    async def _come_again(self) -> None:
        while True:
            await asyncio.sleep(self._opened_every_s)
            await self._open()

    async def _follow(self) -> None:
        async with self._client.stream("GET", "/api/events", timeout=None) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("event:") and f"{line[6:].strip()}s" in self._topics:
                    self._dirty.set()

    async def _patch(self) -> None:
        soon_s, settle_s, most_s = (of_script(name) / 1000 for name in ("SOON_MS", "SETTLE_MS", "PACED_MS"))
        began, took_s = 0.0, 0.0
        while True:
            await self._dirty.wait()
            settled_s = max(settle_s, min(most_s, of_script("PACE") * took_s))
            await asyncio.sleep(max(soon_s, settled_s - (time.monotonic() - began)))
            self._dirty.clear()
            began = time.monotonic()
            await self._fetch({"x-live": "1"})
            took_s = time.monotonic() - began

    async def _fetch(self, headers: dict[str, str] | None = None) -> str:
        began = time.monotonic()
        answer = await self._client.get(self._path, headers=headers)
        self.took_s.append(time.monotonic() - began)
        assert answer.status_code == 200, answer.text[:500]
        return answer.text
