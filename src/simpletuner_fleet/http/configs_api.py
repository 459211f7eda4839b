"""Saved configs."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.http.deps import deps
from simpletuner_fleet.http.routes import KIB, Call, Route, rfc3339
from simpletuner_fleet.http.views import ConfigsView, ConfigView, Done, VersionsView, config_view
from simpletuner_fleet.orchestrator import configs

TAGS = ("configs",)
MAX_CONFIG_BYTES = 5 * KIB * KIB


class VersionQuery(Struct, kw_only=True):
    version: Annotated[int, Meta(ge=1)] | None = None


class StoredConfig(Struct, kw_only=True):
    """A config bundle and what is known of it."""

    name: str
    version: int
    created_at: str | None
    created_by: str
    trainer: str
    settings: dict[str, Any]
    dataloader: Any
    files: dict[str, str]
    env: dict[str, str]
    resources: dict[str, Any]


async def list_configs(call: Call[None]) -> ConfigsView:
    found = await deps(call).fleet.read(lambda view: view.configs())
    return ConfigsView([config_view(config) for config in found])


async def get_config(call: Call[None]) -> StoredConfig:
    config = await configs.get_config(deps(call).fleet, call.path["name"], call.query.version)
    bundle = configs.bundle_of(config)
    return StoredConfig(
        name=config.name,
        version=config.version,
        created_at=rfc3339(config.created_at),
        created_by=config.created_by,
        trainer=bundle.trainer,
        settings=bundle.settings,
        dataloader=bundle.dataloader,
        files=bundle.files,
        env=bundle.env,
        resources=msgspec.to_builtins(bundle.resources),
    )


async def list_versions(call: Call[None]) -> VersionsView:
    name = call.path["name"]
    found = await deps(call).fleet.read(lambda view: view.config_versions(name))
    if not found:
        raise NotFound(f"There is no config '{name}'.")
    return VersionsView([config_view(config) for config in found])


async def save_config(call: Call[dict[str, Any]]) -> ConfigView:
    saved, changed = await configs.save_config(deps(call).fleet, call.path["name"], call.body, call.actor)
    return config_view(saved, changed)


async def delete_config(call: Call[None]) -> Done:
    await configs.delete_config(deps(call).fleet, call.path["name"], call.actor)
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
        query=VersionQuery,
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
        "PUT",
        "/api/configs/{name}",
        save_config,
        "configs.write",
        dict[str, Any],
        ConfigView,
        "Save a config bundle, or a bare config.json, as a new version",
        max_body_bytes=MAX_CONFIG_BYTES,
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
