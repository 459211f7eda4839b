"""Prepares the form to start a training: a config, what it last ran with, and what may be named in it."""

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.configs.bundle import Bundle, read_bundle
from simpletuner_fleet.core.configs.datasets import Dataset
from simpletuner_fleet.core.errors import no_such_job
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.core.restoring import HANDS_OFF
from simpletuner_fleet.core.workers.audience import Audience
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.owners import name_of
from simpletuner_fleet.orchestrator.configs import bundle_of, no_such_config
from simpletuner_fleet.ports import ConfigVersion, JobFilter, View

JOBS_SHOWN = 10
MOST_LABELS = 200


class LastRun(Struct, frozen=True, kw_only=True):
    """Holds the newest job of a config, and the job's own copy of the config."""

    job: Job
    bundle: Bundle


class Draft(Struct, frozen=True, kw_only=True):
    name: str
    version: int | None
    """The saved version it is; None: it is not saved."""
    bundle: Bundle
    job: Job | None = None
    """The job whose settings it begins with."""


class TrainChoices(Struct, frozen=True, kw_only=True):
    """Lists everything there is to choose from for a training: configs, trainers, labels, datasets and pools."""

    names: list[str]
    trainers: list[str]
    labels: list[str]
    """The labels of the workers there are, as key=value."""
    datasets: list[Dataset]

    pools: list[str]
    """Those that bring machines for the reader now; none while a restored server keeps its hands off them."""


class SavedConfig(Struct, frozen=True, kw_only=True):
    config: ConfigVersion
    bundle: Bundle
    by: str
    """The name of whoever saved it."""


class ConfigStory(Struct, frozen=True, kw_only=True):
    versions: list[SavedConfig]
    """The newest first."""
    jobs: list[Job]


async def draft_of(
    fleet: Fleet, owner: str, *, name: str | None, version: int | None, job_id: str | None
) -> Draft | None:
    """Returns a draft from a job's copy, a config's name, or what the owner ran last; None if there is none."""

    def look(view: View) -> Draft | None:
        if job_id:
            return _of_job(view, job_id)
        if name:
            return _of_config(view, name, version)
        return _of_habit(view, owner)

    return await fleet.read(look)


async def surroundings(fleet: Fleet, reader: VisibilityScope, *, datasets: bool) -> TrainChoices:
    """Returns the choices, without what is kept for others, also for those who maintain the machines."""

    def is_for(audience: Audience | None) -> bool:
        return audience is None or audience.includes(reader.ids, reader.teams)

    def look(view: View) -> TrainChoices:
        workers = [worker for worker in view.workers() if is_for(worker.audience)]
        labels = {f"{key}={value}" for worker in workers for key, value in worker.effective_labels.items()}
        return TrainChoices(
            names=[config.name for config in view.configs()],
            trainers=sorted({trainer for worker in workers for trainer in worker.trainers}),
            labels=sorted(labels)[:MOST_LABELS],
            datasets=view.datasets() if datasets else [],
            pools=[]
            if view.setting(HANDS_OFF)
            else [pool.name for pool in view.pools() if pool.brings_machines and is_for(pool.audience)],
        )

    return await fleet.read(look)


async def before(fleet: Fleet, name: str) -> tuple[LastRun | None, ConfigVersion | None]:
    """Returns the newest job under a config's name, and the version that is saved."""
    return await fleet.read(lambda view: (_last_run(view, name), view.config(name)))


async def saved_configs(fleet: Fleet) -> list[SavedConfig]:
    return await fleet.read(lambda view: [_saved(view, config) for config in view.configs()])


async def story_of(fleet: Fleet, name: str) -> ConfigStory:
    def look(view: View) -> ConfigStory:
        versions = view.config_versions(name)
        if not versions:
            raise no_such_config(view, name)
        newest_first = sorted(versions, key=lambda config: -config.version)
        return ConfigStory(
            versions=[_saved(view, config) for config in newest_first],
            jobs=view.jobs_page(JobFilter(config_name=name), None, JOBS_SHOWN),
        )

    return await fleet.read(look)


def _of_job(view: View, job_id: str) -> Draft:
    job = view.job(job_id)
    if job is None:
        raise no_such_job(job_id)
    return Draft(
        name=job.config_name,
        version=job.config_version or None,
        bundle=_copy_of(view, job),
        job=job,
    )


def _of_config(view: View, name: str, version: int | None) -> Draft:
    config = view.config(name, version)
    if config is None:
        raise no_such_config(view, name, version)
    return Draft(name=name, version=config.version, bundle=bundle_of(config))


def _of_habit(view: View, owner: str) -> Draft | None:
    last = view.jobs_page(JobFilter(owner=owner), None, 1)
    names = [config.name for config in view.configs()]
    chosen = last[0].config_name if last and last[0].config_name in names else next(iter(names), None)
    return _of_config(view, chosen, None) if chosen else None


def _last_run(view: View, name: str) -> LastRun | None:
    jobs = view.jobs_page(JobFilter(config_name=name), None, 1)
    return LastRun(job=jobs[0], bundle=_copy_of(view, jobs[0])) if jobs else None


def _copy_of(view: View, job: Job) -> Bundle:
    return read_bundle(msgspec.json.decode(view.job_bundle(job.id) or b'{"settings": {}}'))


def _saved(view: View, config: ConfigVersion) -> SavedConfig:
    return SavedConfig(config=config, bundle=bundle_of(config), by=name_of(view, config.created_by))
