"""Questions to a provider: short, bounded, and never led elsewhere by its answer."""

import asyncio
import ssl
from collections.abc import Mapping

import httpx2

from simpletuner_fleet.core.errors import ProviderUnusable

MAX_ANSWER_BYTES = 512 * 1024
DEADLINE_S = 10.0
HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "simpletuner-fleet"}


class Asker:
    """Asks one provider. Its client is made with the first question."""

    def __init__(self, ca_file: str = "", deadline_s: float = DEADLINE_S) -> None:
        self._ca_file = ca_file
        self._deadline_s = deadline_s
        self._http: httpx2.AsyncClient | None = None
        self._making = asyncio.Lock()

    async def ask(
        self,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        credentials: tuple[str, str] | None = None,
        bearer: str = "",
    ) -> tuple[int, bytes]:
        """Returns the status and the whole answer. A redirect is an answer like others, and no good one."""
        method = "GET" if form is None else "POST"
        headers = {**HEADERS, **({"Authorization": f"Bearer {bearer}"} if bearer else {})}
        try:
            async with asyncio.timeout(self._deadline_s):
                client = await self._client()
                request = client.build_request(
                    method, url, data=dict(form) if form else None, headers=headers
                )
                auth = httpx2.BasicAuth(*credentials) if credentials else None
                answer = await client.send(request, stream=True, auth=auth, follow_redirects=False)
                try:
                    return answer.status_code, await _whole(answer)
                finally:
                    await answer.aclose()
        except TimeoutError:
            raise ProviderUnusable(f"The provider did not answer within {self._deadline_s:g} s.") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise ProviderUnusable(f"The provider cannot be reached: {type(error).__name__}.") from error

    async def close(self) -> None:
        if self._http:
            await self._http.aclose()
            self._http = None

    async def _client(self) -> httpx2.AsyncClient:
        async with self._making:
            if self._http is None:
                context = await asyncio.to_thread(_trust, self._ca_file)
                self._http = httpx2.AsyncClient(verify=context, timeout=self._deadline_s)
            return self._http


def _trust(ca_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file:
        context.load_verify_locations(ca_file)
    return context


async def _whole(answer: httpx2.Response) -> bytes:
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise ProviderUnusable("The provider packed its answer, which it was not asked to.")
    body = bytearray()
    async for piece in answer.aiter_raw():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise ProviderUnusable(f"The provider's answer is larger than {MAX_ANSWER_BYTES} bytes.")
    return bytes(body)
