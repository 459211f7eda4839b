"""Defines what moving files needs of a connection to the orchestrator."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol
from urllib.parse import quote

import httpx2

from simpletuner_fleet.client.errors import fail
from simpletuner_fleet.client.troubles import NOT_FOUND
from simpletuner_fleet.languages import _
from simpletuner_fleet.protocol.uploads import DIRECT_HEADER

SENT_ON = 307
SEALING_TIMEOUT_S = 600.0
"""The last part of a large file is answered when all of it was verified, a dataset when each file was looked for."""


class FileApi(Protocol):
    """Connects to the orchestrator, so that files can be moved.

    Failures are a ClientError; the caller handles transport errors of `stream` and `put_bytes`.
    """

    @property
    def url(self) -> str: ...

    def post(self, path: str, body: Any = None, *, timeout_s: float = ...) -> Any: ...

    def put_bytes(self, path: str, query: dict[str, Any], content: Iterable[bytes], length: int) -> Any: ...

    def stream(
        self, path: str, *, headers: dict[str, str] | None = None, read_timeout_s: float
    ) -> AbstractContextManager[httpx2.Response]: ...


def leads_elsewhere(status: int, headers: Mapping[str, str] | None) -> bool:
    """Tells whether an answer is a redirection that was not asked for, as files are that lie in a bucket."""
    is_asked_for = status == SENT_ON and DIRECT_HEADER in (headers or {})
    return 300 <= status < 400 and not is_asked_for


def segment(text: str) -> str:
    """Quotes the text so that it is one segment of a path; raises for dots, which would lead to another place."""
    if text in (".", ".."):
        raise fail(
            _("there is nothing called '%(name)s'", name=text),
            _("in an address it means another place"),
            _("use the id"),
            "not_found",
            NOT_FOUND,
        )
    return quote(text, safe="")
