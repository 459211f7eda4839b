"""Provides machines that are instances of Vast.ai: offers of many hosts, on demand or by a bid.

An instance is known by its label. One that was outbid is paused, keeps its disk and its bill, and may come back by itself:
it is listed as not running, so that it is destroyed once its job has moved. When its worker ends, an instance ends its own
bill with the key that Vast.ai puts into it, which can do nothing but that.
"""

from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.core.provisioning.pool import NAME_BEGINS
from simpletuner_fleet.providers.contract import (
    CreatedMachine,
    MachineOrder,
    ProviderRefused,
    ProviderSurroundings,
    ProviderUnsure,
)
from simpletuner_fleet.providers.settings import LOG_BYTES, SettingsReader
from simpletuner_fleet.providers.vendor_http import VendorAnswer, VendorApi
from simpletuner_fleet.providers.vendor_settings import vendor_settings

API = "https://console.vast.ai"
INSTANCES = "/api/v0/instances"
PAGE, MOST_PAGES = 25, 200
OFFERS_READ = 200
LEAST_BID, MOST_BID = 0.001, 128.0
ENDED = frozenset({"stopped", "exited"})
BEYOND_RAM = 1024.0

ENDS_ITSELF = """{command}
status=$?
for pause in 1 5 15 30 60 60 60; do
  python3 -c 'import os, urllib.request as web
ended = web.Request({url} + os.environ["CONTAINER_ID"] + "/", method="DELETE")
ended.add_header("Authorization", "Bearer " + os.environ["CONTAINER_API_KEY"])
web.urlopen(ended, timeout=20)' && break
  sleep $pause
done
exit $status
"""


class Ask(Struct, frozen=True, kw_only=True):
    """Describes an offer on Vast.ai, as far as it is read. Its fields are untrusted input."""

    id: int
    gpu_name: str
    num_gpus: int
    gpu_ram: float
    dph_total: float
    min_bid: float | None = None
    reliability: float | None = None
    cuda_max_good: float | None = None
    disk_space: float = 0.0
    geolocation: str | None = None


class Asks(Struct, frozen=True):
    offers: list[Ask]


class Instance(Struct, frozen=True, kw_only=True):
    id: int
    label: str | None = None
    actual_status: str | None = None
    cur_state: str | None = None
    dph_total: float | None = None
    status_msg: str | None = None


class InstancePage(Struct, frozen=True, kw_only=True):
    instances: list[Instance]
    next_token: str | None = None


class Contract(Struct, frozen=True, kw_only=True):
    success: bool
    new_contract: int


class VastRefusal(Struct, frozen=True, kw_only=True):
    success: bool
    error: str = ""
    msg: str = ""


def said_refusal(answer: VendorAnswer) -> str | None:
    try:
        answered = msgspec.json.decode(answer.body, type=VastRefusal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if answered.success else (answered.msg or answered.error or "no reason is given")


class VastProvider:
    def __init__(self, surroundings: ProviderSurroundings) -> None:
        settings = SettingsReader(surroundings.pool)
        self._settings = vendor_settings(
            surroundings, settings, api_url=API, command="simpletuner worker --work-dir /tmp/worker"
        )
        self._reliability = settings.number("reliability", 0.95)
        self._verified = settings.word("verified", "yes") != "no"
        self._bid_over = 1.0 + settings.number("bid_over_percent", 10.0) / 100.0
        settings.finish()
        self._request = surroundings.pool.request
        self.settle_s, self.sweep_s = self._settings.settle_s, self._settings.sweep_s
        self._api = VendorApi(surroundings.http, self._settings.api_url, surroundings.key, said_refusal)

    async def offers(self) -> list[MachineOffer]:
        kinds = {"on_demand": ("ondemand",), "spot": ("bid",)}.get(self._request.market, ("bid", "ondemand"))
        return [offer for kind in kinds for offer in await self._offers_of(kind)]

    async def _offers_of(self, kind: str) -> list[MachineOffer]:
        wanted: dict[str, Any] = {
            "type": kind,
            "limit": OFFERS_READ,
            "order": [["dph_total", "asc"]],
            "allocated_storage": self._settings.disk_gb,
            "rentable": {"eq": True},
            "num_gpus": {"in": list(self._settings.counts)},
            "disk_space": {"gte": self._settings.disk_gb},
            "reliability": {"gte": self._reliability},
        }
        if self._verified:
            wanted["verified"] = {"eq": True}
        if self._settings.min_cuda:
            wanted["cuda_max_good"] = {"gte": float(self._settings.min_cuda)}
        answer = await self._api.ask("POST", "/api/v0/bundles/", body=wanted)
        instances = [self._offered(ask, spot=kind == "bid") for ask in answer.decoded(Asks).offers]
        return [offer for offer in instances if offer is not None]

    def _offered(self, ask: Ask, *, spot: bool) -> MachineOffer | None:
        dollars = ask.dph_total if not spot else (ask.min_bid or 0.0) * self._bid_over
        price = self._settings.micros(dollars)
        if not price or (spot and not LEAST_BID <= dollars <= MOST_BID):
            return None
        if ask.num_gpus not in self._settings.counts:  # nobody asked for it, and each GPU is planned with
            return None
        return MachineOffer(
            id=f"{ask.id}|{'bid' if spot else 'ondemand'}",
            hourly_micros=price,
            gpu_name=ask.gpu_name,
            gpus=ask.num_gpus,
            vram_gb=float(int(ask.gpu_ram / BEYOND_RAM)),
            spot=spot,
            region=(ask.geolocation or "").rpartition(",")[2].strip(),
            disk_gb=ask.disk_space,
            cuda="" if ask.cuda_max_good is None else f"{ask.cuda_max_good:g}",
            reliability=ask.reliability,
            single=True,
        )

    async def create(self, order: MachineOrder) -> CreatedMachine:
        url = msgspec.json.encode(f"{self._settings.api_url}{INSTANCES}/").decode()
        body: dict[str, Any] = {
            "image": self._settings.image,
            "disk": self._settings.disk_gb,
            "label": order.name,
            "runtype": "ssh",
            "onstart": ENDS_ITSELF.format(command=self._settings.command, url=url),
            "env": order.environment,
            "cancel_unavail": True,
        }
        if order.offer.spot:
            # Without a price the same call rents on demand at the full price, and does not say so.
            body["price"] = self._bid(order)
        ask_id = order.offer.id.partition("|")[0]
        if not ask_id.isdigit():
            raise ProviderRefused(f"{ask_id[:64]!r} is no offer of Vast.ai")
        answer = await self._api.order("PUT", f"/api/v0/asks/{ask_id}/", body)
        if (refused := said_refusal(answer)) is not None:
            raise ProviderRefused(refused)
        made = answer.decoded(Contract)
        return CreatedMachine(provider_id=str(made.new_contract), hourly_micros=order.offer.hourly_micros)

    def _bid(self, order: MachineOrder) -> float:
        bid = self._settings.dollars(order.offer.hourly_micros)
        if not LEAST_BID <= bid <= MOST_BID:
            raise ProviderRefused(f"Vast.ai takes no bid of {bid} dollars an hour")
        return bid

    async def machines(self) -> list[ListedMachine]:
        return [
            ListedMachine(
                provider_id=str(one.id),
                name=one.label or "",
                runs=_runs(one),
                hourly_micros=self._settings.micros(one.dph_total) or None if _runs(one) else None,
            )
            for one in await self._instances()
            if (one.label or "").startswith(f"{NAME_BEGINS}-")
        ]

    async def _instances(self) -> list[Instance]:
        """Reads all pages, or raises an exception: an instance on the last page costs as much as one on the first."""
        instances: dict[int, Instance] = {}
        seen: set[str] = set()
        query: dict[str, Any] = {"limit": PAGE}
        for _ in range(MOST_PAGES):
            answer = await self._api.ask("GET", "/api/v1/instances/", query=query)
            if (refused := said_refusal(answer)) is not None:
                raise ProviderUnsure(f"Vast.ai gave no list: {refused}")
            page = answer.decoded(InstancePage)
            instances |= {one.id: one for one in page.instances}
            if not page.next_token:
                return list(instances.values())
            if page.next_token in seen:
                raise ProviderUnsure("Vast.ai's list does not end")
            seen.add(page.next_token)
            query = {"limit": PAGE, "after_token": page.next_token}
        raise ProviderUnsure("Vast.ai's list is too long")

    async def destroy(self, provider_id: str) -> None:
        if not provider_id.isdigit():
            raise ProviderRefused(f"{provider_id[:64]!r} is no instance of Vast.ai")
        answer = await self._api.end("DELETE", f"{INSTANCES}/{provider_id}/")
        if answer.is_good and (refused := said_refusal(answer)) is not None:
            raise ProviderUnsure(f"Vast.ai did not end it: {refused}")

    async def boot_log(self, provider_id: str) -> str:
        """Returns what Vast.ai says about the instance's state.

        Logs are at an address of another host, which is not followed.
        """
        answered = [one.status_msg for one in await self._instances() if str(one.id) == provider_id]
        return (answered[0] or "")[-LOG_BYTES:] if answered else ""


def _runs(instance: Instance) -> bool:
    return instance.actual_status not in ENDED and instance.cur_state not in ENDED
