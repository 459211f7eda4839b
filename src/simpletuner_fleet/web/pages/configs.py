"""Shows the saved configs, and each with its versions, the changes between them, and the jobs that ran with it."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from simpletuner_fleet.core.configs.bundle import Bundle, gpus_of, setting
from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.people.ownership import may_change
from simpletuner_fleet.engine.memory.owners import name_of
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.ownership import writer_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.orchestrator import configs as saved
from simpletuner_fleet.queries import drafts
from simpletuner_fleet.queries.drafts import ConfigStory, SavedConfig
from simpletuner_fleet.web.frame.page import page
from simpletuner_fleet.web.parts.jobs.differences import Differences, differences, json_text

SUMMARY_KEYS = ("model_family", "model_type", "max_train_steps")
SUMMARY_CHARS = 80


class ConfigPageQuery(Struct, kw_only=True):
    version: Annotated[int, Meta(ge=1)] | None = None


class ConfigQuery(ConfigPageQuery, kw_only=True):
    from_: Annotated[int, Meta(ge=1)] | None = field(default=None, name="from")
    to: Annotated[int, Meta(ge=1)] | None = None


class ConfigRow(Struct, frozen=True, kw_only=True):
    name: str
    version: int
    trainer: str
    gpus: int
    summary: str
    at: float
    by: str


async def configs(call: Call[None]) -> Reply:
    all_configs = await drafts.saved_configs(deps_of(call).fleet)
    return page(
        call,
        "training/configs.html",
        rows=[config_row(one) for one in all_configs],
        may_save=call.principal.can("configs.write"),
        may_train=call.principal.can("queue.submit"),
    )


async def config(call: Call[None]) -> Reply:
    query, name = call.query, call.path["name"]
    story = await drafts.story_of(deps_of(call).fleet, name)
    selected = _version(story, name, query.version or query.to)
    before = _before(story, name, selected, query.from_)
    return page(
        call,
        "training/config.html",
        name=name,
        selected=selected,
        before=before,
        row=config_row(selected),
        newest=story.versions[0].config.version,
        versions=story.versions,
        changes=await differences(before.bundle, selected.bundle) if before else Differences(),
        parts_of=_parts(selected.bundle),
        jobs=story.jobs,
        job_title=job_title,
        owner=await deps_of(call).fleet.read(lambda view: name_of(view, selected.config.owner)),
        may_save=call.principal.can("configs.write") and may_change(writer_of(call), selected.config.owner),
        may_train=call.principal.can("queue.submit"),
        may_see_jobs=call.principal.can("jobs.read"),
    )


async def export(call: Call[None]) -> Reply:
    """Returns one file that can be imported again, here and on the command line."""
    name = call.path["name"]
    saved_config = await saved.get_config(deps_of(call).fleet, name, call.query.version)
    text = json_text(msgspec.to_builtins(saved.bundle_of(saved_config))) + "\n"
    headers = {
        "content-disposition": f'attachment; filename="{name}-v{saved_config.version}.json"',
        "x-content-type-options": "nosniff",
    }
    return Reply(body=text.encode(), headers=headers)


def config_row(one: SavedConfig) -> ConfigRow:
    return ConfigRow(
        name=one.config.name,
        version=one.config.version,
        trainer=one.bundle.trainer,
        gpus=gpus_of(one.bundle),
        summary=_summary(one.bundle),
        at=one.config.created_at,
        by=one.by,
    )


def job_title(job: Job) -> str:
    return job.name or job.id


def _summary(bundle: Bundle) -> str:
    """Returns the settings that tell a config from others."""
    if bundle.trainer == "command":
        return " ".join(map(str, bundle.settings.get("command", ())))[:SUMMARY_CHARS]
    summary = [setting(bundle.settings, key) for key in SUMMARY_KEYS]
    return " · ".join(str(value) for value in summary if value not in (None, ""))[:SUMMARY_CHARS]


def _version(story: ConfigStory, name: str, version: int | None) -> SavedConfig:
    for one in story.versions:
        if version is None or one.config.version == version:
            return one
    raise NotFound(f"Config '{name}' has no version {version}.")


def _before(story: ConfigStory, name: str, selected: SavedConfig, version: int | None) -> SavedConfig | None:
    """Returns the version to compare with: the one named, otherwise the one before this, if there is one."""
    if version is not None:
        return _version(story, name, version)
    older = [one for one in story.versions if one.config.version < selected.config.version]
    return older[0] if older else None


def _parts(bundle: Bundle) -> list[tuple[str, str]]:
    """Returns the settings first, then those other parts of the bundle that are not empty."""
    plain = msgspec.to_builtins(bundle)
    parts = [("settings", plain.pop("settings"))]
    parts += [(name, value) for name, value in plain.items() if value and name != "trainer"]
    return [(name, json_text(value)) for name, value in parts]


ROUTES = (
    Route("GET", "/configs", configs, "configs.read", summary="Saved configs"),
    Route("GET", "/configs/{name}", config, "configs.read", summary="A saved config", query=ConfigQuery),
    Route(
        "GET",
        "/configs/{name}/export",
        export,
        "configs.read",
        summary="A saved config as a file",
        query=ConfigPageQuery,
    ),
)
