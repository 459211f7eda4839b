"""Calls the Kubernetes API.

An answer that is not in the API's own form says nothing about what was done.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
from msgspec import Struct

from simpletuner_fleet.providers.contract import ProviderRefused, ProviderUnsure
from simpletuner_fleet.providers.kubernetes.access import ClusterAccess

TOGETHER_S = 25.0
TRIES = 3
LONGEST_PAUSE_S = 4.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
GONE, NOT_FOUND, CONFLICT, TOO_MANY = 410, 404, 409, 429
WHAT_NEXT = {
    401: "Its token or certificate is not accepted: store a new one.",
    403: "Its role does not allow that, or a quota is used up.",
}


class _Status(Struct, frozen=True):
    """Describes why Kubernetes refused a call."""

    kind: str
    message: str = ""
    reason: str = ""


class KubernetesRefused(ProviderRefused):
    def __init__(self, status: int, reason: str, message: str) -> None:
        said = f"Kubernetes said {status} {reason}: {message}"
        super().__init__(f"{said} {WHAT_NEXT[status]}" if status in WHAT_NEXT else said)
        self.status, self.reason = status, reason


class KubernetesApi:
    """Calls the Kubernetes API over one connection, for one call of the provider."""

    def __init__(self, http: httpx2.AsyncClient, access: ClusterAccess) -> None:
        self._http = http
        self._access = access

    async def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Returns the body of a successful answer.

        Raises KubernetesRefused where Kubernetes itself refuses, and ProviderUnsure for everything else.
        """
        status, pause_s, answer = await self._once(method, path, query, body)
        for _ in range(TRIES - 1):
            if status == TOO_MANY:
                await asyncio.sleep(min(pause_s, LONGEST_PAUSE_S))
                status, pause_s, answer = await self._once(method, path, query, body)
        if 200 <= status < 300:
            return answer
        try:
            said = msgspec.json.decode(answer, type=_Status)
        except (msgspec.MsgspecError, UnicodeError):
            said = _Status(kind="")
        if status == TOO_MANY:  # whoever says so has not looked at the call
            raise KubernetesRefused(status, "TooManyRequests", said.message or "it has too much to do")
        if said.kind != "Status" or status == 408 or not 400 <= status < 500:
            raise ProviderUnsure(f"Kubernetes answered with {status} {said.message}".strip())
        raise KubernetesRefused(status, said.reason, said.message)

    async def _once(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Mapping[str, Any] | None
    ) -> tuple[int, float, bytes]:
        """Sends one request; returns the status, how long Kubernetes asks to wait, and the body."""
        name = self._access.server_name
        request = self._http.build_request(
            method,
            f"{self._access.url}{path}",
            params=dict(query or {}),
            json=body,
            headers={"Accept": "application/json", **self._access.headers()},
            extensions={"sni_hostname": name} if name else None,
        )
        try:
            answer = await self._http.send(request, stream=True)
            try:
                return answer.status_code, _pause_s(answer), await _whole(answer)
            finally:
                await answer.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise ProviderUnsure(
                f"Kubernetes could not be asked: {str(error) or type(error).__name__}"
            ) from error


@asynccontextmanager
async def connected(access: ClusterAccess) -> AsyncIterator[KubernetesApi]:
    """Opens a connection to the cluster. All calls within the context together end after `TOGETHER_S`."""
    http = httpx2.AsyncClient(verify=access.tls, timeout=TOGETHER_S, follow_redirects=False)
    try:
        async with asyncio.timeout(TOGETHER_S), http:
            yield KubernetesApi(http, access)
    except TimeoutError as error:
        raise ProviderUnsure(f"Kubernetes did not answer in {TOGETHER_S:g} s") from error


async def _whole(answer: httpx2.Response) -> bytes:
    body = bytearray()
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise ProviderUnsure(f"Kubernetes answered with more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _pause_s(answer: httpx2.Response) -> float:
    try:
        return max(0.0, float(answer.headers.get("retry-after", "1")))
    except ValueError:
        return 1.0
