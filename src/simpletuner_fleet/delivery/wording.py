"""Phrases what a notice says to a person, in their language."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from simpletuner_fleet.core.notices.kinds import Notice
from simpletuner_fleet.languages import N_, Words
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.languages.names import failure_name

TITLES = {
    "job.failed": N_("Job %(title)s failed"),
    "job.completed": N_("Job %(title)s has finished"),
    "job.waits_long": N_("Job %(title)s is still waiting for a worker"),
    "job.loss_nan": N_("Job %(title)s: the loss is not a number"),
    "job.approved": N_("Job %(title)s was approved"),
    "job.rejected": N_("Job %(title)s was not approved"),
    "approval.needed": N_("Job %(title)s needs approval"),
    "quota.nearly_used": N_("The quota %(title)s is nearly used"),
    "quota.reached": N_("The quota %(title)s is reached"),
    "worker.lost": N_("Worker %(title)s was lost"),
}
TEST_TITLE = N_("Test message from SimpleTuner")
TEST_TEXT = N_("If you can read this, you will be told here.")
DECIDE_HERE = N_(
    "Approve or reject it here, once, without logging in. The link acts in your name: keep it to yourself."
)
NO_LINKS: Mapping[str, str] = MappingProxyType({})
MOST_LINES = 50
MAX_TITLE_CHARS, MAX_WHY_CHARS = 120, 600
PAGES = {"job": "/jobs/", "worker": "/admin/workers/"}
PLAIN_PAGES = {"quota": "/quotas"}
"""Of things that have no page of their own."""


class Wording(Struct, frozen=True, kw_only=True):
    title: str
    lines: tuple[str, ...] = ()
    link: str = ""
    bad: bool = False

    @property
    def text(self) -> str:
        return "\n".join((*self.lines, self.link) if self.link else self.lines)


def trial_wording(words: Words, base_url: str) -> Wording:
    return Wording(title=words.text(TEST_TITLE), lines=(words.text(TEST_TEXT),), link=base_url)


def wording_of(
    words: Words, notices: Sequence[Notice], base_url: str, links: Mapping[str, str] = NO_LINKS
) -> Wording:
    """Words one notice with what is known of it; several as a list. `links` are pages to decide on a job, by its id."""
    if len(notices) == 1:
        notice = notices[0]
        return Wording(
            title=title_of(words, notice),
            lines=(*_reasons(words, notice), *_decide_here(words, notice, base_url, links)),
            link=link_to(notice, base_url),
            bad=_is_bad(notice),
        )
    lines = [
        line
        for notice in notices[:MOST_LINES]
        for line in (title_of(words, notice), *_decide_here(words, notice, base_url, links))
    ]
    left = len(notices) - MOST_LINES
    if left > 0:
        lines.append(words.plural("and %(n)s more", "and %(n)s more", left))
    title = words.plural("%(n)s message from SimpleTuner", "%(n)s messages from SimpleTuner", len(notices))
    return Wording(title=title, lines=tuple(lines), link=base_url, bad=any(map(_is_bad, notices)))


def title_of(words: Words, notice: Notice) -> str:
    return words.text(TITLES[notice.kind], title=notice.title[:MAX_TITLE_CHARS])


def link_to(notice: Notice, base_url: str) -> str:
    page = PAGES.get(notice.target_type)
    if base_url and notice.target_type in PLAIN_PAGES:
        return base_url + PLAIN_PAGES[notice.target_type]
    return f"{base_url}{page}{notice.target_id}" if base_url and page else ""


def _decide_here(words: Words, notice: Notice, base_url: str, links: Mapping[str, str]) -> tuple[str, ...]:
    path = links.get(notice.target_id, "") if notice.kind == "approval.needed" else ""
    return (words.text(DECIDE_HERE), f"{base_url}{path}") if base_url and path else ()


def _reasons(words: Words, notice: Notice) -> tuple[str, ...]:
    kind, why = str(notice.details.get("failure_class", "")), str(notice.details.get("why", ""))
    named = [failure_name(words, kind)] if kind else []
    return (*named, *([detail_text(words, why)[:MAX_WHY_CHARS]] if why else []))


def _is_bad(notice: Notice) -> bool:
    return notice.kind not in ("job.completed", "job.approved")
