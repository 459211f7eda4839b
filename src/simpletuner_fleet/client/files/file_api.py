"""Defines what moving files needs of a connection to the orchestrator."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol
from urllib.parse import quote

import httpx2

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
        self, path: str, *, headers: dict[str, str] | None = None, read_timeout_s: float | None = None
    ) -> AbstractContextManager[httpx2.Response]: ...


def segment(text: str) -> str:
    """Quotes the text so that it is one segment of a path."""
    return quote(text, safe="")
