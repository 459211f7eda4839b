"""Every call to the API as its caller saw it: invoked, then ok, fail or unknown."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import httpx2
from msgspec import Struct

Json = dict[str, Any]
ANSWER_WITHIN_S = 3.0
ASK_AGAIN_S = 0.1
KNOWN_WITHIN_S = 120.0


class Answer(Struct):
    outcome: Literal["ok", "fail", "unknown"]
    status: int = 0
    body: Json = {}


class Recorder:
    def __init__(self, url: str, token: str, path: Path) -> None:
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=ANSWER_WITHIN_S,
            trust_env=False,
        )
        self._path = path
        self._calls = 0
        self.excused: Callable[[], bool] = lambda: False
        """Whether the server is being broken just now: nobody is held to answer meanwhile."""

    async def close(self) -> None:
        await self._http.aclose()

    async def call(self, method: str, path: str, body: Json | None = None, key: str = "") -> Answer:
        self._calls += 1
        number = self._calls
        self._note(number, "invoke", call=f"{method} {path}", key=key)
        headers = {"Idempotency-Key": key} if key else {}
        try:
            response = await self._http.request(method, path, json=body, headers=headers)
        except httpx2.TransportError as error:
            self._note(number, "unknown", why=repr(error))
            return Answer("unknown")
        if response.status_code >= 500:
            self._note(number, "unknown", status=response.status_code, body=response.text[:500])
            return Answer("unknown", response.status_code)
        answer = Answer("ok" if response.is_success else "fail", response.status_code, response.json())
        self._note(number, answer.outcome, status=answer.status, job=answer.body.get("job_id"))
        return answer

    async def call_until_answered(
        self, method: str, path: str, body: Json | None = None, key: str = ""
    ) -> Answer:
        """Repeats what may or may not have happened until it is answered."""
        patience_s = KNOWN_WITHIN_S
        while patience_s > 0:
            asked_at, excused = time.monotonic(), self.excused()
            answer = await self.call(method, path, body, key)
            if answer.outcome != "unknown":
                return answer
            await asyncio.sleep(ASK_AGAIN_S)
            if not excused and not self.excused():
                patience_s -= time.monotonic() - asked_at
        raise AssertionError(
            f"no answer within {KNOWN_WITHIN_S:g} s in which nobody broke the server: {method} {path}"
        )

    def _note(self, number: int, outcome: str, **more: object) -> None:
        line = {
            "call_number": number,
            "outcome": outcome,
            "at": time.clock_gettime(time.CLOCK_BOOTTIME),
            **more,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
