"""Administration → Settings: limits, the names of secrets, and what the server was started with."""

from typing import Any, Literal

from msgspec import Struct

from simpletuner_fleet import __version__
from simpletuner_fleet.core.accounts import SESSION_IDLE_S, SESSION_LIFE_S
from simpletuner_fleet.http.api.deps import Deps, deps
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import N_, _
from simpletuner_fleet.orchestrator.index import read_limits
from simpletuner_fleet.orchestrator.keyring import list_secrets
from simpletuner_fleet.web.named import people_names
from simpletuner_fleet.web.page import page, spoken

DAY_S = 86_400.0


class Fact(Struct, frozen=True, kw_only=True):
    """One thing that only a restart changes, and the variable that changes it."""

    title: str
    value: Any
    look: Literal["text", "duration", "size", "number", "code"] = "text"
    variable: str = ""


class SecretRow(Struct, frozen=True, kw_only=True):
    name: str
    version: int
    created_at: float
    created_by: str


async def settings(call: Call[None]) -> Reply:
    house = deps(call)
    sees_secrets = call.principal.can("secrets.read")
    limits, names = await house.fleet.read(lambda view: (read_limits(view), people_names(view)))
    secrets = await list_secrets(house.fleet) if sees_secrets else {}
    with spoken(call):
        return page(
            call,
            "settings.html",
            limits=limits,
            sees_secrets=sees_secrets,
            may_write_secrets=call.principal.can("secrets.write") and house.fleet.vault is not None,
            secrets=[
                SecretRow(
                    name=name,
                    version=secret.version,
                    created_at=secret.created_at,
                    created_by=names.get(secret.created_by, secret.created_by),
                )
                for name, secret in secrets.items()
            ],
            groups=[
                (N_("Keeping"), keeping_facts(house)),
                (N_("Jobs and workers"), job_facts(house)),
                (N_("Server"), server_facts(house, call)),
            ],
        )


def keeping_facts(house: Deps) -> list[Fact]:
    policy = house.fleet.policy
    kept = policy.jobs_keep_days
    return [
        Fact(
            title=_("Logs, curves and files of jobs that ended"),
            value=_("for ever") if kept is None else kept * DAY_S,
            look="text" if kept is None else "duration",
            variable="SIMPLETUNER_JOBS_KEEP_DAYS",
        ),
        Fact(
            title=_("Checkpoints kept of each job"),
            value=policy.checkpoints_keep,
            look="number",
            variable="SIMPLETUNER_CHECKPOINTS_KEEP",
        ),
        Fact(
            title=_("Storage for one job"),
            value=policy.job_storage_bytes,
            look="size",
            variable="SIMPLETUNER_JOB_STORAGE_GB",
        ),
        Fact(
            title=_("Storage for all datasets"),
            value=policy.data_storage_bytes,
            look="size",
            variable="SIMPLETUNER_DATA_STORAGE_GB",
        ),
        Fact(
            title=_("Ephemeral workers that have gone"),
            value=policy.ephemeral_ttl_s,
            look="duration",
            variable="SIMPLETUNER_EPHEMERAL_TTL",
        ),
        Fact(title=_("The audit log"), value=_("for ever")),
    ]


def job_facts(house: Deps) -> list[Fact]:
    policy = house.fleet.policy
    return [
        Fact(
            title=_("A worker is offline after silence of"),
            value=policy.heartbeat_timeout_s,
            look="duration",
            variable="SIMPLETUNER_HEARTBEAT_TIMEOUT",
        ),
        Fact(
            title=_("Workers report every"),
            value=policy.heartbeat_interval_s,
            look="duration",
            variable="SIMPLETUNER_HEARTBEAT_INTERVAL",
        ),
        Fact(
            title=_("Retries of a job whose worker was lost"),
            value=policy.max_retries,
            look="number",
            variable="SIMPLETUNER_MAX_RETRIES",
        ),
        Fact(
            title=_("Jobs wait for an approval"),
            value=_("yes") if policy.require_approval else _("no"),
            variable="SIMPLETUNER_REQUIRE_APPROVAL",
        ),
        Fact(
            title=_("Time to end when a job is cancelled"),
            value=policy.cancel_grace_s,
            look="duration",
            variable="SIMPLETUNER_CANCEL_GRACE",
        ),
        Fact(
            title=_("Time to save a checkpoint before it stops"),
            value=policy.checkpoint_wait_s,
            look="duration",
            variable="SIMPLETUNER_CHECKPOINT_WAIT",
        ),
        Fact(
            title=_("A worker's token is old after"),
            value=policy.token_warn_age_s,
            look="duration",
            variable="SIMPLETUNER_TOKEN_WARN_AGE",
        ),
    ]


def server_facts(house: Deps, call: Call[Any]) -> list[Fact]:
    facts = [
        Fact(title=_("Version"), value=__version__, look="code"),
        Fact(
            title=_("Address for workers"),
            value=house.base_url(call),
            look="code",
            variable="SIMPLETUNER_PUBLIC_URL",
        ),
        Fact(
            title=_("This connection is encrypted"),
            value=_("yes") if call.secure else _("no"),
            variable="SIMPLETUNER_SSL",
        ),
        Fact(
            title=_("Reachable from other machines"),
            value=_("yes") if house.beyond_loopback else _("no"),
            variable="SIMPLETUNER_HOST",
        ),
        Fact(
            title=_("Runs jobs on its own machine"),
            value=_("yes") if house.local_enabled else _("no"),
            variable="SIMPLETUNER_LOCAL",
        ),
        Fact(title=_("A log-in ends when unused for"), value=SESSION_IDLE_S, look="duration"),
        Fact(title=_("A log-in ends at the latest after"), value=SESSION_LIFE_S, look="duration"),
    ]
    if house.fingerprint:
        facts.insert(3, Fact(title=_("Fingerprint"), value=house.fingerprint, look="code"))
    return facts


ROUTES = (Route("GET", "/admin/settings", settings, "admin.limits", summary="Settings"),)
