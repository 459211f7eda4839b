"""Replaces `requests` in plug-ins of Apprise: they write a request, and this server sends it with its own checks.

Apprise opens no connection itself. So a name is resolved once and checked, certificates are verified, redirects are
answers like others, proxies of the environment do not count, and what takes too long ends: whatever an address asks
for.
"""

import asyncio
import threading
from concurrent.futures import CancelledError, Future
from types import ModuleType
from typing import Any

from simpletuner_fleet.delivery.apprise.exchange import ServiceAnswer, exchange
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.outcome import DeliveryFailed


class RequestCarrier:
    """Sends the requests of one message. A plug-in's thread calls it, and the event loop sends."""

    def __init__(self, outbound: OutboundConnector, loop: asyncio.AbstractEventLoop) -> None:
        self._outbound = outbound
        self._loop = loop
        self._under_way: Future[ServiceAnswer] | None = None
        self._closed = threading.Event()
        self.failure: DeliveryFailed | None = None
        self.last: ServiceAnswer | None = None

    def carry(self, method: str, url: str, headers: dict[str, str], body: bytes) -> ServiceAnswer:
        """Sends one request and returns its answer. Raises DeliveryFailed."""
        if self._closed.is_set():
            raise DeliveryFailed("It took too long.")
        asked = exchange(self._outbound, method, url, headers.items(), body)
        self._under_way = asyncio.run_coroutine_threadsafe(asked, self._loop)
        if self._closed.is_set():  # by the loop, since this thread looked: nobody else would ever end it
            self._under_way.cancel()
        try:
            self.last = self._under_way.result()
        except CancelledError:
            raise DeliveryFailed("It took too long.") from None
        except DeliveryFailed as error:
            self.failure = error
            raise
        return self.last

    def close(self) -> None:
        """Ends sending for this message, though its thread may still be at work."""
        self._closed.set()
        if self._under_way is not None:
            self._under_way.cancel()


class CarriedRequests:
    """Replaces the module `requests`, with only as much of it as the listed plug-ins use."""

    def __init__(self, requests: ModuleType) -> None:
        self._requests: Any = requests
        self._carriers = threading.local()
        self.RequestException = self._requests.RequestException
        self.codes = self._requests.codes

    def carry_for_this_thread(self, carrier: RequestCarrier | None) -> None:
        self._carriers.one = carrier

    def get(self, url: str, **asked: Any) -> Any:
        return self._carried("GET", url, asked)

    def post(self, url: str, **asked: Any) -> Any:
        return self._carried("POST", url, asked)

    def _carried(self, method: str, url: str, asked: dict[str, Any]) -> Any:
        carrier: RequestCarrier | None = getattr(self._carriers, "one", None)
        if carrier is None:
            raise self.RequestException("nobody carries requests in this thread")
        written = {name: asked.get(name) for name in ("data", "json", "params", "headers", "auth")}
        prepared = self._requests.Request(method, url, **written).prepare()
        body = prepared.body or b""
        try:
            answer = carrier.carry(
                method,
                prepared.url,
                dict(prepared.headers),
                body.encode() if isinstance(body, str) else body,
            )
        except DeliveryFailed:
            raise self.RequestException("not sent") from None
        response = self._requests.Response()
        response.status_code, response.url = answer.status, prepared.url
        response.headers.update(answer.fields)
        response._content, response.encoding = answer.content, "utf-8"
        return response
