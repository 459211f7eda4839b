"""Sends messages to services by their Apprise addresses: in a thread, within a time, and with Apprise's own log off.

That log would hold addresses and answers.
"""

import asyncio
import importlib
import importlib.util
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.notices.services import Service, check_options, service_of
from simpletuner_fleet.delivery.apprise.carrier import CarriedRequests, RequestCarrier
from simpletuner_fleet.delivery.formats import unmarked
from simpletuner_fleet.delivery.http_post import TIMEOUT_S, judged
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.outcome import DeliveryFailed
from simpletuner_fleet.delivery.wording import Wording

THREADS = 32
"""So many messages are sent at once: far more than one person has endpoints, which may all be frozen."""
CHECKS = 4
"""So many addresses are checked at once, whatever is being sent."""
AGENT = "SimpleTuner"
NOT_TAKEN = "The service answered, and did not take the message."
NOT_WRITTEN = "No message can be written for this address."


def is_installed() -> bool:
    return importlib.util.find_spec("apprise") is not None


class AppriseSender:
    """Sends messages to services by their Apprise addresses.

    It loads Apprise when the first message or address needs it, and of its plug-ins only those of listed
    services. A plug-in's module is the same for all who load it, and so is what its requests go through.
    """

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(THREADS)
        """To be held while a message is sent: its time begins when there is a thread for it."""
        self._threads = ThreadPoolExecutor(THREADS + CHECKS, thread_name_prefix="apprise")
        self._loading = threading.Lock()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def check(self, address: str) -> None:
        """Raises Invalid where Apprise cannot read the address, or reads more from it than it may."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._opened, address)

    async def send(
        self, outbound: OutboundConnector, address: str, wording: Wording, timeout_s: float = TIMEOUT_S
    ) -> str:
        """Returns what was answered, in a few words. Raises DeliveryFailed."""
        loop = asyncio.get_running_loop()
        carrier = RequestCarrier(outbound, loop)
        try:
            async with asyncio.timeout(timeout_s):
                taken = await loop.run_in_executor(self._threads, self._notify, carrier, address, wording)
        except TimeoutError:
            raise DeliveryFailed(f"No answer within {timeout_s:g} s.") from None
        except Invalid as error:
            raise DeliveryFailed(error.detail, hopeless=True) from None
        finally:
            carrier.close()
        return _outcome(carrier, taken=taken)

    def _notify(self, carrier: RequestCarrier, address: str, wording: Wording) -> bool:
        plugin, service = self._opened(address)
        apprise: Any = importlib.import_module("apprise")
        services = apprise.Apprise(asset=plugin.asset)
        services.add(plugin)
        shown = _plain if service.renders else str
        kind = apprise.NotifyType.WARNING if wording.bad else apprise.NotifyType.INFO
        body = "\n".join([*map(shown, wording.lines), *([wording.link] if wording.link else [])])
        requests = self._loaded(service)[1]
        requests.carry_for_this_thread(carrier)
        try:
            return bool(
                services.notify(
                    body=body or shown(wording.title),
                    title=shown(wording.title),
                    notify_type=kind,
                    body_format=plugin.notify_format if service.renders else apprise.NotifyFormat.TEXT,
                )
            )
        except Exception:  # its text may hold the address
            return False
        finally:
            requests.carry_for_this_thread(None)

    def _opened(self, address: str) -> tuple[Any, Service]:
        """Returns the plug-in for one message, and what it may do."""
        service = service_of(address)
        made, _ = self._loaded(service)
        try:
            read = made.parse_url(address)
        except Exception:  # its text may hold the address
            read = None
        if not read:
            raise Invalid(f"The address must be as {service.example}.", path="$.address")
        check_options(service, (option for part in ("qsd", "qsd+", "qsd-", "qsd:") for option in read[part]))
        try:
            plugin = _as_long(made, service)(**{**read, "asset": self._asset(), "secure": True})
        except Exception:
            raise Invalid(f"The address must be as {service.example}.", path="$.address") from None
        plugin.request_rate_per_sec = 0
        plugin.overflow_mode = "truncate"  # a service refuses what is too long, however often it is sent
        return plugin, service

    def _asset(self) -> Any:
        """Keeps nothing on disk, reads no template, starts no thread of its own, tries once."""
        apprise: Any = importlib.import_module("apprise")
        return apprise.AppriseAsset(
            storage_mode=apprise.PersistentStoreMode.MEMORY,
            allow_templates=False,
            service_timeout=0,
            result_log_disk_size=0,
            async_mode=False,
            http_redirects=False,
            app_id=AGENT,
            app_desc=AGENT,
            image_url_mask="",
        )

    def _loaded(self, service: Service) -> tuple[Any, CarriedRequests]:
        """Returns the plug-in's class, and what it has in place of `requests`."""
        with self._loading:
            logging.getLogger("apprise").disabled = True  # it writes down addresses and what was answered
            names = vars(importlib.import_module(f"apprise.plugins.{service.module}"))
            requests = names.get("requests")
            if requests is None or service.plugin not in names:
                raise Invalid(
                    f"The Apprise of this server cannot tell {service.name}: it is of a release not tried.",
                    path="$.address",
                )
            if not isinstance(requests, CarriedRequests):
                requests = names["requests"] = CarriedRequests(requests)
            return names[service.plugin], requests


def _as_long(made: Any, service: Service) -> Any:
    return type(made.__name__, (made,), {"body_maxlen": service.most_chars}) if service.most_chars else made


def _plain(text: str) -> str:
    """Keeps it as it is written, whatever it means in Markdown; a space of no width keeps an @ from calling anybody."""
    return unmarked(text).replace("@", "@\u200b")


def _outcome(carrier: RequestCarrier, *, taken: bool) -> str:
    if carrier.failure is not None:
        raise carrier.failure
    if carrier.last is None:
        raise DeliveryFailed(NOT_WRITTEN)
    said = judged(carrier.last.status, carrier.last.fields, time.time())
    if not taken:
        raise DeliveryFailed(NOT_TAKEN)
    return said
