"""Rules about people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.core.errors import Invalid, LastAdmin
from simpletuner_fleet.core.people import accounts
from simpletuner_fleet.core.people.accounts import OneTimeKey, Role, Session, User
from simpletuner_fleet.languages import LANGUAGES


def user(number: int, role: Role, *, disabled: bool = False, password: bool = True) -> User:
    return User(
        id=f"u_{number}",
        name=f"user {number}",
        role=role,
        created_at=0,
        password_hash="$argon2id$" if password else "",
        disabled_at=1.0 if disabled else None,
    )


people = st.lists(st.tuples(st.sampled_from(Role), st.booleans(), st.booleans()), min_size=1, max_size=5)
options = st.lists(
    st.tuples(st.integers(0, 4), st.none() | st.sampled_from(Role), st.none() | st.booleans()), max_size=10
)


@given(people, options)
def test_whatever_is_changed_somebody_who_could_administer_still_can(
    made: list[tuple[Role, bool, bool]], changes: list[tuple[int, Role | None, bool | None]]
) -> None:
    users = [user(at, role, disabled=out, password=has) for at, (role, out, has) in enumerate(made)]

    def admins() -> int:
        return sum(each.role is Role.ADMIN and each.can_log_in for each in users)

    for number, role, disabled in changes:
        at, before = number % len(users), admins()
        others = [other for other in users if other is not users[at]]
        try:
            users[at] = accounts.changed(users[at], others, 9.0, role=role, disabled=disabled)
        except LastAdmin:
            assert before == 1
        assert admins() > 0 or before == 0


def test_a_change_to_what_is_already_so_changes_nothing() -> None:
    out = user(1, Role.MEMBER, disabled=True)
    assert accounts.changed(out, [], 9.0, role=Role.MEMBER, disabled=True) == out
    assert accounts.changed(out, [], 9.0) == out


def test_a_session_ends_by_silence_or_by_age() -> None:
    fresh = Session(token_hash="h", user_id="u_1", created_at=0, seen_at=0)
    assert fresh.good_at(accounts.SESSION_IDLE_S - 1)
    assert not fresh.good_at(accounts.SESSION_IDLE_S)
    old = Session(token_hash="h", user_id="u_1", created_at=0, seen_at=accounts.SESSION_LIFE_S - 1)
    assert old.good_at(accounts.SESSION_LIFE_S - 1)
    assert not old.good_at(accounts.SESSION_LIFE_S)
    assert not fresh.wants_renewal(accounts.SESSION_RENEWED_EVERY_S - 1)
    assert fresh.wants_renewal(accounts.SESSION_RENEWED_EVERY_S)


def test_a_key_is_good_until_the_moment_it_expires() -> None:
    key = OneTimeKey(expires_at=10.0)
    assert key.good_at(9.9)
    assert not key.good_at(10.0)


def test_a_password_is_the_same_however_it_was_composed() -> None:
    assert accounts.checked_password("Pa\u0301ssword123", "x") == accounts.checked_password(
        "P\u00e1ssword123", "x"
    )
    assert accounts.checked_name("A\u0308da") == "\u00c4da"


@pytest.mark.parametrize("password", ["", "short", "x" * 257, "ababababab", "ada lovelace"])
def test_a_weak_password_is_refused(password: str) -> None:
    with pytest.raises(Invalid):
        accounts.checked_password(password, "Ada Lovelace")


def test_a_user_may_choose_exactly_the_languages_we_speak() -> None:
    assert tuple(language.code for language in LANGUAGES) == accounts.LANGUAGES
    assert accounts.checked_language("zh") == "zh-Hans"
    assert accounts.checked_language("") == ""
    with pytest.raises(Invalid):
        accounts.checked_language("xx")


def test_the_rules_say_the_numbers_that_hold() -> None:
    assert f"1 to {accounts.MAX_NAME_CHARS} " in accounts.NAME_RULE
    numbers = f"{accounts.MIN_PASSWORD_CHARS} to {accounts.MAX_PASSWORD_CHARS} "
    assert numbers in accounts.PASSWORD_RULE
