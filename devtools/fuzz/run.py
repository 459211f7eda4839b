"""One seed, one server: whatever process it runs in, it sends the same."""

import asyncio
import logging
import sys

import uvloop

from devtools.fuzz.agent.calls import fuzz_calls
from devtools.fuzz.agent.events import fuzz_events
from devtools.fuzz.judge import Defect, LogWatch, Tally
from devtools.fuzz.rounds import Round

PER_SERVER = 4000
AGENT_CALLS, AGENT_EVENTS = 600, 200
"""How many of a server's inputs go to the agent instead; the latter in every tenth server, ten times as many."""
EVENTS_EVERY = 10
SWITCH_INTERVAL_S = 0.0001
"""As the server has it."""


def run_seed(work: tuple[int, int], only: str = "") -> tuple[Tally, list[Defect]]:
    """One server and its share of the agent's side. What it finds depends on the seed alone.

    With `only` the server gets nothing but this kind of input, and the agent nothing.
    """
    seed, inputs = work
    calls = 0 if only else inputs * AGENT_CALLS // PER_SERVER
    has_events = not only and seed % EVENTS_EVERY == 0
    events = inputs * AGENT_EVENTS * EVENTS_EVERY // PER_SERVER if has_events else 0
    tally, log, defects = Tally(), LogWatch(), list[Defect]()
    logging.getLogger().setLevel(logging.WARNING)
    log.attach()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as as_the_server:
            as_the_server.run(Round(seed, inputs - calls - events, tally, log, defects, only).run())
        with asyncio.Runner() as as_the_agent:
            defects += as_the_agent.run(fuzz_calls(seed, calls, tally))
            if events:
                defects += as_the_agent.run(fuzz_events(seed, events, tally, log))
    finally:
        log.detach()
    return tally, defects


def servers(seed: int, inputs: int) -> list[tuple[int, int]]:
    return [(seed + at, min(PER_SERVER, inputs - at * PER_SERVER)) for at in range(-(-inputs // PER_SERVER))]
