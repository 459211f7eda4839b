"""Says what needs attention, in a sentence with links."""

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.languages import _, ngettext
from simpletuner_fleet.queries.attention import MACHINES_USELESS, POOLS_UNSEEN, Need


class Attention(Struct, frozen=True, kw_only=True):
    text: str
    href: str
    grave: bool
    named: tuple[tuple[str, str], ...]
    """(address, name)"""


def attention(need: Need, owner: str | None) -> Attention:
    """Returns the sentence; `owner` is the one whose jobs it is about, None for everybody's."""
    known = {"endpoints_failing": _untold, MACHINES_USELESS: _useless, POOLS_UNSEEN: _unseen}
    about = known.get(need.kind, _of_the_fleet)(need)
    text = _("%(sentence)s (at least)", sentence=about.text) if need.at_least else about.text
    mine = "&mine=true" if owner is not None and about.href.startswith("/jobs?") else ""
    return replace(about, text=text, href=about.href + mine)


def _untold(need: Need) -> Attention:
    text = ngettext(
        "%(n)s notification cannot be delivered or is paused",
        "%(n)s notifications cannot be delivered or are paused",
        need.count,
    )
    return _about(need, text, "/notifications", "/notifications?endpoint=")


def _useless(need: Need) -> Attention:
    text = ngettext(
        "%(n)s machine costs money and does nothing", "%(n)s machines cost money and do nothing", need.count
    )
    return _about(need, text, "/machines", "/machines/", grave=True)


def _unseen(need: Need) -> Attention:
    text = ngettext(
        "%(n)s pool's provider cannot be asked: its machines go on costing money and cannot be ended",
        "the providers of %(n)s pools cannot be asked: their machines go on costing money and cannot be ended",
        need.count,
    )
    return _about(need, text, "/machines", "/machines/pools/", grave=True)


def _of_the_fleet(need: Need) -> Attention:
    n = need.count
    match need.kind:
        case "rows_unreadable":
            text = ngettext(
                "%(n)s unreadable database row was set aside: run simpletuner doctor server",
                "%(n)s unreadable database rows were set aside: run simpletuner doctor server",
                n,
            )
            return _about(need, text, "/admin/audit", "/admin/audit?target=", grave=True)
        case "workers_set_aside":
            text = ngettext(
                "%(n)s worker failed to start its jobs and is set aside",
                "%(n)s workers failed to start their jobs and are set aside",
                n,
            )
            return _about(need, text, "/admin/workers", "/admin/workers/", grave=True)
        case "workers_away":
            text = ngettext("%(n)s worker is offline", "%(n)s workers are offline", n)
            return _about(need, text, "/admin/workers?status=offline", "/admin/workers/", grave=True)
        case "jobs_failed":
            text = ngettext(
                "%(n)s job failed in the last 24 hours", "%(n)s jobs failed in the last 24 hours", n
            )
            return _about(need, text, "/jobs?show=failed&ended_since=24h", "/jobs/", grave=True)
        case "jobs_without_results":
            text = ngettext(
                "the results of %(n)s job are not stored",
                "the results of %(n)s jobs are not stored",
                n,
            )
            return _about(need, text, "/jobs?reason=results_missing", "/jobs/", grave=True)
        case "jobs_hopeless":
            text = ngettext(
                "%(n)s job can never start as submitted", "%(n)s jobs can never start as submitted", n
            )
            return _about(need, text, "/jobs?show=waiting&reason=impossible", "/jobs/", grave=True)
        case "jobs_unapproved":
            text = ngettext("%(n)s job is waiting for approval", "%(n)s jobs are waiting for approval", n)
            return _about(need, text, "/jobs?show=waiting&reason=APPROVAL_REQUIRED", "/jobs/")
        case "gpus_unusable" | "gpus_idle":
            return _about(need, _gpus_text(need), "/admin/workers", "/admin/workers/")
        case "registrations_refused":
            text = ngettext(
                "%(n)s join attempt was refused in the last 24 hours",
                "%(n)s join attempts were refused in the last 24 hours",
                n,
            )
            return _about(need, text, "/admin/audit?event=worker.registration_failed", "")
        case _:
            text = ngettext(
                "%(n)s worker's token is old and should be rotated",
                "%(n)s workers' tokens are old and should be rotated",
                n,
            )
            return _about(need, text, "/admin/workers", "/admin/workers/")


def _gpus_text(need: Need) -> str:
    if need.kind == "gpus_idle":
        return ngettext(
            "%(n)s worker has unused GPUs: it takes no more jobs at a time (--max-jobs auto)",
            "%(n)s workers have unused GPUs: they take no more jobs at a time (--max-jobs auto)",
            need.count,
        )
    return ngettext(
        "%(n)s worker has GPUs that are unhealthy or in use by another program",
        "%(n)s workers have GPUs that are unhealthy or in use by another program",
        need.count,
    )


def _about(need: Need, text: str, href: str, each: str, grave: bool = False) -> Attention:
    links = tuple((f"{each}{id}", name) for id, name in need.named)
    return Attention(text=text, href=href, grave=grave, named=links)
