"""Provides the fleet to asyncio programs: `async with AsyncFleet() as fleet: await fleet.submit("my-config")`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from simpletuner_fleet.client import connection
from simpletuner_fleet.client.calls import jobs as steps
from simpletuner_fleet.client.calls.async_driver import AsyncDriver
from simpletuner_fleet.client.calls.caller import RouteCaller
from simpletuner_fleet.client.calls.jobs import JobRef, id_of
from simpletuner_fleet.client.calls.logs import LogPart, log_lines
from simpletuner_fleet.client.calls.sync_driver import warn_user
from simpletuner_fleet.client.calls.waiting import wait
from simpletuner_fleet.client.curves import Metrics
from simpletuner_fleet.client.files.async_moves import in_thread
from simpletuner_fleet.client.files.uploads import Progress
from simpletuner_fleet.client.fleet import NO_PROGRESS, FleetClient
from simpletuner_fleet.client.table import calls
from simpletuner_fleet.client.table.fleet_answers import (
    ConfigView,
    DatasetDetails,
    DatasetView,
    StoredConfig,
    WhoAmI,
    WorkerView,
)
from simpletuner_fleet.client.table.job_answers import (
    AttemptView,
    ExplainView,
    JobEventsView,
    JobView,
    OutlookView,
    StatsView,
    SubmitAnswer,
    WholeJobView,
)
from simpletuner_fleet.client.table.requests import SubmitOptions
from simpletuner_fleet.client.table.result_answers import ComparisonView, ManifestView


class AsyncFleetClient:
    """Talks to one fleet from an asyncio program, with the same calls as `Fleet`.

    Address, token and trust are found as the command line finds them: what is given here, the environment
    (`SIMPLETUNER_URL`, `SIMPLETUNER_API_TOKEN`, …), the settings file, what `simpletuner login` has saved, a server
    on this machine. Every error is a `ClientError` with a stable `code`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        ssl_fingerprint: str | None = None,
        ca_cert: str | Path | None = None,
        ssl_no_verify: bool | None = None,
        plain_http: bool | None = None,
        data_dir: str | Path | None = None,
        config_file: str | Path | None = None,
    ) -> None:
        where = connection.given(
            url=url,
            api_token=token,
            ssl_fingerprint=ssl_fingerprint,
            ca_cert=ca_cert,
            ssl_no_verify=ssl_no_verify,
            plain_http=plain_http,
            data_dir=data_dir,
            config_file=config_file,
        )
        self._caller = RouteCaller(where)
        self._driver = AsyncDriver(self._caller, where, warn_user)
        self._blocking = FleetClient(
            url,
            token,
            ssl_fingerprint=ssl_fingerprint,
            ca_cert=ca_cert,
            ssl_no_verify=ssl_no_verify,
            plain_http=plain_http,
            data_dir=data_dir,
            config_file=config_file,
        )
        """Moves files: disks make one wait anyhow."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._blocking.close()
        await self._driver.close()

    @property
    def url(self) -> str:
        """Returns the address of the orchestrator that is used now."""
        return self._caller.url

    async def whoami(self) -> WhoAmI:
        """Returns whom the token belongs to, and what it may do."""
        return await self._driver.run(self._caller.call(calls.WHOAMI))

    async def submit(
        self,
        config: str | Mapping[str, Any],
        *,
        config_name: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> SubmitAnswer:
        """Submits a saved config by name, or a config itself. A lost answer is asked for again; it stays one job."""
        return await self._driver.run(
            steps.submit(
                self._caller,
                config,
                options,
                config_name=config_name,
                dry_run=False,
                key=idempotency_key,
            )
        )

    async def dry_run(
        self,
        config: str | Mapping[str, Any],
        *,
        config_name: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> SubmitAnswer:
        """Returns what would happen if the job were submitted, and submits nothing."""
        return await self._driver.run(
            steps.submit(self._caller, config, options, config_name=config_name, dry_run=True, key=None)
        )

    def jobs(
        self,
        *,
        limit: int | None = 50,
        status: Sequence[str] = (),
        owner: str | None = None,
        worker_id: str | None = None,
        config_name: str | None = None,
        since: str | None = None,
    ) -> AsyncIterator[JobView]:
        """Iterates over jobs, newest first."""
        query = {
            "status": list(status) or None,
            "owner": owner,
            "worker_id": worker_id,
            "config_name": config_name,
            "since": since,
        }
        return self._driver.iterate(steps.jobs(self._caller, limit, query))

    async def job(self, job: JobRef) -> WholeJobView:
        return await self._driver.run(self._caller.call(calls.GET_JOB, path={"id": id_of(job)}))

    async def explain(self, job: JobRef) -> ExplainView:
        """Returns why a job waits, and what would help."""
        return await self._driver.run(self._caller.call(calls.EXPLAIN, path={"id": id_of(job)}))

    async def outlook(self, job: JobRef) -> OutlookView:
        """Returns when a waiting job would start, and with which changes it would start now."""
        return await self._driver.run(self._caller.call(calls.OUTLOOK, path={"id": id_of(job)}))

    async def attempts(self, job: JobRef) -> list[AttemptView]:
        view = await self._driver.run(self._caller.call(calls.ATTEMPTS, path={"id": id_of(job)}))
        return view.attempts

    async def events(self, job: JobRef) -> JobEventsView:
        """Returns what happened to a job, and what its workers noted."""
        return await self._driver.run(self._caller.call(calls.JOB_EVENTS, path={"id": id_of(job)}))

    async def wait(self, job: JobRef, *, timeout_s: float | None = None, check: bool = True) -> WholeJobView:
        """Waits for a job's end, through restarts of the orchestrator.

        With `check`, any end other than completion raises `JobFailed`.
        """
        return await self._driver.run(wait(self._caller, id_of(job), timeout_s, check))

    def logs(
        self,
        job: JobRef,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: str | None = None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> AsyncIterator[str]:
        """Iterates over the lines of the newest attempt, or of another one; if followed, until that attempt's end.

        A line longer than 16 Mi characters comes as several.
        """
        part = LogPart(follow=follow, tail=tail, since=since, attempt=attempt, rank=rank)
        return self._driver.iterate(log_lines(self._caller, id_of(job), part))

    async def metrics(
        self,
        job: JobRef,
        keys: Sequence[str] = (),
        *,
        points: int = 5000,
        attempt: int | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
    ) -> Metrics:
        """Returns a job's curves, all of them unless some are named, each with at most `points` points."""
        span = (from_step, to_step)
        return await self._driver.run(steps.metrics(self._caller, job, keys, points, attempt, span))

    async def compare(self, *jobs: JobRef) -> ComparisonView:
        """Returns up to eight jobs side by side, and where their configs differ."""
        return await self._driver.run(
            self._caller.call(calls.COMPARE, query={"job": [id_of(job) for job in jobs]})
        )

    async def cancel(
        self, job: JobRef, *, checkpoint_first: bool = False, grace_s: float | None = None
    ) -> WholeJobView:
        return await self._driver.run(
            steps.cancel(self._caller, job, checkpoint_first=checkpoint_first, grace_s=grace_s)
        )

    async def retry(
        self, job: JobRef, *, resume_from: str | None = None, idempotency_key: str | None = None
    ) -> WholeJobView:
        """Submits an ended job again, as a new one; `resume_from` is JOB or JOB:STEP."""
        return await self._driver.run(steps.retry(self._caller, job, resume_from, idempotency_key))

    async def set_priority(self, job: JobRef, priority: int | str) -> WholeJobView:
        return await self._driver.run(steps.set_priority(self._caller, job, priority))

    async def queue(self) -> StatsView:
        """Returns how many jobs are in which state, and why those at the front wait."""
        return await self._driver.run(self._caller.call(calls.QUEUE_STATS))

    async def artifacts(self, job: JobRef) -> list[ManifestView]:
        """Returns the stored checkpoints and artifacts of a job, oldest first."""
        view = await self._driver.run(self._caller.call(calls.ARTIFACTS, path={"id": id_of(job)}))
        return view.manifests

    async def download(
        self, job: JobRef, to: str | Path | None = None, *, latest_checkpoint: bool = False
    ) -> list[Path]:
        """Downloads a job's artifacts, or its newest checkpoint, into a folder (default: its id).

        Each file is verified; what is there already is not downloaded again. Runs in a thread, which ends when this is
        cancelled.
        """
        return await in_thread(lambda: self._blocking.download(job, to, latest_checkpoint=latest_checkpoint))

    async def push_dataset(
        self,
        folder: str | Path,
        name: str | None = None,
        *,
        with_indices: bool = False,
        progress: Progress = NO_PROGRESS,
    ) -> DatasetView:
        """Stores a folder as a dataset (default name: the folder's). Sends only what is not stored yet.

        Runs in a thread, which ends when this is cancelled.
        """
        return await in_thread(
            lambda: self._blocking.push_dataset(folder, name, with_indices=with_indices, progress=progress)
        )

    async def workers(self, *, status: str | None = None, label: Sequence[str] = ()) -> list[WorkerView]:
        query = {"status": status, "label": list(label) or None, "local": "true"}
        view = await self._driver.run(self._caller.call(calls.LIST_WORKERS, query=query))
        return view.workers

    async def worker(self, worker_id: str) -> WorkerView:
        return await self._driver.run(self._caller.call(calls.GET_WORKER, path={"id": worker_id}))

    async def configs(self) -> list[ConfigView]:
        view = await self._driver.run(self._caller.call(calls.LIST_CONFIGS))
        return view.configs

    async def config(self, name: str, version: int | None = None) -> StoredConfig:
        return await self._driver.run(
            self._caller.call(calls.GET_CONFIG, path={"name": name}, query={"version": version})
        )

    async def save_config(self, name: str, config: Mapping[str, Any]) -> ConfigView:
        """Saves a new version of a config, unless nothing has changed."""
        return await self._driver.run(self._caller.call(calls.SAVE_CONFIG, path={"name": name}, body=config))

    async def datasets(self) -> list[DatasetView]:
        view = await self._driver.run(self._caller.call(calls.LIST_DATASETS))
        return view.datasets

    async def dataset(self, dataset_id: str) -> DatasetDetails:
        return await self._driver.run(self._caller.call(calls.GET_DATASET, path={"id": dataset_id}))
