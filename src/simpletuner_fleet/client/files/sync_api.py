"""Moves files over the connections of the blocking client."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import msgspec

from simpletuner_fleet.client.answers import JSON, is_ours
from simpletuner_fleet.client.calls.call import Received, Send
from simpletuner_fleet.client.calls.caller import RouteCaller
from simpletuner_fleet.client.calls.sync_driver import SyncDriver, unpacking
from simpletuner_fleet.client.errors import fail, unreachable
from simpletuner_fleet.client.files.downloads import Downloader, files_to_download
from simpletuner_fleet.client.files.file_api import SEALING_TIMEOUT_S, leads_elsewhere
from simpletuner_fleet.client.files.uploads import Progress, Sender, name_for, read_folder
from simpletuner_fleet.client.table.fleet_answers import DatasetView
from simpletuner_fleet.client.table.result_answers import ManifestsView
from simpletuner_fleet.client.time_limits import TIMEOUT_S, read_whole, within
from simpletuner_fleet.client.troubles import NOT_FOUND, ForeignAnswer
from simpletuner_fleet.languages import _


class SyncFileApi:
    """Gives `Downloader` and `Sender` the connections of the blocking client."""

    def __init__(self, caller: RouteCaller, driver: SyncDriver) -> None:
        self._caller, self._driver = caller, driver

    @property
    def url(self) -> str:
        return self._caller.url

    def post(self, path: str, body: Any = None, *, timeout_s: float = TIMEOUT_S) -> Any:
        """Sends a POST that may be repeated, since every request made here names its content."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        request = Send("POST", path, msgspec.json.encode(body), headers, timeout_s)
        return self._document(self._driver.run(self._caller.send(request, repeatable=True)))

    def put_bytes(self, path: str, query: dict[str, Any], content: Iterable[bytes], length: int) -> Any:
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
        timeout = httpx2.Timeout(TIMEOUT_S, read=SEALING_TIMEOUT_S)
        target = f"{path}?{urlencode(query)}"
        with unpacking():
            answer = self._driver.client.put(target, content=content, headers=headers, timeout=timeout)
        received = _received(answer)
        if received.status >= 300:
            raise self._caller.refusal(received)
        return self._document(received)

    @contextmanager
    def stream(
        self, path: str, *, headers: dict[str, str] | None = None, read_timeout_s: float
    ) -> Iterator[httpx2.Response]:
        timeout = httpx2.Timeout(TIMEOUT_S, read=read_timeout_s)
        with self._driver.client.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if answer.status_code >= 400 or leads_elsewhere(answer.status_code, headers):
                with unpacking(), within(read_timeout_s):
                    whole = read_whole(answer)
                raise self._caller.refusal(_received(whole))
            yield answer

    def _document(self, received: Received) -> Any:
        if not is_ours(received.headers, JSON):
            raise unreachable(ForeignAnswer(received.status), self.url)
        try:
            return msgspec.json.decode(received.content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise unreachable(ForeignAnswer(received.status), self.url) from None


def _received(answer: httpx2.Response) -> Received:
    return Received(answer.status_code, answer.headers, answer.content)


def download(
    api: SyncFileApi, job_id: str, stored: ManifestsView, to: Path, *, latest_checkpoint: bool
) -> list[Path]:
    """Downloads into the folder and returns the files, each of which has the SHA-256 that it was stored with."""
    checkpoints = [one for one in stored.manifests if one.kind == "checkpoint"]
    if latest_checkpoint:
        newest = max(checkpoints, key=lambda one: (one.step or 0, one.created_at or ""), default=None)
        manifests = [newest] if newest else []
    else:
        manifests = [one for one in stored.manifests if one.kind == "artifact"]
    if not manifests:
        raise fail(
            _("%(job_id)s has nothing of this kind to download", job_id=job_id),
            _(
                "checkpoints: %(checkpoints)s, artifacts: %(artifacts)s",
                checkpoints=len(checkpoints),
                artifacts=len(stored.manifests) - len(checkpoints),
            ),
            (),
            "not_found",
            NOT_FOUND,
        )
    files = files_to_download(job_id, [msgspec.to_builtins(one) for one in manifests])
    Downloader(api).to_folder(to, files)
    return [to / file.place for file in files]


def push(
    api: SyncFileApi, folder: Path, name: str | None, progress: Progress, *, with_indices: bool
) -> DatasetView:
    pushed = read_folder(folder, progress, with_indices=with_indices)
    answer = Sender(api, progress).send(pushed, name or name_for(folder))
    return msgspec.convert(answer, DatasetView)
