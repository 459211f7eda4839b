"""A checkpoint and a model whose way up is cut at random bytes, many times: they arrive whole, and what arrived stays."""

import hashlib
import random
import re
import sys
from pathlib import Path

from tests.e2e.kit import World
from tests.e2e.proxy import Proxy
from tests.e2e.storage.test_checkpoints import LONG, attempt_folder, named, unpacked

CHECKPOINT_BYTES, MODEL_BYTES = 16_000_000, 9_000_000
MAKES_BOTH = f"""
import os, pathlib
output = pathlib.Path(os.environ["SIMPLETUNER_OUTPUT_DIR"])
folder = output / "checkpoint-5"
folder.mkdir()
(folder / "weights").write_bytes(os.urandom({CHECKPOINT_BYTES}))
(folder / ".guard").touch()
(output / "model.bin").write_bytes(os.urandom({MODEL_BYTES}))
"""
OFFSET = re.compile(r"offset=(\d+)")


def test_no_byte_that_arrived_is_sent_again_however_often_the_line_is_cut(bare_world: World) -> None:
    world, chance = bare_world, random.Random(5)
    cuts = [chance.choice([300, 5_000, chance.randrange(200_000, 3_000_000)]) for _ in range(12)]
    world.start_server(SIMPLETUNER_HEARTBEAT_TIMEOUT="30")
    with Proxy(world.port) as network:
        worker = world.start_worker("far-away", url=network.url)
        network.cut_uploads(cuts)
        job_id = world.submit(world.command(sys.executable, "-c", MAKES_BOTH))
        world.becomes(job_id, "completed", LONG)
        assert network.upload_cuts_left == 0, "every cut was made"
        asked = list(network.requests)
    output = attempt_folder(worker, world.attempts(job_id)[0]) / "job" / "output"
    for manifest, file in (("checkpoint-5", "checkpoint-5/weights"), ("output", "model.bin")):
        made = output / file
        assert unpacked(world, job_id, named(world, job_id, manifest))[made.name] == made.read_bytes()
        offsets = offsets_of(asked, made)
        assert offsets == sorted(offsets), "an upload never goes back"
        assert offsets.count(0) <= offsets_before_anything_came(cuts)
    assert len(offsets_of(asked, output / "checkpoint-5" / "weights")) > 4, "it was cut on the way"


def offsets_of(requests: list[str], file: Path) -> list[int]:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    uploads = [line for line in requests if line.startswith("PUT") and digest in line]
    return [int(match[1]) for line in uploads if (match := OFFSET.search(line))]


def offsets_before_anything_came(cuts: list[int]) -> int:
    """Of the shortest cuts nothing may have been kept: they end in the request's head, or before the server has looked."""
    return 1 + sum(cut < 100_000 for cut in cuts)
