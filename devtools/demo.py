"""`./dev demo`: an orchestrator, one worker and one job that really runs, printed as it happens."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIMPLETUNER = Path(sys.executable).with_name("simpletuner")
UP_WITHIN_S = 30.0
TRAINER = """
import math, random, time
random.seed(7)
w, b = 0.0, 0.0
data = [(x / 50, 3 * x / 50 - 1 + random.gauss(0, 0.1)) for x in range(-100, 100)]
for step in range(1, 61):
    gw = gb = loss = 0.0
    for x, y in data:
        error = w * x + b - y
        loss += error * error / len(data)
        gw += 2 * error * x / len(data)
        gb += 2 * error / len(data)
    w, b = w - 0.1 * gw, b - 0.1 * gb
    if step % 10 == 0:
        print(f"step {step}/60  loss {loss:.4f}", flush=True)
    time.sleep(0.03)
print(f"learned y = {w:.2f} x + {b:.2f}")
assert abs(w - 3) < 0.1 and abs(b + 1) < 0.1
"""


class Demo:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SIMPLETUNER_")},
            "SIMPLETUNER_HOME": str(folder / "server"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "NO_COLOR": "1",
        }
        self.programs: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        say("1. Start the orchestrator")
        self.start("server", "--port", "0", "--no-local")
        url = self.server_url()
        self.environment["SIMPLETUNER_URL"] = url
        say("2. Create a worker token")
        worker = json.loads(self.simpletuner("workers", "create", "demo-worker", "--json", show=False))
        print(f"   worker {worker['worker_id']} created; its token is shown only once")
        say("3. Start the worker")
        token_file = self.folder / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(worker["token"])
        self.start(
            *("worker", "--orchestrator-url", url, "--worker-token-file", str(token_file)),
            *("--name", "demo-worker", "--persistent", "--work-dir", str(self.folder / "worker")),
        )
        say("4. Submit a job to the worker")
        config = self.folder / "fit-a-line.json"
        config.write_text(json.dumps(self.config()))
        self.simpletuner("configs", "import", str(config))
        answer = self.simpletuner("jobs", "submit", "fit-a-line", "--target", "worker", "--json", show=False)
        job_id = json.loads(answer)["job_id"]
        say(f"5. Follow {job_id}")
        self.simpletuner("jobs", "logs", "-f", job_id)
        self.simpletuner("jobs", "wait", job_id, "--timeout", "60")
        self.simpletuner("jobs", "list")
        job = json.loads(self.simpletuner("jobs", "get", job_id, "--json", show=False))
        verdict = json.loads(self.simpletuner("audit", "verify", "--json", show=False))
        print(
            f"\nThe job ended {job['status']}; {verdict['checked']} audit entries, valid: {verdict['valid']}."
        )
        return 0 if job["status"] == "completed" and verdict["valid"] else 1

    def config(self) -> dict[str, object]:
        return {
            "trainer": "command",
            "settings": {"command": [sys.executable, "-c", TRAINER]},
            "resources": {"gpus": 0},
        }

    def start(self, *arguments: str) -> None:
        command(arguments)
        self.programs.append(subprocess.Popen([SIMPLETUNER, *arguments], env=self.environment))

    def simpletuner(self, *arguments: str, show: bool = True) -> str:
        command(arguments)
        done = subprocess.run(
            [SIMPLETUNER, *arguments],
            env=self.environment,
            stdout=None if show else subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout or ""

    def server_url(self) -> str:
        told = self.folder / "server" / "server.json"
        deadline = time.monotonic() + UP_WITHIN_S
        while time.monotonic() < deadline:
            if told.exists():
                return str(json.loads(told.read_text())["url"])
            if self.programs[0].poll() is not None:
                sys.exit("the server did not start")
            time.sleep(0.05)
        sys.exit("the server did not come up in time")

    def stop(self) -> None:
        for program in reversed(self.programs):
            program.send_signal(signal.SIGTERM)
        for program in reversed(self.programs):
            program.wait(20)


def say(heading: str) -> None:
    print(f"\n{heading}", flush=True)


def command(arguments: tuple[str, ...]) -> None:
    print(f"   $ simpletuner {' '.join(arguments)}", flush=True)


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="simpletuner-demo-"))
    demo = Demo(folder)
    try:
        return demo.run()
    finally:
        demo.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
