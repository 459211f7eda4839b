"""Who somebody is after a log-in by a provider, and whom the server may ask: rules alone."""

import pytest

from simpletuner_fleet.core.errors import NotVouchedFor
from simpletuner_fleet.core.people.accounts import Role, User, changed
from simpletuner_fleet.core.people.sign_in.admitting import after_sign_in, free_name
from simpletuner_fleet.core.people.sign_in.claims import fits, groups_of, person_by_proxy
from simpletuner_fleet.core.people.sign_in.providers import ProxyIdentity, RoleRules, is_safe, may_be_asked
from simpletuner_fleet.core.people.sign_in.trial import (
    Trial,
    TrialName,
    TrialState,
    client_check,
    good,
    not_made,
    redirect_check,
)

RULES = RoleRules(admin=("root",), member=("ml", "lab"), viewer=("staff",))
ADA = User(id="u_1", name="ada", role=Role.ADMIN, created_at=0.0, issuer="https://id", subject="1")


def test_the_highest_role_of_all_groups_counts_and_none_is_none() -> None:
    assert RULES.role_for(frozenset({"staff", "root", "x"})) is Role.ADMIN
    assert RULES.role_for(frozenset({"staff", "lab"})) is Role.MEMBER
    assert RULES.role_for(frozenset({"Root"})) is None
    everybody = RoleRules(member=("ml",), everybody=Role.VIEWER)
    assert everybody.role_for(frozenset()) is Role.VIEWER
    assert everybody.role_for(frozenset({"ml"})) is Role.MEMBER
    assert RoleRules(viewer=("v",), everybody=Role.MEMBER).role_for(frozenset({"v"})) is Role.MEMBER


def test_who_has_no_role_is_shut_out_until_there_is_one() -> None:
    out = after_sign_in(ADA, None, 5.0)
    assert (out.disabled_at, out.shut_out, out.role) == (5.0, True, Role.ADMIN)
    assert after_sign_in(out, None, 9.0) == out
    back = after_sign_in(out, Role.VIEWER, 9.0)
    assert (back.disabled_at, back.shut_out, back.role) == (None, False, Role.VIEWER)


def test_whom_an_administrator_disabled_is_not_let_in_by_a_provider() -> None:
    by_hand = changed(ADA, [], 5.0, disabled=True)
    assert after_sign_in(by_hand, Role.ADMIN, 9.0).disabled_at == 5.0
    out = after_sign_in(ADA, None, 5.0)
    confirmed = changed(out, [], 6.0, disabled=True)
    assert after_sign_in(confirmed, Role.ADMIN, 9.0).disabled_at == 5.0


def test_a_name_that_is_taken_is_another_persons() -> None:
    taken = {"ada", "ada (corp)"}
    assert free_name("bob", "corp", taken.__contains__) == "bob"
    assert free_name("ada", "corp", taken.__contains__) == "ada (corp 2)"
    assert free_name(" \n ", "corp", taken.__contains__) == "user"
    assert len(free_name("x" * 500, "corp", lambda name: not name.endswith(")"))) <= 64


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("https://id.example/keys", True),
        ("https://id.example:443/keys", False),
        ("http://id.example/keys", False),
        ("https://keys.example/keys", True),
        ("https://keys.example:8443/keys", False),
        ("https://id.example.evil/keys", False),
        ("https://id.example@evil/keys", False),
        ("https://169.254.169.254/keys", False),
        ("file:///etc/passwd", False),
        ("https://id.example/keys?x#y", False),
        ("", False),
    ],
)
def test_only_the_issuers_place_and_named_hosts_are_asked(url: str, may: bool) -> None:
    assert may_be_asked(url, "https://id.example", ("keys.example",)) is may


def test_plain_http_is_for_this_machine_alone() -> None:
    assert is_safe("http://127.0.0.1:9000/x")
    assert is_safe("http://[::1]:9000")
    assert not is_safe("http://127.0.0.1.evil.example")
    assert not is_safe("http://10.0.0.1")


def test_groups_are_a_list_a_word_or_deeper_within() -> None:
    assert groups_of({"groups": "ml"}, "groups") == frozenset({"ml"})
    assert groups_of({"realm_access": {"roles": ["a", 5, "b"]}}, "realm_access.roles") == frozenset(
        {"a", "b"}
    )
    assert groups_of({"https://x.y/groups": ["a"]}, "https://x.y/groups") == frozenset({"a"})
    assert groups_of({}, "groups") is None
    with pytest.raises(NotVouchedFor):
        groups_of({"groups": ["x"] * 2_001}, "groups")


def test_a_rule_without_claims_fits_nobody() -> None:
    assert fits({"repo": "org/cats", "ref": "main"}, {"repo": "org/*", "ref": "main"})
    assert not fits({"repo": "org/cats"}, {"repo": "org/*", "ref": "main"})
    assert not fits({"repo": 5}, {"repo": "*"})
    assert not fits({"repo": "org/cats"}, {})


def test_a_proxy_that_names_nobody_lets_nobody_in() -> None:
    proxy = ProxyIdentity(title="x", user_header="x-user", groups_header="x-groups", name_header="x-name")
    person = person_by_proxy({"x-user": "a1", "x-groups": "ml, lab,,", "x-name": "Ada"}, proxy)
    assert (person.subject, person.name, person.groups) == ("a1", "Ada", frozenset({"ml", "lab"}))
    for headers in ({}, {"x-user": ""}, {"x-user": "a\x00b"}):
        with pytest.raises(NotVouchedFor):
            person_by_proxy(headers, proxy)


def test_a_trial_is_good_only_where_every_check_was_made_and_is_good() -> None:
    made = good(TrialName.ISSUER, "yes")
    missed, wrong = not_made(TrialName.PKCE, "?"), client_check(401, "")
    for checks, state in (
        ((made,), TrialState.GOOD),
        ((made, missed), TrialState.NOT_MADE),
        ((made, missed, wrong), TrialState.BAD),
    ):
        assert Trial(at=0.0, redirect_uri="", checks=checks).state is state


def test_what_a_provider_answers_to_a_test_is_read_with_care() -> None:
    back = "https://fleet/login/back/corp"
    answers = {
        (302, f"{back}?error=login_required"): TrialState.GOOD,
        (302, f"{back}.evil.example?x"): TrialState.NOT_MADE,
        (302, "https://id/login"): TrialState.NOT_MADE,
        (200, ""): TrialState.NOT_MADE,
        (400, ""): TrialState.BAD,
    }
    assert {asked: redirect_check(*asked, back).state for asked in answers} == answers
    states = [
        client_check(*one).state for one in ((400, "invalid_grant"), (400, "invalid_client"), (500, ""))
    ]
    assert states == [TrialState.GOOD, TrialState.BAD, TrialState.NOT_MADE]
