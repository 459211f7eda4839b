"""`./dev first-hour`: what somebody types who installs the built wheel on two bare machines, with the time of each command.

The two machines are network namespaces with an address each, and folders of their own: a server on the one, a worker that
joins with the very line that the server prints on the other, and a job that trains. It fails where something is not so.
Making namespaces takes root.
"""

import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parent.parent
MOST_COMMANDS = 10
INSTALL_WITHIN_S, START_WITHIN_S, JOB_WITHIN_S = 900.0, 120.0, 300.0
CONFIG = {
    "trainer": "demo",
    "settings": {"max_train_steps": 200, "checkpointing_steps": 50},
    "resources": {"gpus": 0},
}
CHECKED = (
    "certificate trusted",
    "accepts the token",
    "agrees with the server's",
    "arrives intact",
    "writable",
    "The worker can start",
)
"""What `--check` says of a worker that can start."""


class NotSo(Exception):
    """Something that the first hour promises is not so."""


class Typed(Struct, frozen=True):
    machine: str
    line: str
    seconds: float


class Machine:
    """A network namespace with one address, and a home."""

    def __init__(self, name: str, address: str, home: Path, journal: list[Typed]) -> None:
        self.name, self.address, self.home = name, address, home
        self.namespace = f"first-hour-{name}-{os.getpid()}"
        self._journal = journal
        self._started: list[subprocess.Popen[bytes]] = []
        self.home.mkdir()
        self._environment = {
            "HOME": str(home),
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            **{name: os.environ[name] for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE") if name in os.environ},
        }

    def types(self, line: str, within_s: float = START_WITHIN_S, *, on_network: bool = True) -> str:
        """Runs a line as a person does, waits for its end, and returns what it printed."""
        began = time.monotonic()
        done = subprocess.run(
            [*(self._inside() if on_network else []), "bash", "-c", line],
            cwd=self.home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
        self._note(line, began)
        if done.returncode:
            raise NotSo(f"{line!r} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout + done.stderr

    def starts(self, line: str, until: str) -> str:
        """Starts a program that stays, and waits until it has said something."""
        began = time.monotonic()
        log = self.home / f"{len(self._started)}.log"
        with log.open("wb") as output:
            self._started.append(
                subprocess.Popen(
                    [*self._inside(), "bash", "-c", f"exec {line}"],
                    cwd=self.home,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
        while until not in log.read_text("utf-8", "replace"):
            if time.monotonic() - began > START_WITHIN_S or self._started[-1].poll() is not None:
                raise NotSo(f"{line!r} never said {until!r}:\n{log.read_text('utf-8', 'replace')[-2000:]}")
            time.sleep(0.05)
        self._note(f"{line} &", began)
        return log.read_text("utf-8", "replace")

    def ends(self) -> None:
        for program in reversed(self._started):
            program.send_signal(signal.SIGTERM)
        for program in self._started:
            try:
                program.wait(30)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()

    def _inside(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace]

    def _note(self, line: str, began: float) -> None:
        typed = Typed(self.name, line, time.monotonic() - began)
        self._journal.append(typed)
        print(f"{len(self._journal):>2}. {typed.seconds:6.1f} s  {self.name}$ {hidden(line)}", flush=True)


def hidden(line: str) -> str:
    """The line with its token left out: what is printed may be kept."""
    words = line.split(" ")
    return " ".join("wt_…" if word.startswith("wt_") else word for word in words)


def main() -> int:
    if os.geteuid() != 0 or not shutil.which("ip"):
        print("./dev first-hour makes network namespaces: it needs root and the command ip (iproute2).")
        return 1
    journal: list[Typed] = []
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        wheel = built_wheel(Path(folder))
        print(
            f"{platform.freedesktop_os_release()['PRETTY_NAME']}, Python {platform.python_version()}, {wheel.name}"
        )
        head = Machine("head", "10.77.7.1", Path(folder) / "head", journal)
        gpu = Machine("gpu", "10.77.7.2", Path(folder) / "gpu", journal)
        for machine in (head, gpu):
            shutil.copy(wheel, machine.home)
        try:
            with one_cable(head, gpu):
                walk(head, gpu, wheel.name)
        except (NotSo, subprocess.TimeoutExpired) as error:
            print(f"It is not so: {error}")
            return 1
    total = sum(typed.seconds for typed in journal)
    print(f"{len(journal)} commands, {total:.1f} s in all.")
    if len(journal) > MOST_COMMANDS:
        print(f"It is not so: at most {MOST_COMMANDS} commands were promised.")
        return 1
    return 0


def walk(head: Machine, gpu: Machine, wheel: str) -> None:
    head.types("python3 -m venv fleet", INSTALL_WITHIN_S, on_network=False)
    head.types(f"fleet/bin/pip install -q './{wheel}[server]'", INSTALL_WITHIN_S, on_network=False)
    said = head.starts("fleet/bin/simpletuner-fleet server --host 0.0.0.0 --port 8001", "first log-in")
    insist(f"https://{head.address}:8001" in said, "the server says where other machines reach it", said)
    created = head.types("fleet/bin/simpletuner-fleet workers create gpu-1")
    [join] = [line for line in created.splitlines() if "START IT WITH" in line]
    line = join.partition("\t")[2]
    insist(f"--orchestrator-url https://{head.address}:8001" in line, "the line names that address", line)

    gpu.types("python3 -m venv fleet", INSTALL_WITHIN_S, on_network=False)
    gpu.types(f"fleet/bin/pip install -q ./{wheel}", INSTALL_WITHIN_S, on_network=False)
    checked = gpu.types(f"fleet/bin/{line} --check")
    for finding in (*CHECKED, "demo"):
        insist(finding in checked, f"--check tells of {finding!r}", checked)
    gpu.starts(f"fleet/bin/{line}", "connected to https://")

    head.types(f"printf %s {shlex.quote(json.dumps(CONFIG))} > demo.json")
    ended = head.types("fleet/bin/simpletuner-fleet jobs submit demo.json --follow", JOB_WITHIN_S)
    insist("Finished at step 200" in ended, "the job trains to its end", ended)
    check_results(head)


def check_results(head: Machine) -> None:
    """Looks, with commands that nobody needs to type, whether what is said to be stored is."""
    command = [*head._inside(), str(head.home / "fleet/bin/simpletuner-fleet")]
    listed = subprocess.run(
        [*command, "jobs", "list", "-o", "json"],
        cwd=head.home,
        env=head._environment,
        capture_output=True,
        text=True,
        check=True,
    )
    [job] = json.loads(listed.stdout)["items"]
    insist(job["status"] == "completed", "the job is completed", listed.stdout)
    stored = subprocess.run(
        [*command, "jobs", "artifacts", job["id"], "-o", "json"],
        cwd=head.home,
        env=head._environment,
        capture_output=True,
        text=True,
        check=True,
    )
    names = {item["name"] for item in json.loads(stored.stdout)["items"]}
    insist({"model", "samples"} <= names, "model and samples are stored", str(names))


def insist(so: bool, what: str, seen: str) -> None:
    if not so:
        raise NotSo(f"{what}. Seen:\n{seen[-3000:]}")


def built_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@contextmanager
def one_cable(head: Machine, gpu: Machine) -> Iterator[None]:
    """Joins two namespaces, which see nothing but each other."""
    ends = {head: f"h{os.getpid()}", gpu: f"g{os.getpid()}"}
    try:
        for machine in ends:
            run("ip", "netns", "add", machine.namespace)
        run("ip", "link", "add", ends[head], "type", "veth", "peer", "name", ends[gpu])
        for machine, end in ends.items():
            inside = ["ip", "-n", machine.namespace]
            run("ip", "link", "set", end, "netns", machine.namespace)
            run(*inside, "addr", "add", f"{machine.address}/24", "dev", end)
            run(*inside, "link", "set", end, "up")
            run(*inside, "link", "set", "lo", "up")
        yield
    finally:
        for machine in (gpu, head):
            machine.ends()
            subprocess.run(["ip", "netns", "del", machine.namespace], check=False, capture_output=True)


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
