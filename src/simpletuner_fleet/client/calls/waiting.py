"""Waits for the end of a job; the event stream says when to look again."""

import httpx2
import msgspec

from simpletuner_fleet.client.calls.call import Read, Sleep, Steps
from simpletuner_fleet.client.calls.caller import LEAST_S, RouteCaller
from simpletuner_fleet.client.errors import JobFailed, TooBusy, UnreachableError, WaitTimeout
from simpletuner_fleet.client.table import calls
from simpletuner_fleet.client.table.job_answers import WholeJobView
from simpletuner_fleet.core.jobs.states import TERMINAL as TERMINAL
from simpletuner_fleet.languages import _
from simpletuner_fleet.protocol.sse import Decoder, EventTooLarge, ServerEvent

QUIET_S = 20.0
"""The server pings every 15 s; a stream silent for longer is dead."""
LOOK_AGAIN_S = 15.0
PAUSE_S = 0.3
RECONNECT_S = 2.0


def wait(caller: RouteCaller, job_id: str, timeout_s: float | None, check: bool) -> Steps[WholeJobView]:
    """Waits through restarts of the orchestrator; once reached, only its own answer or the timeout ends this."""
    until = None if timeout_s is None else caller.monotonic() + timeout_s
    job: WholeJobView | None = None
    while True:
        try:
            left_s = _left(caller, until)
            # However little time there is, the job is looked at once.
            silent_s = max(LEAST_S, min(QUIET_S, left_s))
            yield from caller.open(calls.EVENTS, accept="text/event-stream", read_timeout_s=silent_s)
            # Looked at only once the stream stands, so that no change falls in between.
            decoder = Decoder()
            while True:
                job = yield from caller.call(calls.GET_JOB, path={"id": job_id}, until=until)
                if job.status in TERMINAL:
                    return _checked(job) if check else job
                if _left(caller, until) <= 0:
                    raise _too_late(job_id, job, timeout_s)
                yield Sleep(min(PAUSE_S, _left(caller, until)))
                if not (yield from _until_news(caller, decoder, job_id, until, silent_s)):
                    break
        except (httpx2.TransportError, EventTooLarge, UnreachableError, TooBusy) as error:
            if isinstance(error, UnreachableError) and job is None:
                raise
        if _left(caller, until) <= 0:
            raise _too_late(job_id, job, timeout_s)
        yield Sleep(min(RECONNECT_S, _left(caller, until)))


def _until_news(
    caller: RouteCaller, decoder: Decoder, job_id: str, until: float | None, silent_s: float
) -> Steps[bool]:
    """Waits for news of the job; returns whether the stream may go on: it is open, and ends when the time is up.

    A stream that could be silent for longer than `LEAST_S` after the time is up is opened anew.
    """
    looked_at = caller.monotonic()
    while until is None or caller.monotonic() + silent_s <= until + LEAST_S:
        chunk = yield Read()
        if chunk is None:
            return False
        news = any(_is_about(event, job_id) for event in list(decoder.feed(chunk)))
        if news or caller.monotonic() - looked_at > LOOK_AGAIN_S:
            return True
    return False


def _is_about(event: ServerEvent, job_id: str) -> bool:
    """Tells whether an event may mean the job's end; its progress, which comes every second, is ignored."""
    try:
        data = msgspec.json.decode(event.data)
    except (msgspec.MsgspecError, UnicodeError):
        return False
    is_this = isinstance(data, dict) and data.get("id") == job_id
    return is_this and data.get("status", "completed") in TERMINAL


def _left(caller: RouteCaller, until: float | None) -> float:
    return QUIET_S if until is None else max(0.0, until - caller.monotonic())


def _too_late(job_id: str, job: WholeJobView | None, timeout_s: float | None) -> WaitTimeout:
    return WaitTimeout(
        _("job %(job_id)s did not end within %(timeout_s)s s", job_id=job_id, timeout_s=f"{timeout_s:g}"),
        _("it is %(status)s", status=job.status if job else _("unknown")),
    )


def _checked(job: WholeJobView) -> WholeJobView:
    if job.status == "completed":
        return job
    advice = (job.failure.advice,) if job.failure else ()
    raise JobFailed(job, advice)
