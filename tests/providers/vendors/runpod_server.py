"""RunPod's REST API v2, as far as a provider of machines needs it, and its GraphQL for spot pods.

Requests are held to what the vendor publishes: unknown fields are refused, problems are `application/problem+json`.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from tests.providers.vendors.vendor_server import Reply, VendorMachine, VendorServer

PODS = "/v2/pods"


class AskedGpu(Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    count: int = 1
    minCudaVersion: str | None = None


class AskedPod(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    image: str
    gpu: AskedGpu
    env: dict[str, str] = {}
    args: str = ""
    disk: int = 20
    cloud: str = "SECURE"
    dataCenterIds: list[str] = []


class AskedSpot(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    bidPerGpu: float
    cloudType: str
    gpuTypeId: str
    gpuCount: int
    imageName: str
    dockerArgs: str
    containerDiskInGb: int
    volumeInGb: int
    env: list[dict[str, str]]
    minCudaVersion: str | None = None


class RunPodServer(VendorServer):
    def __init__(self) -> None:
        super().__init__()
        self.stock = "HIGH"
        self.price = 1.89
        self.spot_price = 0.95

    def new_id(self) -> str:
        return f"pod{len(self.machines) + 1}"

    def refusal(self, status: int, detail: str) -> Reply:
        return Reply(
            status, {"title": "refused", "status": status, "detail": detail}, "application/problem+json"
        )

    def route(
        self, method: str, path: str, query: dict[str, str], body: Any, key: str
    ) -> tuple[str, Callable[[], Reply]] | None:
        match method, path:
            case "GET", "/v2/pods":
                return "list", self._list
            case "POST", "/v2/pods":
                return "create", lambda: self._create(body)
            case "GET", "/v2/catalog/gpus":
                return "offers", lambda: self._catalogue(query)
            case "POST", "/graphql":
                return "graphql", lambda: self._graphql(body)
            case "DELETE", _ if path.startswith(f"{PODS}/"):
                return "destroy", lambda: self._destroy(path.rpartition("/")[2])
            case "GET", _ if path.endswith("/logs"):
                return "logs", lambda: Reply(
                    200, b'id: 1\ndata: {"line": "pulling the image"}\n\n', "text/event-stream"
                )
        return None

    def _catalogue(self, query: dict[str, str]) -> Reply:
        if query.get("include") != "AVAILABILITY" or query.get("product") != "POD":
            return self.refusal(400, "include and product go together")
        gpu = {
            "id": "NVIDIA A100 80GB PCIe",
            "name": "A100 80GB",
            "pool": None,
            "manufacturer": "NVIDIA",
            "memory": 80,
            "secure": True,
            "community": True,
            "price": {"secure": self.price, "community": self.price / 2},
            "maxCount": {"secure": 8, "community": 4},
            "availability": self.stock,
            "dataCenters": [
                {"id": "EU-SE-1", "name": "Sweden", "availability": self.stock},
                {"id": "US-KS-2", "name": "Kansas", "availability": "NONE"},
            ],
        }
        return Reply(200, {"gpus": [gpu]})

    def _create(self, body: Any) -> Reply:
        try:
            asked = msgspec.convert(body, AskedPod)
        except msgspec.ValidationError as error:
            return self.refusal(422, str(error))
        if self.stock == "NONE":
            return self.refusal(400, "there are no instances available")
        pod = self.make(asked.name, self.price * asked.gpu.count, asked.env, asked.args)
        return Reply(201, self._shown(pod))

    def _list(self) -> Reply:
        return Reply(200, {"pods": [self._shown(one) for one in self.machines.values() if one.is_shown()]})

    def _shown(self, pod: VendorMachine) -> dict[str, Any]:
        runs = pod.state == "running" and pod.ended_at is None
        status = "TERMINATED" if pod.ended_at else "RUNNING" if runs else "EXITED"
        return {
            "id": pod.id,
            "name": pod.name,
            "status": status,
            "cost": pod.dollars if runs else 0.0,
            "env": pod.environment,
            "image": "worker",
        }

    def _destroy(self, id: str) -> Reply:
        return Reply(204) if self.end(id) else self.refusal(404, "pod not found")

    def _graphql(self, body: Any) -> Reply:
        if "podRentInterruptable" not in body["query"]:
            gpu = {
                "id": "NVIDIA A100 80GB PCIe",
                "displayName": "A100 80GB",
                "memoryInGb": 80,
                "maxGpuCount": 8,
                "secureSpotPrice": self.spot_price,
                "communitySpotPrice": None,
            }
            return Reply(200, {"data": {"gpuTypes": [gpu]}})
        asked = msgspec.convert(body["variables"]["input"], AskedSpot)
        if asked.bidPerGpu < self.spot_price - 0.001:
            failed = {"errors": [{"message": "your bid is too low"}], "data": {"podRentInterruptable": None}}
            return Reply(200, failed)
        environment = {one["key"]: one["value"] for one in asked.env}
        pod = self.make(asked.name, asked.bidPerGpu * asked.gpuCount, environment, asked.dockerArgs)
        return Reply(200, {"data": {"podRentInterruptable": {"id": pod.id, "name": pod.name}}})
