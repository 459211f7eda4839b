"""Provides machines that are pods of RunPod.

On-demand pods are rented through its REST API, v2; spot pods through its GraphQL API (`runpod_spot.py`) as long as
that exists.

A pod is recognised by its name, which is in every list: the API has no other way to find out what became of a request
whose answer was lost.
"""

from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.core.provisioning.pool import NAME_BEGINS
from simpletuner_fleet.providers.contract import (
    CreatedMachine,
    MachineOrder,
    ProviderRefused,
    ProviderSurroundings,
    ProviderUnsure,
)
from simpletuner_fleet.providers.runpod_spot import RunPodSpot
from simpletuner_fleet.providers.settings import LOG_BYTES, SettingsReader
from simpletuner_fleet.providers.vendor_http import VendorAnswer, VendorApi
from simpletuner_fleet.providers.vendor_settings import vendor_settings

API = "https://api.runpod.io"
PODS = "/v2/pods"
CLOUDS = ("secure", "community")
PROBLEM = "application/problem+json"
ENDED = frozenset({"EXITED", "ERROR"})
"""They do not work any more, and their disk costs all the same."""
FORGOTTEN = "TERMINATED"
ACCELERATORS = {"NVIDIA": "cuda", "AMD": "rocm"}
LOG_LINES, LOG_S = 200, 3.0


class GpuStock(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    availability: str = "NONE"


class GpuPrices(Struct, frozen=True, kw_only=True):
    secure: float
    community: float


class GpuType(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    name: str
    manufacturer: str
    memory: int
    price: GpuPrices
    max_count: dict[str, int]
    availability: str = "NONE"
    data_centers: list[GpuStock] = []


class GpuTypes(Struct, frozen=True):
    gpus: list[GpuType]


class Pod(Struct, frozen=True):
    id: str
    name: str
    status: str
    cost: float


class Pods(Struct, frozen=True):
    pods: list[Pod]


class RunPodProblem(Struct, frozen=True):
    title: str
    status: int
    detail: str


def said_refusal(answer: VendorAnswer) -> str | None:
    if answer.kind != PROBLEM:
        return None
    try:
        return msgspec.json.decode(answer.body, type=RunPodProblem).detail
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class RunPodProvider:
    def __init__(self, surroundings: ProviderSurroundings) -> None:
        settings = SettingsReader(surroundings.pool)
        self._settings = vendor_settings(surroundings, settings, api_url=API, command="")
        cloud = settings.word("cloud", "secure").lower()
        if cloud not in CLOUDS:
            raise Invalid(
                f"The provider's setting 'cloud' must be one of: {', '.join(CLOUDS)}.", path="$.settings"
            )
        settings.finish()
        self._cloud = cloud
        self._request = surroundings.pool.request
        self.settle_s, self.sweep_s = self._settings.settle_s, self._settings.sweep_s
        self._api = VendorApi(surroundings.http, self._settings.api_url, surroundings.key, said_refusal)
        self._spot = RunPodSpot(self._api, self._settings, cloud)

    async def offers(self) -> list[MachineOffer]:
        offers: list[MachineOffer] = []
        if self._request.market != "spot":
            for count in self._settings.counts:
                offers += [one for gpu in await self._catalogue(count) for one in self._offered(gpu, count)]
        if self._request.market != "on_demand":
            offers += await self._spot.offers()
        return offers

    async def _catalogue(self, count: int) -> list[GpuType]:
        query = {"include": "AVAILABILITY", "product": "POD", "count": count, "cloud": self._cloud.upper()}
        if self._settings.min_cuda:
            query["minCudaVersion"] = self._settings.min_cuda
        answer = await self._api.ask("GET", "/v2/catalog/gpus", query=query)
        return list(answer.decoded(GpuTypes).gpus)

    def _offered(self, gpu: GpuType, count: int) -> list[MachineOffer]:
        price = self._settings.micros(getattr(gpu.price, self._cloud) * count)
        if not price or gpu.availability == "NONE" or count > gpu.max_count.get(self._cloud, 0):
            return []
        wanted = self._request.regions
        regions = [one.id for one in gpu.data_centers if one.availability != "NONE" and one.id in wanted]
        return [
            MachineOffer(
                id=f"{gpu.id}|{count}|{region}",
                hourly_micros=price,
                gpu_name=gpu.name,
                gpus=count,
                vram_gb=float(gpu.memory),
                region=region,
                accelerator=ACCELERATORS.get(gpu.manufacturer, ""),
                disk_gb=float(self._settings.disk_gb),
                cuda=self._settings.min_cuda,
            )
            for region in (regions if wanted else [""])
        ]

    async def create(self, order: MachineOrder) -> CreatedMachine:
        if order.offer.spot:
            return await self._spot.create(order)
        gpu_id = order.offer.id.partition("|")[0]
        gpu: dict[str, Any] = {"id": gpu_id, "count": order.offer.gpus}
        if self._settings.min_cuda:
            gpu["minCudaVersion"] = self._settings.min_cuda
        body: dict[str, Any] = {
            "name": order.name,
            "image": self._settings.image,
            "cloud": self._cloud.upper(),
            "disk": self._settings.disk_gb,
            "env": order.environment,
            "gpu": gpu,
        }
        if self._settings.command:
            body["args"] = self._settings.command
        if order.offer.region:
            body["dataCenterIds"] = [order.offer.region]
        pod = (await self._api.order("POST", PODS, body)).decoded(Pod)
        if pod.name != order.name:
            raise ProviderUnsure(f"RunPod answered with another pod, {pod.name[:64]!r}")
        return CreatedMachine(provider_id=pod.id, hourly_micros=self._settings.micros(pod.cost) or None)

    async def machines(self) -> list[ListedMachine]:
        pods = (await self._api.ask("GET", PODS)).decoded(Pods).pods
        return [
            ListedMachine(
                provider_id=pod.id,
                name=pod.name,
                runs=pod.status not in ENDED,
                # What has stopped is told to cost nothing, which its disk does not know.
                hourly_micros=None if pod.status in ENDED else self._settings.micros(pod.cost) or None,
            )
            for pod in pods
            if pod.name.startswith(f"{NAME_BEGINS}-") and pod.status != FORGOTTEN
        ]

    async def destroy(self, provider_id: str) -> None:
        await self._api.end("DELETE", f"{PODS}/{path_word(provider_id)}")

    async def boot_log(self, provider_id: str) -> str:
        path = f"{PODS}/{path_word(provider_id)}/logs"
        raw = await self._api.read_some(path, {"tail": LOG_LINES}, LOG_S, 4 * LOG_BYTES)
        lines = [log_line(line) for line in raw.decode(errors="replace").splitlines()]
        return "\n".join(line for line in lines if line)[-LOG_BYTES:]


def log_line(line: str) -> str:
    if not line.startswith("data:"):
        return ""
    try:
        event = msgspec.json.decode(line.removeprefix("data:").strip())
    except msgspec.DecodeError:
        return ""
    return str(event.get("line", "")) if isinstance(event, dict) else ""


def path_word(provider_id: str) -> str:
    """Returns the id, which comes from outside, if it cannot change the path that it is put into.

    Raises ProviderRefused otherwise.
    """
    if not provider_id or not all(
        char.isascii() and (char.isalnum() or char in "-_") for char in provider_id
    ):
        raise ProviderRefused(f"{provider_id[:64]!r} is no id of a machine")
    return provider_id
