"""A job's log: bytes from the server, harmless text for the terminal."""

import sys
import time
from typing import Any

import httpx2

from simpletuner_fleet.agent.troubles import of_connection_error
from simpletuner_fleet.cli.api import Api
from simpletuner_fleet.cli.errors import CliError
from simpletuner_fleet.cli.lookup import segment
from simpletuner_fleet.cli.text import LogText

OFFSET_HEADER = "x-log-offset"
"""Where in the attempt's log the first byte of an answer lies."""
RECONNECTS = 5
RECONNECT_S = 1.0


def print_log(
    api: Api, job_id: str, *, follow: bool, tail: int | None, attempt: int | None, raw: bool = False
) -> None:
    """Until the log's end; followed, until the attempt's end. A cut connection goes on where it broke off."""
    text = LogText()
    query: dict[str, Any] = {"follow": 1 if follow else None, "tail": tail, "attempt": attempt}
    for _ in range(RECONNECTS):
        offset: int | None = None
        try:
            with api.stream(f"/api/jobs/{segment(job_id)}/logs", query, read_timeout_s=None) as answer:
                offset = _offset(answer, query)
                for chunk in answer.iter_bytes():
                    _show(chunk, text, raw)
                    offset = None if offset is None else offset + len(chunk)
            if not raw:
                _write(text.feed(b"", last=True))
            return
        except httpx2.TransportError as error:
            if not follow or offset is None:
                raise CliError(of_connection_error(error, api.where.url)) from None
            query = {"follow": 1, "attempt": attempt, "offset": offset}
            api.note("the connection was cut; going on where it broke off …")
            time.sleep(RECONNECT_S)


def _offset(answer: httpx2.Response, query: dict[str, Any]) -> int | None:
    told = answer.headers.get(OFFSET_HEADER, "")
    if told.isdecimal():
        return int(told)
    return None if query.get("tail") is not None else int(query.get("offset") or 0)


def _show(chunk: bytes, text: LogText, raw: bool) -> None:
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    else:
        _write(text.feed(chunk))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
