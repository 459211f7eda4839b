"""Calls the API of a cloud. Its answers are untrusted input, whoever the address belongs to.

No redirect is followed, no answer is read beyond a size and a time limit, and nothing compressed is unpacked. Only
what the vendor states in its own format is a refusal: every other answer leaves open what became of the request.
"""

import asyncio
import ipaddress
import ssl
from collections.abc import Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.providers.contract import ProviderRefused, ProviderUnsure

CALL_S = 20.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_SAID_CHARS = 300
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
TOO_MANY = 429


class VendorAnswer(Struct, frozen=True):
    status: int
    kind: str
    """The content type, without its parameters."""
    body: bytes
    retry_after: str = ""

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    def decoded(self, type_: Any = Any) -> Any:
        """Returns the body as this type. Raises ProviderUnsure where it does not have that shape."""
        try:
            return msgspec.json.decode(self.body or b"null", type=type_)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProviderUnsure(f"the provider's answer is not what it promises: {error}") from None


SaidRefusal = Callable[[VendorAnswer], str | None]
"""What the vendor says of its refusal, where the answer is one in its own format."""


def checked_base_url(text: str) -> str:
    """Raises Invalid for an address to which a key must not be sent."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    odd = parts.username or parts.password or parts.query or parts.fragment or port == 0
    safe = parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))
    if not host or odd or not safe:
        raise Invalid(
            "The provider's setting 'api_url' must be an https:// address; http:// is for this machine alone.",
            path="$.settings",
        )
    return text.rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def vendor_client(timeout_s: float, tls: ssl.SSLContext | None = None) -> httpx2.AsyncClient:
    """Returns the client for the pools of all vendors.

    It keeps no cookies: by one, a call with the key of one account could be taken for another's.
    """
    return httpx2.AsyncClient(
        follow_redirects=False,
        timeout=timeout_s,
        verify=True if tls is None else tls,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )


class VendorApi:
    def __init__(self, http: httpx2.AsyncClient, base_url: str, key: str | None, said: SaidRefusal) -> None:
        self._http = http
        self._base_url = base_url
        self._key = key
        self._said = said
        self._quiet_until = 0.0
        self._pauses = 0

    async def ask(
        self, method: str, path: str, *, body: Any = None, query: dict[str, Any] | None = None
    ) -> Any:
        """Returns a successful answer; raises ProviderUnsure for every other one."""
        answer = await self.send(method, path, body=body, query=query)
        if not answer.is_good:
            raise ProviderUnsure(self.complaint(answer))
        return answer

    async def order(self, method: str, path: str, body: Any) -> VendorAnswer:
        """Sends a request that costs money.

        Raises ProviderRefused only where the vendor itself says that nothing was made.
        """
        try:
            self._insist_on_quiet()
        except ProviderUnsure as error:
            raise ProviderRefused(str(error)) from None
        answer = await self.send(method, path, body=body)
        if answer.is_good:
            return answer
        if answer.status < 500 and self._said(answer) is not None:
            raise ProviderRefused(self.complaint(answer))
        raise ProviderUnsure(self.complaint(answer))

    async def end(self, method: str, path: str) -> VendorAnswer:
        """Ends a machine. One that no longer exists counts as ended."""
        answer = await self.send(method, path)
        if not answer.is_good and answer.status not in (404, 410):
            raise ProviderUnsure(self.complaint(answer))
        return answer

    async def send(
        self, method: str, path: str, *, body: Any = None, query: dict[str, Any] | None = None
    ) -> VendorAnswer:
        self._insist_on_quiet()
        try:
            async with asyncio.timeout(CALL_S):
                answer = await self._exchanged(method, path, body, query)
        except TimeoutError:
            raise ProviderUnsure(f"no answer from the provider in {CALL_S:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise ProviderUnsure(
                f"the provider cannot be reached: {str(error) or type(error).__name__}"
            ) from None
        self._note_pace(answer)
        return answer

    async def _exchanged(
        self, method: str, path: str, body: Any, query: dict[str, Any] | None
    ) -> VendorAnswer:
        if self._key is None:
            raise ProviderUnsure("the secret with the provider's key cannot be read")
        headers = {"authorization": f"Bearer {self._key}", "accept-encoding": "identity"}
        if body is not None:
            headers["content-type"] = "application/json"
        async with self._http.stream(
            method,
            self._base_url + path,
            headers=headers,
            params=query,
            content=None if body is None else msgspec.json.encode(body),
            follow_redirects=False,
        ) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ProviderUnsure("the provider's answer is compressed, and was not read")
            taken = bytearray()
            async for part in response.aiter_raw():
                taken += part
                if len(taken) > MAX_ANSWER_BYTES:
                    raise ProviderUnsure("the provider's answer is too large, and was not read")
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            return VendorAnswer(
                response.status_code, kind, bytes(taken), response.headers.get("retry-after", "")
            )

    async def read_some(self, path: str, query: dict[str, Any], for_s: float, most_bytes: int) -> bytes:
        """Reads from a stream that does not end by itself, up to this many seconds and bytes."""
        taken = bytearray()
        headers = {"authorization": f"Bearer {self._key}", "accept-encoding": "identity"}
        try:
            async with (
                asyncio.timeout(for_s),
                self._http.stream(
                    "GET", self._base_url + path, headers=headers, params=query, follow_redirects=False
                ) as response,
            ):
                if response.status_code == 200:
                    async for part in response.aiter_raw():
                        taken += part
                        if len(taken) > most_bytes:
                            break
        except (TimeoutError, httpx2.HTTPError, OSError):
            return bytes(taken)
        return bytes(taken)

    def complaint(self, answer: VendorAnswer) -> str:
        said = self._said(answer) or ""
        if answer.status in (401, 403):
            return f"the provider refuses the key (status {answer.status}) {said}"[:MAX_SAID_CHARS].strip()
        return f"the provider answered {answer.status}: {said}"[:MAX_SAID_CHARS].rstrip(": ")

    def _insist_on_quiet(self) -> None:
        left_s = self._quiet_until - asyncio.get_running_loop().time()
        if left_s > 0:
            raise ProviderUnsure(f"the provider asked for fewer calls; the next one is in {left_s:.0f} s")

    def _note_pace(self, answer: VendorAnswer) -> None:
        """Notes how long to make no call after a 429 answer.

        Where the vendor does not say how long, the pause doubles with each 429 in a row, up to a limit.
        """
        if answer.status != TOO_MANY:
            self._pauses = 0
            return
        said = answer.retry_after
        pause_s = float(said) if said.isascii() and said.isdigit() else FIRST_PAUSE_S * 2.0**self._pauses
        self._pauses = min(self._pauses + 1, 10)
        self._quiet_until = asyncio.get_running_loop().time() + min(pause_s, LONGEST_PAUSE_S)
