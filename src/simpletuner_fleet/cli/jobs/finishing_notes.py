"""Tells somebody who follows a log why a job whose training and log have ended is not over yet."""

import threading
from types import TracebackType
from typing import Any, Self

from simpletuner_fleet.cli.frame.errors import CliError
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.languages import _

LOOK_EVERY_S = 5.0


def finishing_text(job: dict[str, Any]) -> str | None:
    """Returns why a job that has trained has not ended yet, or None for any other job."""
    if job.get("phase") != "finishing":
        return None
    why = (job.get("progress") or {}).get("waiting_for")
    if why:
        return clean(
            _(
                "the training has ended; its results are not stored yet: %(why)s (retrying)",
                why=why,
            )
        )
    return _("the training has ended; its results are being stored …")


class FinishingNotes:
    """Prints, beside a log that is followed, what a job that has trained still waits for.

    It looks in a thread of its own, since the thread that follows the log waits for the next byte.
    """

    def __init__(self, api: Api, job_id: str, look_every_s: float = LOOK_EVERY_S) -> None:
        self._api, self._job_id, self._look_every_s = api, job_id, look_every_s
        self._over = threading.Event()
        self._said = ""
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _look_on(self) -> None:
        while not self._over.wait(self._look_every_s):
            try:
                self.look_once()
            except CliError:
                continue  # whoever follows the log is told of a connection that is cut

    def look_once(self) -> None:
        text = finishing_text(lookup.job(self._api, self._job_id))
        if text and text != self._said and not self._over.is_set():
            self._said = text
            self._api.note(text)
