"""Reports the attempt's end when there is no agent any more. It is part of the shim: standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

LAST_LINES_BYTES = 16 * 1024
REPORT_FOR_S = 60.0
REPORT_TIMEOUT_S = 10.0
WHOLE_REPORT_S = 20.0
"""For all of one try: an answer may come byte by byte, each of them in time."""
PROBLEM_TYPE = "urn:simpletuner:problem:"
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


ENDED_WELL = "ended_well"
"""Not completed: the agent alone knows what is stored, and the next one sends what is not."""
AGENT_DIED = "the worker's agent has died; what it had not sent yet lies on the worker's disk"


def report(to: dict[str, Any], body: dict[str, Any]) -> bool:
    """Tries for a minute; True when the orchestrator has it, or has moved on. Whatever else answers is no orchestrator."""
    give_up_at = time.clock_gettime(CLOCK) + REPORT_FOR_S
    pause_s = 0.2
    while True:
        try:
            status, answer = post(to, body)
            if is_settled(status, answer):
                return True
            complain(f"the report was answered with {status}")
        except (OSError, ValueError) as error:
            complain(f"the report failed: {error}")
        if time.clock_gettime(CLOCK) + pause_s > give_up_at:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 8.0)


def complain(text: str) -> None:
    """Complains as `shim_files.complain` does, which a part does not import: it runs by itself in tests."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"{text}\n".encode(errors="replace"))


def is_settled(status: int, answer: bytes) -> bool:
    """Tells the orchestrator's own answers, a taken report or a problem that it is too late, from anybody else's."""
    try:
        document = json.loads(answer)
    except ValueError:
        return False
    if not isinstance(document, dict):
        return False
    if 200 <= status < 300:
        return "accepted" in document
    return status == 409 and document.get("type") == f"{PROBLEM_TYPE}{document.get('code')}"


def post(to: dict[str, Any], body: dict[str, Any]) -> tuple[int, bytes]:
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(to["url"])
    host, port = parts.hostname or "", parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = secure_connection(host, port, to)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=REPORT_TIMEOUT_S)
    try:
        with limited(WHOLE_REPORT_S):
            connection.request(
                "POST",
                f"{parts.path.rstrip('/')}/api/workers/job/{to['job_id']}/status",
                body=json.dumps(body).encode(),
                headers={"Content-Type": "application/json", "X-Upload-Token": to["upload_token"]},
            )
            answer = connection.getresponse()
            return answer.status, answer.read(65536)
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP answer: {error!r}") from error
    finally:
        connection.close()


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TimeoutError within the block once the time is over; it is for the shim, which has one thread."""

    def end(number: int, frame: object) -> None:
        raise TimeoutError(f"no whole answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def secure_connection(host: str, port: int | None, to: dict[str, Any]) -> Any:
    import http.client
    import ssl

    context = ssl.create_default_context(cafile=to["cafile"])
    if to["pinned_certfile"]:
        # Nobody but the pinned certificate and what it signed; its owner signs for one server, whatever its name.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cafile=to["pinned_certfile"])
    elif to["no_verify"]:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=REPORT_TIMEOUT_S, context=context)


def report_of(
    order: dict[str, Any], ended: dict[str, Any], outcome: str, out_of_time: bool
) -> dict[str, Any]:
    """Returns what a shim without an agent tells of how its trainer ended."""
    status, error = verdict(order, ended, outcome, out_of_time)
    if status == ENDED_WELL:
        return {
            "status": "running",
            "epoch": order["report"]["epoch"],
            "attempt": order["report"]["attempt"],
            "progress": {"phase": "finishing", "waiting_for": AGENT_DIED},
        }
    timed_out = out_of_time or ended["reason"] == "time_limit"
    return {
        "status": status,
        "reason": "time_limit" if timed_out and status == "released" else "",
        "epoch": order["report"]["epoch"],
        "attempt": order["report"]["attempt"],
        "error": error,
        "exit_code": ended["exit_code"],
        "exit_signal": ended["signal"],
        "last_lines": last_lines(order["output"], order.get("hidden", [])) if status == "failed" else None,
    }


def verdict(
    order: dict[str, Any], ended: dict[str, Any], outcome: str, out_of_time: bool
) -> tuple[str, str | None]:
    match ended["reason"]:
        case "exited" if ended["exit_code"] == 0 and not order.get("exit_tells", True):
            return "lost", "the worker agent died before it could tell whether the training is complete"
        case "exited" if ended["exit_code"] == 0:
            return ENDED_WELL, None
        case "exited" if ended["signal"]:
            return "failed", ended["error"] or f"the trainer was ended by signal {ended['signal']}"
        case "exited":
            return "failed", ended["error"] or f"the trainer ended with exit code {ended['exit_code']}"
        case "start_failed":
            return "lost" if ended.get("blame") == "worker" else "failed", ended["error"]
        case "time_limit":
            how = "released" if order.get("time_limit_save_s") else "failed"
            return how, f"the time limit of {order['time_limit_s']:g} s was reached"
        case "agent_lost" if out_of_time:
            return "released", f"the time limit of {order['time_limit_s']:g} s was reached"
        case "fenced":
            return "lost", "the worker was cut off for longer than its lease"
        case "stopped":
            return outcome, "the worker agent died while it stopped the trainer"
        case _:
            return "lost", "the worker agent died"


def hidden_in(data: bytes, values: Iterable[bytes]) -> bytes:
    """Returns as many bytes, with asterisks for each of these values; occurrences that overlap are hidden wholly."""
    masked = bytearray(data)
    for value in values:
        at = data.find(value)
        while at >= 0:
            end = _end_of_run(data, value, at)
            masked[at:end] = b"*" * (end - at)
            at = data.find(value, end - len(value) + 1)
    return bytes(masked)


def _end_of_run(data: bytes, value: bytes, at: int) -> int:
    """Returns the end of the last occurrence in a run in which each overlaps the one before by as much.

    A value that repeats itself, such as a line of dashes, may occur at every byte: finding each would take the product
    of both lengths.
    """
    end = at + len(value)
    following = data.find(value, at + 1, end + len(value) - 1)
    if following < 0:
        return end
    step = value[at - following :]
    end = following + len(value)
    while data.startswith(step, end):
        end += len(step)
    return end


def last_lines(path: str, hidden: list[str]) -> str:
    """Returns the output's end without the secrets, also one that the first of these bytes are the end of.

    It begins with a whole line; where there is none, with an ellipsis.
    """
    values = [value.encode() for value in hidden]
    around = max(map(len, values), default=1) - 1
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - LAST_LINES_BYTES - 1)
            first = max(0, start - around)
            file.seek(first)
            data = file.read(size - first)
    except OSError:
        return ""
    text = hidden_in(data, values)[start - first :].decode("utf-8", "replace")
    if size > LAST_LINES_BYTES:
        cut, _, whole = text.partition("\n")
        text = whole if whole.strip() else f"…{cut[1:]}"
    readable = "".join(mark for mark in text if mark in "\n\t" or mark.isprintable())
    # Again: a secret with controls in it is whole only now.
    return hidden_in(readable.encode(), values).decode("utf-8", "replace")
