"""Tells the orchestrator which options this worker's trainers take, so that configs can be checked before they run.

To ask a trainer means to load it, which may take minutes: it is done once for each release, beside and after
everything else, and the answer is kept.
"""

import asyncio
import logging
from pathlib import Path

import msgspec
from msgspec import Struct

from simpletuner_fleet.agent.state_dir import write_whole
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.errors import Refused, TokenRejected, Unreachable
from simpletuner_fleet.core.configs.options import Options
from simpletuner_fleet.protocol.messages import TrainerOptions
from simpletuner_fleet.trainers.registry import Registry

log = logging.getLogger(__name__)

ASKED_FOR = 2
"""Raised when more is asked of a trainer than before: what was kept is then asked for again."""
AGAIN_S = (10.0, 60.0, 600.0, 3600.0)


class Kept(Struct, frozen=True):
    """Stores a trainer's answer with what was asked: another release, or another Python, is asked again."""

    installed: str
    options: Options
    asked_for: int = 1


async def tell_options(trainers: Registry, client: OrchestratorClient, folder: Path) -> None:
    for name in await asyncio.to_thread(trainers.available):
        options = await asyncio.to_thread(known_options, trainers, name, folder)
        if options:
            await _send(client, name, options)


def known_options(trainers: Registry, name: str, folder: Path) -> Options | None:
    trainer = trainers.habits(name)
    installed = trainer.installed()
    if installed is None:
        return None
    file = folder / f"options-{name}.json"
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=Kept)
        if (kept.installed, kept.asked_for) == (installed, ASKED_FOR):
            return kept.options
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        pass
    options = trainer.options()
    if options:
        write_whole(file, msgspec.json.encode(Kept(installed, options, ASKED_FOR)))
    else:
        log.warning(
            "the trainer %s could not be asked for its options: configs are not checked against it", name
        )
    return options


async def _send(client: OrchestratorClient, name: str, options: Options) -> None:
    for wait_s in (*AGAIN_S, None):
        try:
            await client.send_trainer_options(TrainerOptions(trainer=name, options=options))
            return
        except (Unreachable, TokenRejected) as error:
            if wait_s is None:
                log.warning("the options of %s were not told: %s", name, error)
                return
            await asyncio.sleep(wait_s)
        except Refused as problem:
            log.info("the options of %s were not taken: %s", name, problem.detail)
            return
