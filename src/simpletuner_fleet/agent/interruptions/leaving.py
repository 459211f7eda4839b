"""Gives back everything that runs, in the time that is left, when this machine or this program is to end."""

import asyncio
import logging
import signal
from contextlib import suppress

from simpletuner_fleet.agent.actions import Leave
from simpletuner_fleet.agent.agent import Agent
from simpletuner_fleet.agent.attempts.attempts import SAVE_FIRST_GRACE_S
from simpletuner_fleet.agent.departure import Departure
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.interruptions.clouds import EndSeen
from simpletuner_fleet.agent.interruptions.remembered import RememberedEnd
from simpletuner_fleet.agent.loops.heartbeat_loop import heartbeat_once
from simpletuner_fleet.core.workers.interruption import LONGEST_NOTICE_S, hand_back_within

log = logging.getLogger(__name__)

STOP_SHARE, UPLOAD_SHARE = 0.5, 0.8
"""Of the grace: until the trainers are stopped, a checkpoint saved; until what is to be sent is sent."""
TELL_WITHIN_S = 3.0
SIGNAL = "signal"
"""Who has told, where only a signal is known."""
NOT_TOLD = "the orchestrator could not be told in time; the reports are kept for the next start"


def release_grace_s(shutdown_grace_s: float) -> float:
    """Returns 0 where there is too little time to save anything: the job goes on elsewhere the sooner."""
    grace_s = shutdown_grace_s * STOP_SHARE
    return grace_s if grace_s >= SAVE_FIRST_GRACE_S else 0.0


def terminate(agent: Agent, grace_s: float) -> None:
    """Gives everything back and leaves; what cannot be delivered in time, or at a second signal, waits on the disk."""
    if agent.inbox.leaving:
        agent.depart(Departure("the worker was asked to stop twice"))
        return
    agent.perform(agent.inbox.terminated("the worker was asked to stop"))
    leave_within(agent, grace_s)


def leave_within(agent: Agent, grace_s: float) -> None:
    loop = asyncio.get_running_loop()
    upload_within_s = grace_s * UPLOAD_SHARE if release_grace_s(grace_s) else 0.0
    loop.call_later(upload_within_s, agent.attempts.senders.hurry)
    loop.call_later(grace_s, agent.depart, Departure(NOT_TOLD))


class MachineEnding:
    """Acts on notices that this machine or this program is to end.

    The worker takes no new job, saves checkpoints, uploads, and gives everything back before the end.
    """

    def __init__(self, agent: Agent, signaller: str | None, remembered: RememberedEnd) -> None:
        self._agent = agent
        self._signaller = signaller
        self._remembered = remembered
        self._telling: asyncio.Task[None] | None = None
        self._shuts_down = False

    def signalled(self, number: int, left_s: float) -> None:
        """Handles a signal. SIGUSR1 is a notice, and so is SIGTERM from whoever takes machines away.

        From anybody else SIGTERM ends this program. After a notice of its cloud a machine is shut down in the usual
        way: that SIGTERM belongs to the notice and leaves the usual time; it is no second request of an impatient
        person.
        """
        agent = self._agent
        if number == signal.SIGUSR1:
            if not agent.inbox.leaving:
                self._begin(self._signaller or SIGNAL, left_s)
        elif agent.end_source and not self._shuts_down:
            self._shuts_down = True
            leave_within(agent, left_s)
        elif agent.inbox.leaving or agent.inbox.draining or self._signaller is None:
            terminate(agent, left_s)
        else:
            self._begin(self._signaller, left_s)

    def cloud_says(self, seen: EndSeen) -> None:
        """Acts on the cloud's notice that the machine ends. Whether that was true is learnt later, and remembered."""
        left_s = min(max(0.0, seen.in_s), LONGEST_NOTICE_S)
        try:
            self._remembered.note(seen.source, boottime() + left_s)
        except OSError as error:
            log.warning("the notice could not be written down: %s", error)
        self._agent.may_return = True
        self._begin(seen.source, left_s)

    def node_says(self, source: str, left_s: float) -> None:
        """Ends the worker, because one of its other nodes is to end."""
        if not self._agent.inbox.leaving:
            self._begin(source, min(max(0.0, left_s), LONGEST_NOTICE_S))

    async def _tell(self, leaves: list[Leave]) -> None:
        """Sends a heartbeat before it leaves, where there is nothing to give back.

        Whoever is told so does not wait for this worker.
        """
        if self._agent.connected.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(TELL_WITHIN_S):
                    await heartbeat_once(self._agent)
        self._agent.perform(leaves)

    def _begin(self, source: str, left_s: float) -> None:
        agent, loop, plan = self._agent, asyncio.get_running_loop(), hand_back_within(left_s)
        was_leaving = agent.inbox.leaving is not None
        log.warning("this machine is taken away in %.0f s, says %s: its jobs are given back", left_s, source)
        agent.end_source, agent.end_at = source, boottime() + plan.leave_s
        reason = f"its machine is being taken away ({source})"
        actions = [] if was_leaving else agent.inbox.machine_ends(reason, plan)
        agent.perform([action for action in actions if not isinstance(action, Leave)])
        leaves = [action for action in actions if isinstance(action, Leave)]
        self._telling = asyncio.create_task(self._tell(leaves))
        if was_leaving:
            return
        if plan.save_s is not None:
            loop.call_later(plan.save_s + plan.grace_s, lambda: agent.perform(agent.inbox.out_of_patience()))
        loop.call_later(plan.upload_s, agent.attempts.senders.hurry)
        loop.call_later(plan.leave_s, agent.depart, Departure(NOT_TOLD))
