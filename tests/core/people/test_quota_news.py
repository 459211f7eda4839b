from msgspec.structs import replace

from simpletuner_fleet.core.people.quota_news import KnownLevel, QuotaLevel, quota_news
from simpletuner_fleet.core.people.quotas import Quota, QuotaKind, QuotaScope, QuotaStanding

QUOTA = Quota(id="q", kind=QuotaKind.MONEY_MONTH, scope=QuotaScope.ALL, ceiling=100)


def standing(used: int, ends: float = 9.0, quota: Quota = QUOTA) -> QuotaStanding:
    return QuotaStanding(quota=quota, account="all", used=used, frees_at=ends)


def test_each_is_told_once_in_each_period() -> None:
    known: dict[str, KnownLevel] = {}
    said = []
    for used, ends in ((0, 9.0), (79, 9.0), (80, 9.0), (90, 9.0), (100, 9.0), (140, 9.0), (85, 20.0)):
        news, known = quota_news([standing(used, ends)], known)
        said.append(bool(news))
    assert said == [False, False, True, False, True, False, True]
    assert known == {"q all": KnownLevel(20.0, QuotaLevel.NEARLY)}


def test_a_raised_ceiling_makes_room_for_being_told_again() -> None:
    _, known = quota_news([standing(100)], {})
    raised = replace(QUOTA, ceiling=1000)
    news, known = quota_news([standing(100, quota=raised)], known)
    assert (news, known) == ([], {})
    news, _ = quota_news([standing(900, quota=raised)], known)
    assert len(news) == 1


def test_where_nothing_was_used_nothing_is_reached() -> None:
    assert quota_news([standing(0, quota=replace(QUOTA, ceiling=0))], {}) == ([], {})
