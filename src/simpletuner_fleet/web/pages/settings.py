"""Shows Administration → Settings: limits, the names of secrets, and what the server was started with."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from msgspec import Struct

from simpletuner_fleet import __version__
from simpletuner_fleet.core.people.accounts import SESSION_IDLE_S, SESSION_LIFE_S
from simpletuner_fleet.core.policy import NO_LIMITS
from simpletuner_fleet.engine.memory.index import read_limits
from simpletuner_fleet.engine.memory.setting_documents import LIMITS_SETTING
from simpletuner_fleet.http.api.deps import Deps
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import N_, _
from simpletuner_fleet.languages.names import VISIBILITIES
from simpletuner_fleet.orchestrator.keyring import SecretList, list_secrets
from simpletuner_fleet.settings import SERVER
from simpletuner_fleet.web.frame.page import page, spoken
from simpletuner_fleet.web.parts.names import people_names

DAY_S = 86_400.0


Look = Literal["text", "duration", "size", "number", "code"]


class Fact(Struct, frozen=True, kw_only=True):
    """Describes one thing that the page says of the server, and the setting that changes it if there is one."""

    title: str
    value: Callable[[Deps, Call[Any]], Any]
    """Returns None where there is nothing to say; words stand as they are."""
    look: Look = "text"
    setting: str = ""


class ShownFact(Struct, frozen=True, kw_only=True):
    """Holds a fact as the template shows it."""

    title: str
    value: Any
    look: Look
    variable: str


class SecretRow(Struct, frozen=True, kw_only=True):
    name: str
    version: int
    created_at: float
    created_by: str


async def settings(call: Call[None]) -> Reply:
    deps = deps_of(call)
    sees_secrets = call.principal.can("secrets.read")
    limits, names = await deps.fleet.read(lambda view: (read_limits(view), people_names(view)))
    unreadable = deps.fleet.organisation.is_unreadable(LIMITS_SETTING)
    stored = await list_secrets(deps.fleet) if sees_secrets else SecretList(secrets={}, unreadable=[])
    with spoken(call):
        return page(
            call,
            "access/settings.html",
            limits=NO_LIMITS if unreadable else limits,
            limits_unreadable=unreadable,
            sees_secrets=sees_secrets,
            may_write_secrets=call.principal.can("secrets.write") and deps.fleet.vault is not None,
            secrets=[
                SecretRow(
                    name=name,
                    version=secret.version,
                    created_at=secret.created_at,
                    created_by=names.get(secret.created_by, secret.created_by),
                )
                for name, secret in stored.secrets.items()
            ],
            unreadable_secrets=stored.unreadable,
            groups=[(title, show(facts, deps, call)) for title, facts in FACTS],
        )


def show(facts: Iterable[Fact], deps: Deps, call: Call[Any]) -> list[ShownFact]:
    values = [(fact, fact.value(deps, call)) for fact in facts]
    return [
        ShownFact(
            title=_(fact.title),
            value=value,
            look="text" if isinstance(value, str) and fact.look != "code" else fact.look,
            variable=VARIABLES[fact.setting] if fact.setting else "",
        )
        for fact, value in values
        if value is not None
    ]


def yes_or_no(answer: bool) -> str:
    return _("yes") if answer else _("no")


def jobs_kept_for(deps: Deps) -> Any:
    days = deps.fleet.policy.jobs_keep_days
    return _("forever") if days is None else days * DAY_S


def audit_kept_for(deps: Deps) -> Any:
    days = deps.fleet.policy.audit_keep_days
    return _("forever") if days is None else days * DAY_S


def storage_of_a_user(deps: Deps) -> Any:
    allowed = deps.fleet.policy.user_storage_bytes
    return _("as much as each job may use") if allowed is None else allowed


VARIABLES = {row.name: row.env for row in SERVER}

KEEPING = (
    Fact(
        title=N_("Logs, curves and files of ended jobs"),
        value=lambda deps, call: jobs_kept_for(deps),
        look="duration",
        setting="jobs_keep_days",
    ),
    Fact(
        title=N_("Entries of the audit log"),
        value=lambda deps, call: audit_kept_for(deps),
        look="duration",
        setting="audit_keep_days",
    ),
    Fact(
        title=N_("Checkpoints kept per job"),
        value=lambda deps, call: deps.fleet.policy.checkpoints_keep,
        look="number",
        setting="checkpoints_keep",
    ),
    Fact(
        title=N_("Storage for one job"),
        value=lambda deps, call: deps.fleet.policy.job_storage_bytes,
        look="size",
        setting="job_storage_gb",
    ),
    Fact(
        title=N_("Storage for all jobs of one user"),
        value=lambda deps, call: storage_of_a_user(deps),
        look="size",
        setting="user_storage_gb",
    ),
    Fact(
        title=N_("Storage for all datasets"),
        value=lambda deps, call: deps.fleet.policy.data_storage_bytes,
        look="size",
        setting="data_storage_gb",
    ),
    Fact(
        title=N_("Free disk space kept on the server"),
        value=lambda deps, call: deps.space.left_free_bytes(),
        look="size",
        setting="min_free_gb",
    ),
    Fact(
        title=N_("Departed ephemeral workers are listed for"),
        value=lambda deps, call: deps.fleet.policy.ephemeral_ttl_s,
        look="duration",
        setting="ephemeral_ttl_s",
    ),
)
JOBS_AND_WORKERS = (
    Fact(
        title=N_("Workers are offline after silence of"),
        value=lambda deps, call: deps.fleet.policy.heartbeat_timeout_s,
        look="duration",
        setting="heartbeat_timeout_s",
    ),
    Fact(
        title=N_("Workers report every"),
        value=lambda deps, call: deps.fleet.policy.heartbeat_interval_s,
        look="duration",
        setting="heartbeat_interval_s",
    ),
    Fact(
        title=N_("Retries after a lost worker"),
        value=lambda deps, call: deps.fleet.policy.max_retries,
        look="number",
        setting="max_retries",
    ),
    Fact(
        title=N_("Every job needs approval"),
        value=lambda deps, call: yes_or_no(deps.fleet.policy.require_approval),
        setting="require_approval",
    ),
    Fact(
        title=N_("Approval links in e-mail are valid for"),
        value=lambda deps, call: deps.fleet.policy.approval_link_s or _("none"),
        look="duration",
        setting="approval_link_s",
    ),
    Fact(
        title=N_("A job has waited too long after"),
        value=lambda deps, call: deps.fleet.policy.waits_long_s,
        look="duration",
        setting="waits_long_s",
    ),
    Fact(
        title=N_("Jobs, configs and data are visible to"),
        value=lambda deps, call: _(VISIBILITIES[deps.fleet.policy.default_visibility]),
        setting="default_visibility",
    ),
    Fact(
        title=N_("Time to exit after a cancel"),
        value=lambda deps, call: deps.fleet.policy.cancel_grace_s,
        look="duration",
        setting="cancel_grace_s",
    ),
    Fact(
        title=N_("Time to save a checkpoint before stopping"),
        value=lambda deps, call: deps.fleet.policy.checkpoint_wait_s,
        look="duration",
        setting="checkpoint_wait_s",
    ),
    Fact(
        title=N_("Finished jobs wait for their results for"),
        value=lambda deps, call: deps.fleet.policy.results_wait_s,
        look="duration",
        setting="results_wait_s",
    ),
    Fact(
        title=N_("Worker tokens should be rotated after"),
        value=lambda deps, call: deps.fleet.policy.token_warn_age_s,
        look="duration",
        setting="token_warn_age_s",
    ),
)
THE_SERVER = (
    Fact(title=N_("Version"), value=lambda deps, call: __version__, look="code"),
    Fact(
        title=N_("Address for workers"),
        value=lambda deps, call: deps.join_address(call).url,
        look="code",
        setting="public_url",
    ),
    Fact(
        title=N_("This connection is encrypted"),
        value=lambda deps, call: yes_or_no(call.secure),
        setting="ssl",
    ),
    Fact(title=N_("Fingerprint"), value=lambda deps, call: deps.fingerprint or None, look="code"),
    Fact(
        title=N_("Reachable from other machines"),
        value=lambda deps, call: yes_or_no(deps.beyond_loopback),
        setting="host",
    ),
    Fact(
        title=N_("Runs jobs on its own machine"),
        value=lambda deps, call: deps.local_problem() or yes_or_no(deps.local_enabled),
        setting="local",
    ),
    Fact(title=N_("Sessions expire when idle for"), value=lambda deps, call: SESSION_IDLE_S, look="duration"),
    Fact(
        title=N_("Maximum session length"),
        value=lambda deps, call: SESSION_LIFE_S,
        look="duration",
    ),
)
FACTS = ((N_("Retention"), KEEPING), (N_("Jobs and workers"), JOBS_AND_WORKERS), (N_("Server"), THE_SERVER))

ROUTES = (Route("GET", "/admin/settings", settings, "admin.limits", summary="Settings"),)
