"""Provides the fleet to Python programs: `with Fleet() as fleet: fleet.submit("my-config")`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from simpletuner_fleet.client import connection
from simpletuner_fleet.client.calls import jobs as steps
from simpletuner_fleet.client.calls.caller import RouteCaller
from simpletuner_fleet.client.calls.jobs import JobRef, id_of
from simpletuner_fleet.client.calls.logs import LogPart, log_lines
from simpletuner_fleet.client.calls.sync_driver import SyncDriver, warn_user
from simpletuner_fleet.client.calls.waiting import wait
from simpletuner_fleet.client.curves import Metrics
from simpletuner_fleet.client.files import sync_api
from simpletuner_fleet.client.files.sync_api import SyncFileApi
from simpletuner_fleet.client.files.uploads import Progress
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

NO_PROGRESS: Progress = lambda what, count, total: None  # noqa: E731


class FleetClient:
    """Talks to one fleet from a program that waits for each answer.

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
        self._driver = SyncDriver(self._caller, where, warn_user)
        self._files = SyncFileApi(self._caller, self._driver)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._driver.close()

    @property
    def url(self) -> str:
        """Returns the address of the orchestrator that is used now."""
        return self._caller.url

    def whoami(self) -> WhoAmI:
        """Returns whom the token belongs to, and what it may do."""
        return self._driver.run(self._caller.call(calls.WHOAMI))

    def submit(
        self,
        config: str | Mapping[str, Any],
        *,
        config_name: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> SubmitAnswer:
        """Submits a saved config by name, or a config itself. A lost answer is asked for again; it stays one job."""
        return self._driver.run(
            steps.submit(
                self._caller,
                config,
                options,
                config_name=config_name,
                dry_run=False,
                key=idempotency_key,
            )
        )

    def dry_run(
        self,
        config: str | Mapping[str, Any],
        *,
        config_name: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> SubmitAnswer:
        """Returns what would happen if the job were submitted, and submits nothing."""
        return self._driver.run(
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
    ) -> Iterator[JobView]:
        """Iterates over jobs, newest first."""
        query = {
            "status": list(status) or None,
            "owner": owner,
            "worker_id": worker_id,
            "config_name": config_name,
            "since": since,
        }
        return self._driver.iterate(steps.jobs(self._caller, limit, query))

    def job(self, job: JobRef) -> WholeJobView:
        return self._driver.run(self._caller.call(calls.GET_JOB, path={"id": id_of(job)}))

    def explain(self, job: JobRef) -> ExplainView:
        """Returns why a job waits, and what would help."""
        return self._driver.run(self._caller.call(calls.EXPLAIN, path={"id": id_of(job)}))

    def outlook(self, job: JobRef) -> OutlookView:
        """Returns when a waiting job would start, and with which changes it would start now."""
        return self._driver.run(self._caller.call(calls.OUTLOOK, path={"id": id_of(job)}))

    def attempts(self, job: JobRef) -> list[AttemptView]:
        view = self._driver.run(self._caller.call(calls.ATTEMPTS, path={"id": id_of(job)}))
        return view.attempts

    def events(self, job: JobRef) -> JobEventsView:
        """Returns what happened to a job, and what its workers noted."""
        return self._driver.run(self._caller.call(calls.JOB_EVENTS, path={"id": id_of(job)}))

    def wait(self, job: JobRef, *, timeout_s: float | None = None, check: bool = True) -> WholeJobView:
        """Waits for a job's end, through restarts of the orchestrator.

        With `check`, any end other than completion raises `JobFailed`.
        """
        return self._driver.run(wait(self._caller, id_of(job), timeout_s, check))

    def logs(
        self,
        job: JobRef,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: str | None = None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> Iterator[str]:
        """Iterates over the lines of the newest attempt, or of another one; if followed, until that attempt's end.

        A line longer than 16 Mi characters comes as several.
        """
        part = LogPart(follow=follow, tail=tail, since=since, attempt=attempt, rank=rank)
        return self._driver.iterate(log_lines(self._caller, id_of(job), part))

    def metrics(
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
        return self._driver.run(steps.metrics(self._caller, job, keys, points, attempt, span))

    def compare(self, *jobs: JobRef) -> ComparisonView:
        """Returns up to eight jobs side by side, and where their configs differ."""
        return self._driver.run(self._caller.call(calls.COMPARE, query={"job": [id_of(job) for job in jobs]}))

    def cancel(
        self, job: JobRef, *, checkpoint_first: bool = False, grace_s: float | None = None
    ) -> WholeJobView:
        return self._driver.run(
            steps.cancel(self._caller, job, checkpoint_first=checkpoint_first, grace_s=grace_s)
        )

    def retry(
        self, job: JobRef, *, resume_from: str | None = None, idempotency_key: str | None = None
    ) -> WholeJobView:
        """Submits an ended job again, as a new one; `resume_from` is JOB or JOB:STEP."""
        return self._driver.run(steps.retry(self._caller, job, resume_from, idempotency_key))

    def set_priority(self, job: JobRef, priority: int | str) -> WholeJobView:
        return self._driver.run(steps.set_priority(self._caller, job, priority))

    def queue(self) -> StatsView:
        """Returns how many jobs are in which state, and why those at the front wait."""
        return self._driver.run(self._caller.call(calls.QUEUE_STATS))

    def artifacts(self, job: JobRef) -> list[ManifestView]:
        """Returns the stored checkpoints and artifacts of a job, oldest first."""
        view = self._driver.run(self._caller.call(calls.ARTIFACTS, path={"id": id_of(job)}))
        return view.manifests

    def download(
        self, job: JobRef, to: str | Path | None = None, *, latest_checkpoint: bool = False
    ) -> list[Path]:
        """Downloads a job's artifacts, or its newest checkpoint, into a folder (default: its id).

        Each file is verified; what is there already is not downloaded again.
        """
        job_id = id_of(job)
        stored = self._driver.run(self._caller.call(calls.ARTIFACTS, path={"id": job_id}))
        place = Path(to if to is not None else job_id)
        return sync_api.download(self._files, job_id, stored, place, latest_checkpoint=latest_checkpoint)

    def push_dataset(
        self,
        folder: str | Path,
        name: str | None = None,
        *,
        with_indices: bool = False,
        progress: Progress = NO_PROGRESS,
    ) -> DatasetView:
        """Stores a folder as a dataset (default name: the folder's). Sends only what is not stored yet."""
        return sync_api.push(self._files, Path(folder), name, progress, with_indices=with_indices)

    def workers(self, *, status: str | None = None, label: Sequence[str] = ()) -> list[WorkerView]:
        query = {"status": status, "label": list(label) or None, "local": "true"}
        view = self._driver.run(self._caller.call(calls.LIST_WORKERS, query=query))
        return view.workers

    def worker(self, worker_id: str) -> WorkerView:
        return self._driver.run(self._caller.call(calls.GET_WORKER, path={"id": worker_id}))

    def configs(self) -> list[ConfigView]:
        view = self._driver.run(self._caller.call(calls.LIST_CONFIGS))
        return view.configs

    def config(self, name: str, version: int | None = None) -> StoredConfig:
        return self._driver.run(
            self._caller.call(calls.GET_CONFIG, path={"name": name}, query={"version": version})
        )

    def save_config(self, name: str, config: Mapping[str, Any]) -> ConfigView:
        """Saves a new version of a config, unless nothing has changed."""
        return self._driver.run(self._caller.call(calls.SAVE_CONFIG, path={"name": name}, body=config))

    def datasets(self) -> list[DatasetView]:
        view = self._driver.run(self._caller.call(calls.LIST_DATASETS))
        return view.datasets

    def dataset(self, dataset_id: str) -> DatasetDetails:
        return self._driver.run(self._caller.call(calls.GET_DATASET, path={"id": dataset_id}))
