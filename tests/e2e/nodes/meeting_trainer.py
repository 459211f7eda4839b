"""A trainer in parts, one on each node, which meet where they were told: `meeting_trainer.py FOLDER`.

Part 0 listens, the others connect, and each ends with 1 when it loses another, as real ones do. Each writes who it is
into FOLDER. They run until FOLDER/gate is there: it says which part ends with 3; with none of them all end with 0.
"""

import json
import os
import select
import socket
import sys
import time
from pathlib import Path

MEET_WITHIN_S = 60.0

folder = Path(sys.argv[1])
rank, nodes = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
attempt = os.environ["SIMPLETUNER_ATTEMPT"]


def meet() -> list[socket.socket]:
    if rank == 0:
        with socket.create_server(place) as listener:
            listener.settimeout(MEET_WITHIN_S)
            return [listener.accept()[0] for _ in range(nodes - 1)]
    deadline = time.monotonic() + MEET_WITHIN_S
    while True:
        try:
            return [socket.create_connection(place)]
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def gate() -> str | None:
    try:
        return (folder / "gate").read_text()
    except FileNotFoundError:
        return None


others = meet()
about = {
    "pid": os.getpid(),
    "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
    "output": os.environ["SIMPLETUNER_OUTPUT_DIR"],
    "token": "SIMPLETUNER_UPLOAD_TOKEN" in os.environ,
    "secret": os.environ.get("PASSWORD", ""),
    "leaked": [name for name in os.environ if "NODE_SECRET" in name or "WORKER_TOKEN" in name],
}
(folder / f"met-{attempt}-{rank}.tmp").write_text(json.dumps(about))
(folder / f"met-{attempt}-{rank}.tmp").rename(folder / f"met-{attempt}-{rank}.json")
print(f"part {rank} of {nodes} has met the others", flush=True)
while (verdict := gate()) is None:
    lost, _, _ = select.select(others, [], [], 0.05)
    if lost and gate() is None:
        print("another part is gone", flush=True)
        time.sleep(1.0)  # real ones take longer to notice
        sys.exit(1)
if verdict == str(rank):
    print(f"part {rank} fails", flush=True)
    sys.exit(3)
if verdict:
    select.select(others, [], [], MEET_WITHIN_S)
    time.sleep(1.0)
    sys.exit(1)
Path(os.environ["SIMPLETUNER_OUTPUT_DIR"], f"result-{rank}").write_text("trained")
