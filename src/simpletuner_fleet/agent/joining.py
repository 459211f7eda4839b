"""Exchanges the one-time token of a machine that a pool has brought for a token of the worker's own."""

import asyncio
import logging

from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.errors import Unreachable
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.protocol.messages import JoinMachine

log = logging.getLogger(__name__)

PAUSES_S = (1.0, 2.0, 4.0, 8.0)
LONGEST_PAUSE_S = 15.0
TRIES = 60


def is_for_joining(token: str | None) -> bool:
    return token is not None and token.startswith(f"{tokens.JOIN}_")


async def joined(client: OrchestratorClient, home: str) -> str:
    """Returns the worker's token. Asks again where no answer came: from the same folder it is answered the same."""
    for number in range(TRIES):
        try:
            return (await client.join(JoinMachine(home=home))).token
        except Unreachable as error:
            if number == TRIES - 1:
                raise
            pause_s = PAUSES_S[number] if number < len(PAUSES_S) else LONGEST_PAUSE_S
            log.warning("the orchestrator does not answer (%s); the next try is in %g s", error, pause_s)
            await asyncio.sleep(pause_s)
    raise AssertionError("unreachable")
