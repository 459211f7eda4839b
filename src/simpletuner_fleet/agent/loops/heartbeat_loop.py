"""Sends heartbeats in a task of their own that waits for nothing but the clock."""

import asyncio
import logging

from simpletuner_fleet.agent.agent import Agent
from simpletuner_fleet.agent.wire.errors import Refused, TokenRejected, Unreachable

log = logging.getLogger(__name__)


async def heartbeat_loop(agent: Agent) -> None:
    await agent.connected.wait()
    while True:
        await asyncio.sleep(agent.beats_every_s)
        await heartbeat_once(agent)


async def heartbeat_once(agent: Agent) -> None:
    try:
        await agent.heartbeat()
    except Unreachable as error:
        if error.refused:
            await agent.connection_refused()
        log.warning("heartbeat not delivered: %s", error)
    except TokenRejected:
        if agent.token.reload():
            agent.token_changed.set()
    except Refused as problem:
        if problem.code == "superseded":
            agent.superseded()
        log.warning("heartbeat refused: %s", problem.detail)
