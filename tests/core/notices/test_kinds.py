"""Who is told of what: an owner of their own jobs, an administrator of all, nobody of anything else."""

from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.notices.checking import check_address, check_rules, shown_address
from simpletuner_fleet.core.notices.endpoint import Channel, NoticeRules, QuietHours
from simpletuner_fleet.core.notices.kinds import (
    AUDIT,
    KINDS,
    SOURCES,
    kind_of,
    message_id,
    needed_permissions,
    notice_of,
    wants,
)
from tests.core.notices.test_timing import RULES, endpoint


def entry(kind: str = EventType.JOB_FAILED, **details: Any) -> AuditEntry:
    return AuditEntry(7, 1.0, kind, "orchestrator", "orchestrator", "", "job", "j_1", details, "abc")


def test_every_kind_has_a_source_and_every_source_a_kind() -> None:
    assert set(SOURCES.values()) == set(KINDS)
    assert {kind_of(entry(source)) for source in SOURCES} == set(KINDS)
    assert kind_of(entry(EventType.SECRET_SAVED)) is None


def test_a_job_is_told_of_to_its_owner_alone_and_to_who_watches_all() -> None:
    notice = notice_of(entry(), "job.failed", "cats", "u_1")
    assert wants(endpoint(), notice)
    assert not wants(endpoint(), replace(notice, owner="u_2"))
    assert not wants(endpoint(), replace(notice, owner=""))
    assert not wants(endpoint(), replace(notice, kind="job.completed"))
    of_all = replace(endpoint(), rules=replace(RULES, scope="all"))
    assert wants(of_all, replace(notice, owner="u_2"))
    nobodys = replace(endpoint(), owner="")
    assert not wants(nobodys, replace(notice, owner=""))


def test_only_known_details_go_out() -> None:
    notice = notice_of(entry(why="it broke", secret="s3cret", exit_code=None), "job.failed", "", "u_1")
    assert notice.details == {"why": "it broke"}
    assert notice.title == "j_1"


def test_a_message_keeps_its_id_and_another_log_has_others() -> None:
    assert message_id("n_1", 7, "abc", 0) == message_id("n_1", 7, "abc", 0)
    others = {message_id("n_2", 7, "abc", 0), message_id("n_1", 8, "abc", 0), message_id("n_1", 7, "abd", 0)}
    assert len(others | {message_id("n_1", 7, "abc", 0), message_id("n_1", 7, "abc", 9)}) == 5


@pytest.mark.parametrize(
    ("events", "scope", "needed"),
    [
        (["job.failed"], "own", {"notifications.own"}),
        (["job.failed"], "all", {"admin.notifications", "admin.see_all"}),
        (["job.failed", "worker.lost"], "own", {"admin.workers"}),
        ([AUDIT], "own", {"admin.audit", "admin.see_all"}),
    ],
)
def test_what_is_not_ones_own_needs_its_permission(events: list[str], scope: str, needed: set[str]) -> None:
    assert needed_permissions(events, scope) == needed


@pytest.mark.parametrize(
    ("channel", "rules"),
    [
        (Channel.SLACK, NoticeRules(events=())),
        (Channel.SLACK, NoticeRules(events=("job.exploded",))),
        (Channel.SLACK, NoticeRules(events=(AUDIT,))),
        (Channel.SYSLOG, NoticeRules(events=("job.failed",))),
        (Channel.WEBHOOK, NoticeRules(events=(AUDIT, "job.failed"))),
        (Channel.WEBHOOK, replace(RULES, digest="daily")),
        (Channel.WEBHOOK, replace(RULES, quiet=QuietHours(start=0, end=60))),
        (Channel.SLACK, replace(RULES, digest_at=1440)),
    ],
)
def test_rules_that_make_no_sense_are_refused(channel: Channel, rules: NoticeRules) -> None:
    with pytest.raises(Invalid):
        check_rules(channel, rules)


@pytest.mark.parametrize(
    ("channel", "address"),
    [
        (Channel.WEBHOOK, "ftp://example.org/x"),
        (Channel.WEBHOOK, "https://user:pass@example.org/x"),
        (Channel.WEBHOOK, "https://example.org/x y"),
        (Channel.WEBHOOK, "https://example.org/\r\nhost: other"),
        (Channel.WEBHOOK, "https://example.org:99999/"),
        (Channel.WEBHOOK, "https:///x"),
        (Channel.EMAIL, "anna"),
        (Channel.EMAIL, "anna@example.org\r\nBcc: all@example.org"),
        (Channel.EMAIL, "anna@example.org, all@example.org"),
        (Channel.SYSLOG, "udp://example.org"),
    ],
)
def test_addresses_that_are_none_are_refused(channel: Channel, address: str) -> None:
    with pytest.raises(Invalid):
        check_address(channel, address)


def test_of_an_address_only_what_is_not_secret_is_shown() -> None:
    assert shown_address(Channel.SLACK, "https://hooks.slack.com/services/T0/B0/s3cr3ts3cr3t") == (
        "https://hooks.slack.com/…cr3t"
    )
    assert shown_address(Channel.NTFY, "https://ntfy.sh/mine") == "https://ntfy.sh/…"
    assert shown_address(Channel.EMAIL, "anna@example.org") == "anna@example.org"
    assert shown_address(Channel.WEBHOOK, "https://example.org/") == "https://example.org/"
