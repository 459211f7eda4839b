"""Manages saved configs."""

from typing import Any

import msgspec
from msgspec import Struct, field

from simpletuner_fleet.core.bounds import Name, Version
from simpletuner_fleet.core.configs.bundle import gpus_of, read_bundle
from simpletuner_fleet.core.configs.bundle_diff import Change
from simpletuner_fleet.core.configs.options import OptionFinding
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.core.publishing import Publish
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.ownership import writer_of
from simpletuner_fleet.http.edge.routes import KIB, Call, Route, rfc3339
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.http.views.records import ConfigsView, ConfigView, VersionsView, config_view
from simpletuner_fleet.orchestrator import configs, trainer_options

TAGS = ("configs",)
MAX_CONFIG_BYTES = 5 * KIB * KIB


class ConfigVersionQuery(Struct, kw_only=True):
    version: Version | None = None


class StoredConfig(Struct, kw_only=True):
    """Holds a config bundle and what is known of it."""

    name: str
    version: int
    created_at: str | None
    created_by: str
    owner: str
    """The id of who may save further versions; empty: administrators alone."""
    team: str
    visibility: str
    trainer: str
    settings: dict[str, Any]
    dataloader: Any
    files: dict[str, str]
    env: dict[str, str]
    secrets: dict[str, str]
    """Names of stored secrets by variable, never values."""
    resources: dict[str, Any]
    datasets: dict[str, str]
    watchdog: dict[str, Any]
    publish: Publish | None = None


class DiffQuery(Struct, kw_only=True):
    from_: Version | None = field(default=None, name="from")
    to: Version | None = None


class DiffView(Struct, kw_only=True):
    """Lists the changes from one version of a config to another.

    `was` is absent for what is new, `is` for what is gone.
    """

    name: str
    from_: int = field(name="from")
    to: int
    changes: list[Change]
    left_out: int = 0
    """How many more changes there are: only the first are listed."""
    left_out_at_least: bool = False
    """Whether there are even more than `left_out` says: nobody counts them all."""


class SharingQuery(Struct, kw_only=True):
    team: Name | None = None
    """Name or id of the team it is for; as it was, or the one joined first, where it is left out."""
    visibility: Visibility | None = None


async def list_configs(call: Call[None]) -> ConfigsView:
    newest = await deps_of(call).fleet.read(lambda view: view.configs())
    return ConfigsView([config_view(config) for config in newest])


async def get_config(call: Call[None]) -> StoredConfig:
    config = await configs.get_config(deps_of(call).fleet, call.path["name"], call.query.version)
    bundle = configs.bundle_of(config)
    return StoredConfig(
        name=config.name,
        version=config.version,
        created_at=rfc3339(config.created_at),
        created_by=config.created_by,
        owner=config.owner,
        team=config.team,
        visibility=config.visibility,
        trainer=bundle.trainer,
        settings=bundle.settings,
        dataloader=bundle.dataloader,
        files=bundle.files,
        env=bundle.env,
        secrets=bundle.secrets,
        resources=msgspec.to_builtins(bundle.resources),
        datasets=bundle.datasets,
        watchdog=msgspec.to_builtins(bundle.watchdog),
        publish=bundle.publish,
    )


async def list_versions(call: Call[None]) -> VersionsView:
    name = call.path["name"]
    history = await configs.versions_of(deps_of(call).fleet, name)
    return VersionsView([config_view(config) for config in history])


async def diff_config(call: Call[None]) -> DiffView:
    name = call.path["name"]
    was, now, difference = await configs.diff_configs(
        deps_of(call).fleet, name, call.query.from_, call.query.to
    )
    return DiffView(
        name=name,
        from_=was,
        to=now,
        changes=difference.changes,
        left_out=difference.left_out,
        left_out_at_least=difference.left_out_at_least,
    )


async def save_config(call: Call[dict[str, Any]]) -> ConfigView:
    sharing = configs.Sharing(call.query.team, call.query.visibility)
    saved, changed = await configs.save_config(
        deps_of(call).fleet, call.path["name"], call.body, writer_of(call), sharing
    )
    return config_view(saved, changed)


class CheckedConfig(Struct, kw_only=True):
    """Reports what is wrong with a config, as far as it could be checked."""

    valid: bool
    """No error was found; where `checked_against` is null, nobody has looked at the settings."""
    trainer: str
    gpus: int
    checked_against: str | None
    """The release of the trainer whose options it was checked against."""
    findings: list[OptionFinding]


class CheckQuery(Struct, kw_only=True):
    version: Name | None = None
    """Of the trainer; else the newest that a worker has told of."""


async def check_config(call: Call[dict[str, Any]]) -> CheckedConfig:
    bundle = read_bundle(call.body)
    checked = await trainer_options.check_config(deps_of(call).fleet, bundle, call.query.version)
    return CheckedConfig(
        valid=not any(finding.level == "error" for finding in checked.findings),
        trainer=bundle.trainer,
        gpus=gpus_of(bundle),
        checked_against=checked.version,
        findings=checked.findings,
    )


async def delete_config(call: Call[None]) -> Done:
    await configs.delete_config(deps_of(call).fleet, call.path["name"], writer_of(call))
    return Done(id=call.path["name"])


ROUTES = [
    Route(
        "GET",
        "/api/configs",
        list_configs,
        "configs.read",
        answer=ConfigsView,
        summary="Saved configs by name",
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/configs/{name}",
        get_config,
        "configs.read",
        answer=StoredConfig,
        summary="One config, in its newest version unless one is named",
        query=ConfigVersionQuery,
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/configs/{name}/versions",
        list_versions,
        "configs.read",
        answer=VersionsView,
        summary="Every version of a config",
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/configs/{name}/diff",
        diff_config,
        "configs.read",
        answer=DiffView,
        summary="What changed between two versions: the newest two unless others are named",
        query=DiffQuery,
        tags=TAGS,
    ),
    Route(
        "PUT",
        "/api/configs/{name}",
        save_config,
        "configs.write",
        dict[str, Any],
        ConfigView,
        "Save a config bundle, or a bare config.json, as a new version",
        max_body_bytes=MAX_CONFIG_BYTES,
        query=SharingQuery,
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/config-check",
        check_config,
        "configs.read",
        dict[str, Any],
        CheckedConfig,
        "Check a config against the options that its trainer takes, and save nothing",
        max_body_bytes=MAX_CONFIG_BYTES,
        query=CheckQuery,
        tags=TAGS,
    ),
    Route(
        "DELETE",
        "/api/configs/{name}",
        delete_config,
        "configs.write",
        answer=Done,
        summary="Delete a config; jobs keep their copies",
        tags=TAGS,
    ),
]
