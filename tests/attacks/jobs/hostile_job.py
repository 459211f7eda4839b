"""What a hostile job tries, one theft after another; prints for each what it got, or that it was refused."""

import ctypes
import json
import os
import pathlib
import signal
import socket
import sys
from collections.abc import Callable

facts = json.loads(os.environ["FACTS"])
state, victims, own = (pathlib.Path(facts[name]) for name in ("state", "victims", "own"))
view, home = pathlib.Path(facts["view"]), pathlib.Path(facts["home"])


def read(path: pathlib.Path) -> str:
    return path.read_text(errors="replace")


def search_proc(name: str) -> str:
    """Everything of others that holds a canary."""
    thefts = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / name).read_bytes()
            except OSError:
                continue
            if b"canary" in text:
                thefts.append(entry.name)
    if not thefts:
        raise PermissionError("nothing found")
    return " ".join(thefts)


def agents_files() -> str:
    folder = pathlib.Path(f"/proc/{facts['agent']}/fd")
    return " ".join(os.readlink(folder / number) for number in os.listdir(folder))


def memory_of(pid: int) -> str:
    with open(f"/proc/{pid}/mem", "rb"):
        return "opened"


def poison() -> str:
    file = view / "data.txt"
    os.chmod(file, 0o666)
    file.write_text("poisoned")
    return "written"


def replace() -> str:
    file = view / "data.txt"
    file.unlink()
    file.write_text("poisoned")
    return "replaced"


def talk(folder: pathlib.Path) -> str:
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(3)
    line.connect(str(folder / "shim.sock"))
    answer = line.recv(4096)
    if not answer:
        raise PermissionError("hung up")
    return answer.decode()


def forge(path: pathlib.Path) -> str:
    """Whether that changed anything is seen from outside: behind a wall it may have become a file of its own."""
    path.write_text("forged")
    return ""


def key_of_the_session() -> str:
    """Keys are had by whoever inherits the session that holds them, whatever user they have become."""
    libc = ctypes.CDLL(None, use_errno=True)
    keyctl, search, read_key, session = {"x86_64": 250, "aarch64": 219}[os.uname().machine], 10, 11, -3
    key = libc.syscall(keyctl, search, session, b"user", b"canary", 0)
    content = ctypes.create_string_buffer(100)
    if key < 0 or libc.syscall(keyctl, read_key, key, content, 100) < 0:
        raise PermissionError("no key")
    return content.value.decode()


def become_root() -> str:
    os.setuid(0)
    os.listdir("/root")
    return "root"


def kill(pid: int) -> str:
    os.kill(pid, signal.SIGTERM)
    return "signalled"


THEFTS: dict[str, Callable[[], str]] = {
    "the worker's token": lambda: read(state / "worker_token"),
    "the key of shims": lambda: read(state / "shim_key"),
    "another job's log": lambda: read(victims / "output.log"),
    "another job's results": lambda: read(victims / "job" / "output" / "secret.txt"),
    "another job's secrets": lambda: search_proc("environ"),
    "another job's command": lambda: read(pathlib.Path(f"/proc/{facts['victim']}/environ")),
    "the agent's memory": lambda: memory_of(facts["agent"]),
    "the memory of what forks guardians": lambda: memory_of(facts["zygote"]),
    "a signal to what forks guardians": lambda: kill(facts["zygote"]),
    "the agent's environment": lambda: read(pathlib.Path(f"/proc/{facts['agent']}/environ")),
    "the agent's files": agents_files,
    "a key of the worker's session": key_of_the_session,
    "the owner's home": lambda: read(home / ".ssh" / "id"),
    "a cached dataset, written into": poison,
    "a cached dataset, replaced": replace,
    "another job's shim": lambda: talk(victims),
    "its own end, forged": lambda: forge(own / "exit.json"),
    "its own order, forged": lambda: forge(own / "order.json"),
    "a file of the worker": lambda: forge(state / "forged"),
    "a signal to the victim": lambda: kill(facts["victim"]),
    "a signal to the agent": lambda: kill(facts["agent"]),
}
if facts["euid"] != 0:
    THEFTS["root"] = become_root

got = {}
for name, theft in THEFTS.items():
    try:
        got[name] = theft()[:200]
    except (OSError, ValueError):
        got[name] = ""
print(json.dumps(got))
sys.exit(0)
