"""Starts and stops the programs of the demo, which keep everything in a folder of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from simpletuner_fleet.cli.frame.errors import ExitCode, fail
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.trust import Choices
from simpletuner_fleet.languages import _

UP_WITHIN_S = 30.0


class DemoFleet:
    """Starts the demo's server and workers as real programs, in a folder of their own, as a user would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SIMPLETUNER_")},
            "SIMPLETUNER_HOME": str(folder / "server"),
            "SIMPLETUNER_HEARTBEAT_INTERVAL": "1",
            "SIMPLETUNER_HEARTBEAT_TIMEOUT": "5",
            # It stores a few megabytes: a disk too full for a real fleet is roomy enough for it.
            "SIMPLETUNER_MIN_FREE_GB": "0.2",
            "SIMPLETUNER_KEEP_FREE_GB": "0.2",
        }
        self._programs: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        print(f"   $ simpletuner {' '.join(arguments)}", flush=True)
        with (self.folder / f"{name}.log").open("wb") as log:
            self._programs[name] = subprocess.Popen(
                [sys.executable, "-m", "simpletuner_fleet.cli.main", *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def server(self) -> Api:
        self.start("server", "server", "--port", "0", "--no-local")
        state_file = self.folder / "server" / "server.json"
        deadline = time.monotonic() + UP_WITHIN_S
        while not state_file.exists():
            if self._programs["server"].poll() is not None or time.monotonic() > deadline:
                raise fail(
                    _("the demo's server did not start"),
                    self.log("server")[-600:] or _("it said nothing"),
                    "simpletuner doctor server",
                    "E_DEMO",
                    ExitCode.FAILED,
                )
            time.sleep(0.05)
        url = str(json.loads(state_file.read_text())["url"])
        token = (self.folder / "server" / "admin_token").read_text().strip()
        return Api(ConnectionSettings(url, "demo", token, "demo", Choices(), "demo", []))

    def worker(self, api: Api, name: str) -> None:
        answer = api.post("/api/admin/workers", {"name": name, "worker_type": "persistent"})
        token_file = self.folder / f"{name}.token"
        token_file.touch(mode=0o600)
        token_file.write_text(answer["token"])
        self.start(
            name,
            *("worker", "--orchestrator-url", api.where.url, "--worker-token-file", str(token_file)),
            *("--name", name, "--persistent", "--work-dir", str(self.folder / name)),
        )

    def kill_machine(self, name: str) -> None:
        """Kills the agent, its shims and their trainers at once with SIGKILL."""
        doomed = self._programs.pop(name)
        for pid in [doomed.pid, *_descendants(doomed.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        doomed.wait()

    def log(self, name: str) -> str:
        try:
            return (self.folder / f"{name}.log").read_text("utf-8", "replace")
        except OSError:
            return ""

    def stop(self) -> None:
        running = [self._programs[name] for name in sorted(self._programs, key=lambda name: name == "server")]
        for program in running:
            program.send_signal(signal.SIGTERM)
        for program in running:
            try:
                program.wait(25)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    descendants, new = [], [pid]
    while new:
        new = [child for parent in new for child in parents.get(parent, ())]
        descendants += new
    return descendants
