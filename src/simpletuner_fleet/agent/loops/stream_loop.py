"""Registers the agent and listens to the stream, again and again, for as long as the agent lives."""

import asyncio
import logging

import msgspec

from simpletuner_fleet.agent.agent import Agent
from simpletuner_fleet.agent.departure import Departure
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.loops.complaint import Complaint
from simpletuner_fleet.agent.loops.greeting import Greeting
from simpletuner_fleet.agent.wire.backoff import MOST_S, NEXT_LEADER_S, Backoff
from simpletuner_fleet.agent.wire.errors import UNREADABLE, Refused, TokenRejected, Unreachable
from simpletuner_fleet.client.troubles import of_connection_error
from simpletuner_fleet.core.errors import NotLeader
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.protocol.messages import (
    CheckpointNow,
    Drain,
    JobCancel,
    JobSubmit,
    Shutdown,
    StopAttempt,
    ValidateNow,
)
from simpletuner_fleet.protocol.sse import ServerEvent

log = logging.getLogger(__name__)

PINGS_MISSED = 3
TOKEN_LOOK_S = 1.0
STOP_REASONS = {reason.value: reason for reason in (EndReason.STALE, EndReason.DRAINED)}


async def stream_loop(agent: Agent, give_up_after_s: float | None) -> None:
    """Keeps the connection. `give_up_after_s` bounds the first one alone: once connected, a worker retries for ever."""
    backoff, complaint, greeting = Backoff(), Complaint(), Greeting(agent.machine.name)
    deadline = boottime() + give_up_after_s if give_up_after_s is not None else None
    while True:
        most_s = MOST_S
        try:
            await connect_once(agent, backoff, greeting)
            complaint.clear()
        except TokenRejected as problem:
            greeting.line_is_lost()
            await _new_token(agent, problem)
        except Refused as problem:
            greeting.line_is_lost()
            most_s = NEXT_LEADER_S if problem.code == NotLeader.code else MOST_S
            if not _ends_by_refusal(agent, problem, may_give_up=give_up_after_s is not None):
                complaint.refused(problem)
        except Unreachable as error:
            greeting.line_is_lost()
            if error.refused:
                await agent.connection_refused()
            complaint.unreachable(error, agent.client.url, answered_before=agent.connected.is_set())
            if deadline is not None and not agent.connected.is_set() and boottime() > deadline:
                trouble = of_connection_error(error.cause, agent.client.url)
                agent.depart(Departure("the orchestrator cannot be reached", trouble.code))
        await asyncio.sleep(backoff.next_s(most_s))


async def connect_once(agent: Agent, backoff: Backoff, greeting: Greeting) -> None:
    answer = await agent.register()
    log.debug("registered as %s, heartbeats every %g s", answer.worker_id, answer.heartbeat_interval_s)
    greeting.say(answer, agent.client.url, persistent=agent.inbox.persistent)
    last_event_id = ""
    path = f"{answer.stream_url}&incarnation={agent.incarnation}"
    async with agent.client.stream(
        path, last_event_id, lambda: PINGS_MISSED * agent.ping_interval_s
    ) as events:
        async for event in events:
            backoff.reset()
            hear(agent, event)


def hear(agent: Agent, event: ServerEvent) -> None:
    """Carries out an event. It ignores an unknown one, which is a newer orchestrator's, and logs a broken one."""
    inbox = agent.inbox
    log.debug("heard %s", event.name)
    try:
        match event.name:
            case "job_submit":
                agent.perform(inbox.offered(msgspec.json.decode(event.data, type=JobSubmit)))
            case "job_cancel":
                order = msgspec.json.decode(event.data, type=JobCancel)
                agent.perform(inbox.told_to_stop(stop_of(order)))
            case "checkpoint_now":
                agent.perform(inbox.told_to_save(msgspec.json.decode(event.data, type=CheckpointNow)))
            case "validate_now":
                agent.perform(inbox.told_to_validate(msgspec.json.decode(event.data, type=ValidateNow)))
            case "drain":
                note = msgspec.json.decode(event.data, type=Drain).note
                log.info(
                    "draining: the current job is finished, no new one is taken%s",
                    f" ({note})" if note else "",
                )
                inbox.draining = True
            case "shutdown":
                _shut_down(agent, msgspec.json.decode(event.data, type=Shutdown).reason)
            case "token_rotated":
                agent.token.reload()
    except UNREADABLE as error:
        log.warning("an event '%s' could not be read: %s", event.name, error)


def stop_of(order: JobCancel) -> StopAttempt:
    """Reads a stop order. An unknown reason is a newer orchestrator's: the trainer is stopped all the same."""
    return StopAttempt(
        job_id=order.job_id,
        epoch=order.epoch,
        reason=STOP_REASONS.get(order.reason, EndReason.CANCELLED),
        grace_s=order.grace_s,
        save_s=order.save_s,
    )


def _shut_down(agent: Agent, reason: str) -> None:
    if reason == "superseded":
        agent.superseded()
    else:
        agent.perform(agent.inbox.told_to_leave(reason or "the orchestrator asked for it"))


async def _new_token(agent: Agent, problem: TokenRejected) -> None:
    """Waits for a new token while the trainer runs on, if there is a place it could come from."""
    if agent.token.reload():
        return
    if not agent.token.may_change and not agent.inbox.held:
        agent.depart(Departure(problem.detail, "E_INVALID_TOKEN"))
        await asyncio.Event().wait()
    log.error("%s Write the new token to the token file or send SIGHUP after doing so.", problem.detail)
    agent.token_changed.clear()
    while not agent.token.reload() and not agent.token_changed.is_set():
        await asyncio.sleep(TOKEN_LOOK_S)
        if agent.disowned(boottime()):
            log.error(
                "this worker's token is refused for too long: what ran here was given away, and is ended"
            )
        if not agent.token.may_change and not agent.inbox.held:
            agent.depart(Departure(problem.detail, "E_INVALID_TOKEN"))


def _ends_by_refusal(agent: Agent, problem: Refused, *, may_give_up: bool) -> bool:
    """Leaves where a refusal is final, and returns whether it does. A worker that stays tries again.

    An administrator may mend what it is refused for, and nobody would start it then.
    """
    waits_for_nobody = may_give_up and not agent.inbox.held and not agent.connected.is_set()
    if problem.code == "superseded":
        agent.superseded()
        return True
    if problem.status in (403, 404, 422) and waits_for_nobody:
        agent.depart(Departure(problem.detail, "E_REFUSED"))
        return True
    return False
