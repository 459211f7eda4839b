"""Runs the pods of our small Kubernetes as processes of this machine: their command, with their variables."""

import base64
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests.e2e.processes import SYSTEMS_PATH
from tests.providers.kubernetes.cluster import Cluster


class Kubelet:
    """The node, with the cluster's own controllers, in a thread that ends with the test."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self._cluster.control()
            for name in list(self._cluster.objects["jobs"]):
                self._tend(name)
            self._cluster.collect()

    def _tend(self, name: str) -> None:
        running = self._processes.get(name)
        if running is None:
            if name in self._cluster.objects["secrets"] and f"{name}-x7k2p" in self._cluster.objects["pods"]:
                self._processes[name] = self._start(name, self._cluster.pod(name))
            return
        if running.poll() is not None and not self._cluster.objects["jobs"][name]["status"].get("conditions"):
            self._cluster.end(name, "Failed" if running.returncode else "Complete")

    def _start(self, name: str, pod: dict[str, Any]) -> subprocess.Popen[bytes]:
        (container,) = pod["spec"]["containers"]
        mounts = {
            mount["mountPath"]: self._folder / name / mount["name"] for mount in container["volumeMounts"]
        }
        variables = {"PATH": SYSTEMS_PATH}
        for variable in container["env"]:
            value = variable.get("value") or self._secret(variable.get("valueFrom"))
            for path, place in mounts.items():
                value = value.replace(path, str(place))
            variables[variable["name"]] = value
        for place in mounts.values():
            place.mkdir(parents=True)
        pod["status"]["phase"] = "Running"
        with (self._folder / name / "log").open("wb") as log:
            return subprocess.Popen(
                container["command"], env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _secret(self, source: Any) -> str:
        if not source:
            return ""
        secret = self._cluster.objects["secrets"][source["secretKeyRef"]["name"]]
        return base64.b64decode(secret["data"][source["secretKeyRef"]["key"]]).decode()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for process in self._processes.values():
            process.kill()
            process.wait()
