"""Three clouds as servers of our own, each with its quirks, and the truth of what exists and costs there."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.providers.kubernetes.cluster import Cluster
from tests.providers.kubernetes.kubelet import Kubelet
from tests.providers.vendors.runpod_server import RunPodServer
from tests.providers.vendors.vast_server import VastServer
from tests.providers.vendors.vendor_server import KEY, Reply, VendorServer

Json = dict[str, Any]
MOST, IDLE_S, BOOT_S, SWEEP_S, SETTLE_S, LONGEST_LAG_S = 3, 3, 20, 0.5, 4, 2.0
FAULTS = {
    "create": ("lost answer", "lost request", "500 after", "429", "not json"),
    "list": ("lost answer", "429", "not json", "huge"),
    "offers": ("429", "lost answer", "another's 404"),
    "destroy": ("lost answer", "lost request", "500 after", "429"),
}
PROGRAM = str(Path(sys.executable).parent / "simpletuner")
INVENTORY = json.dumps([{"name": "RTX 4090", "vram_gb": 24, "count": 1}])


class Bill:
    """One machine as its cloud charges for it; times are of the monotonic clock."""

    def __init__(self, name: str, hourly: float, made_at: float) -> None:
        self.name, self.hourly, self.made_at = name, hourly, made_at
        self.ended_at: float | None = None


class Cloud:
    """`disturb` lets one thing go wrong, of which it returns the name."""

    def __init__(self, name: str, request: Json, secret: str, most_hourly: float | None) -> None:
        self.name, self.secret, self.most_hourly = name, secret, most_hourly
        self.request: Json = {
            "provider": name,
            "secret": f"{name}-key",
            "max_machines": MOST,
            "idle_s": IDLE_S,
            "boot_s": BOOT_S,
            "trainers": ["command"],
            **request,
        }
        if most_hourly is not None:
            self.request["max_hourly_micros"] = round(most_hourly * 1e6)
        self.healed = False

    def bills(self) -> list[Bill]:
        return []

    def disturb(self, chance: Random) -> str:
        return ""

    def heal(self) -> None:
        self.healed = True


class VendorCloud(Cloud):
    def __init__(self, name: str, server: VendorServer, request: Json, most_hourly: float | None) -> None:
        super().__init__(name, request, KEY, most_hourly)
        self.server = server

    def bills(self) -> list[Bill]:
        with self.server.lock:
            bills = []
            for one in self.server.machines.values():
                bill = Bill(one.name, one.dollars, one.made_at)
                bill.ended_at = one.ended_at
                bills.append(bill)
            return bills

    def disturb(self, chance: Random) -> str:
        server = self.server
        with server.lock:
            running = server.costing()
            kind = chance.choice((*FAULTS, *FAULTS, "never boots", "vanishes", "is stopped", "lags"))
            if kind in FAULTS:
                fault = chance.choice(FAULTS[kind])
                server.faults[kind].extend([fault] * chance.choice((1, 1, 2)))
                return f"{kind}: {fault}"
            if kind == "lags":
                server.lag_s = chance.uniform(0.0, LONGEST_LAG_S)
            elif kind == "never boots":
                server.duds += 1
            elif running:
                machine = chance.choice(running)
                if kind == "vanishes":
                    server.end(machine.id)
                else:
                    machine.state = "stopped"
                    server.power_off(machine)
        return kind

    def heal(self) -> None:
        super().heal()
        with self.server.lock:
            self.server.lag_s, self.server.duds = 0.0, 0
            self.server.faults.clear()


class DriftingRunPod(RunPodServer):
    """Its price is another one whenever it is asked for."""

    chance = Random(7)

    def _catalogue(self, query: dict[str, str]) -> Reply:
        self.price = round(self.chance.uniform(1.4, 2.4), 2)
        return super()._catalogue(query)


class DriftingVast(VastServer):
    chance = Random(8)

    def _offers(self, body: Any) -> Reply:
        self.min_bid = round(self.chance.uniform(0.1, 0.35), 2)
        return super()._offers(body)


class ClusterCloud(Cloud):
    def __init__(self, cluster: Cluster, kubelet: Kubelet) -> None:
        super().__init__(
            "kubernetes",
            {"settings": {"image": "worker:1", "command": PROGRAM}},
            cluster.kubeconfig(),
            None,
        )
        self.cluster, self.kubelet = cluster, kubelet
        self._bills: dict[str, Bill] = {}

    def bills(self) -> list[Bill]:
        """Looked at often: whatever is there, or still runs, costs."""
        now, there = time.monotonic(), set(self.cluster.objects["jobs"])
        for name in there - self._bills.keys():
            self._bills[name] = Bill(name, 0.0, now)
        for name, bill in self._bills.items():
            if name not in there and bill.ended_at is None:
                bill.ended_at = now
        for name, process in list(self.kubelet._processes.items()):
            if name not in there and process.poll() is None:
                process.kill()  # as the kubelet does with a pod whose Job is gone
        return list(self._bills.values())

    def disturb(self, chance: Random) -> str:
        kind = chance.choice(("429", "lost", "500", "proxy", "no pods", "vanishes"))
        cluster = self.cluster
        if kind == "429":
            cluster.busy = chance.choice((1, 2, 4))
        elif kind == "no pods":
            cluster.no_pods = "" if cluster.no_pods else "exceeded quota: gpus"
        elif kind == "vanishes":
            with cluster._lock:
                names = sorted(cluster.objects["jobs"])
                if names:
                    cluster.objects["jobs"].pop(chance.choice(names))
        else:
            cluster.after = kind
        return kind

    def heal(self) -> None:
        super().heal()
        self.cluster.busy, self.cluster.after, self.cluster.no_pods = 0, "", ""


def _vendor_request(server: VendorServer, command: str, **more: Any) -> Json:
    settings = {"image": "worker:1", "api_url": server.url, "command": command}
    return {"settings": {**settings, "settle_s": str(SETTLE_S), "sweep_s": str(SWEEP_S)}, **more}


@contextmanager
def three_clouds(folder: Path, environment: dict[str, str]) -> Iterator[list[Cloud]]:
    worker = f"exec env SIMPLETUNER_GPU_INVENTORY='{INVENTORY}' {PROGRAM} worker --work-dir {folder}/work"
    with ExitStack() as stack:
        runpod, vast = stack.enter_context(DriftingRunPod()), stack.enter_context(DriftingVast())
        for server in (runpod, vast):
            server.boots, server.within = True, environment
        for name in ("cluster", "node"):
            (folder / name).mkdir()
        cluster = Cluster(folder / "cluster")
        stack.callback(cluster.close)
        kubelet = Kubelet(cluster, folder / "node")
        stack.callback(kubelet.close)
        yield [
            VendorCloud(
                "runpod",
                runpod,
                _vendor_request(runpod, f"{worker}-$SIMPLETUNER_WORKER_NAME", max_price_micros=2_500_000),
                5.0,
            ),
            VendorCloud(
                "vast",
                vast,
                _vendor_request(
                    vast,
                    f"SIMPLETUNER_GPU_INVENTORY='{INVENTORY}' {PROGRAM} worker --work-dir {folder}/work-$CONTAINER_ID",
                    market="spot",
                ),
                0.7,
            ),
            ClusterCloud(cluster, kubelet),
        ]
