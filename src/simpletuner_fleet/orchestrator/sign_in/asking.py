"""Sends requests to a provider: short, bounded, and never redirected."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from simpletuner_fleet.core.errors import ProviderUnusable
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.outcome import DeliveryFailed

MAX_ANSWER_BYTES = 512 * 1024
DEADLINE_S = 10.0
HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "simpletuner-fleet"}


class Asker:
    """Sends requests to one provider. Its HTTP client is made with the first of them."""

    def __init__(
        self, ca_file: str = "", deadline_s: float = DEADLINE_S, outbound: OutboundConnector | None = None
    ) -> None:
        """Takes `outbound`, which says which machines may be asked.

        Without it all may be: then the server's owner named the provider.
        """
        self._ca_file = ca_file
        self._deadline_s = deadline_s
        self._outbound = outbound
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
        """Returns the status and the whole answer. A redirect is not followed, and is not a good answer."""
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        async with self._answered(url, headers, form, credentials) as answer:
            return answer.status_code, await _whole(answer)

    async def led_to(self, url: str) -> tuple[int, str]:
        """Returns the status, and where the answer would redirect to."""
        async with self._answered(url, {}, None, None) as answer:
            return answer.status_code, answer.headers.get("location", "")

    @asynccontextmanager
    async def _answered(
        self,
        url: str,
        headers: Mapping[str, str],
        form: Mapping[str, str] | None,
        credentials: tuple[str, str] | None,
    ) -> AsyncIterator[httpx2.Response]:
        try:
            async with asyncio.timeout(self._deadline_s):
                client = await self._client()
                at, more, known_as = await self._looked_at(url)
                request = client.build_request(
                    "GET" if form is None else "POST",
                    at,
                    data=dict(form) if form else None,
                    headers={**HEADERS, **more, **headers},
                    extensions=known_as,
                )
                auth = httpx2.BasicAuth(*credentials) if credentials else None
                answer = await client.send(request, stream=True, auth=auth, follow_redirects=False)
                try:
                    yield answer
                finally:
                    await answer.aclose()
        except TimeoutError:
            raise ProviderUnusable(f"The provider did not answer within {self._deadline_s:g} s.") from None
        except DeliveryFailed as refused:
            raise ProviderUnusable(refused.detail) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
            raise ProviderUnusable(f"The provider cannot be reached: {type(error).__name__}.") from error

    async def _looked_at(self, url: str) -> tuple[httpx2.URL, dict[str, str], dict[str, Any]]:
        """Returns the URL with the checked address in place of the name, which may resolve differently later."""
        named = httpx2.URL(url)
        if self._outbound is None:
            return named, {}, {}
        by_tls = named.scheme == "https"
        address = await self._outbound.allowed_address(
            named.host, named.port or (443 if by_tls else 80), tls=by_tls
        )
        known_as = {"sni_hostname": named.host} if by_tls else {}
        return named.copy_with(host=str(address)), {"Host": named.netloc.decode("ascii")}, known_as

    async def close(self) -> None:
        if self._http:
            await self._http.aclose()
            self._http = None

    async def _client(self) -> httpx2.AsyncClient:
        async with self._making:
            if self._http is None and self._outbound is not None:
                # Two names may mean one address: a connection that was made for one of them is not used for the other.
                none_kept = httpx2.Limits(max_keepalive_connections=0)
                self._http = httpx2.AsyncClient(
                    verify=self._outbound.trust, timeout=self._deadline_s, limits=none_kept, trust_env=False
                )
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
