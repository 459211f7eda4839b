"""Vast.ai's API, as far as a provider of machines needs it: offers, bids, pages of 25, and keys of one instance each."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from tests.providers.vendors.vendor_server import Reply, VendorMachine, VendorServer

INSTANCES = "/api/v0/instances/"
PAGE = 25


class AskedInstance(Struct, kw_only=True, forbid_unknown_fields=True):
    image: str
    disk: float
    label: str
    runtype: str
    onstart: str
    env: dict[str, str]
    cancel_unavail: bool
    price: float | None = None


class VastServer(VendorServer):
    def __init__(self) -> None:
        super().__init__()
        self.price = 0.5
        self.min_bid = 0.2
        self.gpus = 1
        self.searches: list[Any] = []
        self.list_fails = ""
        """What goes wrong with its list, which it says in an answer of status 200."""

    def refusal(self, status: int, detail: str) -> Reply:
        return Reply(status, {"success": False, "error": "error", "msg": detail})

    def environment_within(self, machine: VendorMachine) -> dict[str, str]:
        return {"CONTAINER_ID": machine.id, "CONTAINER_API_KEY": machine.own_key}

    def route(
        self, method: str, path: str, query: dict[str, str], body: Any, key: str
    ) -> tuple[str, Callable[[], Reply]] | None:
        match method, path:
            case "POST", "/api/v0/bundles/":
                return "offers", lambda: self._offers(body)
            case "GET", "/api/v1/instances/":
                return "list", lambda: self._list(query)
            case "PUT", _ if path.startswith("/api/v0/asks/"):
                return "create", lambda: self._create(body)
            case "DELETE", _ if path.startswith(INSTANCES):
                return "destroy", lambda: self._destroy(path.split("/")[4])
        return None

    def _offers(self, body: Any) -> Reply:
        self.searches.append(body)
        ask = {
            "id": 77,
            "gpu_name": "RTX 4090",
            "num_gpus": self.gpus,
            "gpu_ram": 24564,
            "dph_total": self.price,
            "min_bid": self.min_bid,
            "reliability": 0.991,
            "cuda_max_good": 12.8,
            "disk_space": 400.5,
            "geolocation": "Sweden, SE",
            "verification": "verified",
            "rentable": True,
        }
        return Reply(200, {"offers": [ask]})

    def _create(self, body: Any) -> Reply:
        try:
            asked = msgspec.convert(body, AskedInstance)
        except msgspec.ValidationError as error:
            return self.refusal(400, str(error))
        if asked.price is not None and asked.price < self.min_bid:
            return self.refusal(410, "the bid is below the least")
        machine = self.make(asked.label, asked.price or self.price, asked.env, asked.onstart)
        return Reply(
            200, {"success": True, "new_contract": int(machine.id), "instance_api_key": machine.own_key}
        )

    def _list(self, query: dict[str, str]) -> Reply:
        if self.list_fails:
            failed = {"success": False, "error": "error", "msg": self.list_fails}
            return Reply(200, {**failed, "instances": [], "next_token": None})
        begin = int(query.get("after_token", "0"))
        shown = [one for one in self.machines.values() if one.is_shown() and one.ended_at is None]
        rows = [self._shown(one) for one in shown[begin : begin + PAGE]]
        more = str(begin + PAGE) if begin + PAGE < len(shown) else None
        return Reply(
            200, {"success": True, "instances": rows, "next_token": more, "total_instances": len(shown)}
        )

    @staticmethod
    def _shown(machine: VendorMachine) -> dict[str, Any]:
        return {
            "id": int(machine.id),
            "label": machine.name or None,
            "actual_status": machine.state,
            "cur_state": machine.state,
            "intended_status": "running",
            "dph_total": machine.dollars,
            "status_msg": "success, running",
        }

    def _destroy(self, id: str) -> Reply:
        return Reply(200, {"success": True}) if self.end(id) else self.refusal(404, "no such instance")
