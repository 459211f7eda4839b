"""Prices and rents RunPod's spot pods through GraphQL, which is to end early in 2027: its REST API has no spot pods.

Spot pods are listed and ended through the REST API, like every other pod.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.provisioning.offers import MachineOffer
from simpletuner_fleet.providers.contract import CreatedMachine, MachineOrder, ProviderRefused, ProviderUnsure
from simpletuner_fleet.providers.vendor_http import VendorApi
from simpletuner_fleet.providers.vendor_settings import VendorSettings

Shape = TypeVar("Shape")
GRAPHQL = "/graphql"
PRICES = """query Prices {
  gpuTypes { id displayName memoryInGb maxGpuCount secureSpotPrice communitySpotPrice }
}"""
RENT = """mutation Rent($input: PodRentInterruptableInput!) {
  podRentInterruptable(input: $input) { id name }
}"""


class SpotGpu(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    display_name: str
    memory_in_gb: int
    max_gpu_count: int = 1
    secure_spot_price: float | None = None
    community_spot_price: float | None = None


class SpotGpus(Struct, frozen=True, rename="camel"):
    gpu_types: list[SpotGpu]


class RentedPod(Struct, frozen=True):
    id: str
    name: str


class Rented(Struct, frozen=True, rename="camel"):
    pod_rent_interruptable: RentedPod | None


class RunPodSpot:
    def __init__(self, api: VendorApi, settings: VendorSettings, cloud: str) -> None:
        self._api = api
        self._settings = settings
        self._cloud = cloud

    async def offers(self) -> list[MachineOffer]:
        answer = await self._api.ask("POST", GRAPHQL, body={"query": PRICES})
        data, errors = _parts(answer.decoded(dict[str, Any]))
        if errors or data is None:
            raise ProviderUnsure(f"RunPod's spot prices cannot be had: {errors or 'no data'}")
        known = _converted(data, SpotGpus).gpu_types
        return [offer for gpu in known for offer in self._offered(gpu)]

    def _offered(self, gpu: SpotGpu) -> list[MachineOffer]:
        each = gpu.secure_spot_price if self._cloud == "secure" else gpu.community_spot_price
        offers = []
        for count in self._settings.counts:
            price = self._settings.micros(each * count) if each else None
            if price and count <= gpu.max_gpu_count:
                offers.append(
                    MachineOffer(
                        id=f"{gpu.id}|{count}|spot",
                        hourly_micros=price,
                        gpu_name=gpu.display_name,
                        gpus=count,
                        vram_gb=float(gpu.memory_in_gb),
                        spot=True,
                        disk_gb=float(self._settings.disk_gb),
                        cuda=self._settings.min_cuda,
                    )
                )
        return offers

    async def create(self, order: MachineOrder) -> CreatedMachine:
        offer = order.offer
        asked: dict[str, Any] = {
            "name": order.name,
            "bidPerGpu": self._settings.dollars(offer.hourly_micros // max(1, offer.gpus)),
            "cloudType": self._cloud.upper(),
            "gpuTypeId": offer.id.partition("|")[0],
            "gpuCount": offer.gpus,
            "imageName": self._settings.image,
            "dockerArgs": self._settings.command,
            "containerDiskInGb": self._settings.disk_gb,
            "volumeInGb": 0,
            "env": [{"key": key, "value": value} for key, value in order.environment.items()],
        }
        if self._settings.min_cuda:
            asked["minCudaVersion"] = self._settings.min_cuda
        answer = await self._api.order("POST", GRAPHQL, {"query": RENT, "variables": {"input": asked}})
        data, errors = _parts(answer.decoded(dict[str, Any]))
        rented = _converted(data, Rented).pod_rent_interruptable if data is not None else None
        if rented is not None and rented.name == order.name:
            return CreatedMachine(provider_id=rented.id, hourly_micros=offer.hourly_micros)
        if rented is None and errors:
            raise ProviderRefused(f"RunPod: {errors}")
        raise ProviderUnsure("RunPod's answer does not name the pod that was asked for")


def _parts(document: dict[str, Any]) -> tuple[Any, str]:
    errors = document.get("errors") or []
    first = errors[0] if isinstance(errors, list) and errors else {}
    said = str(first.get("message", "an error")) if isinstance(first, dict) and first else ""
    return document.get("data"), said[:300]


def _converted(data: Any, shape: type[Shape]) -> Shape:
    try:
        return msgspec.convert(data, type=shape)
    except msgspec.ValidationError as error:
        raise ProviderUnsure(f"RunPod's answer is not what it promises: {error}") from None
