"""What of SCIM is understood, as Okta and Entra write it, and what is refused."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from simpletuner_fleet.core.errors import ScimRefused
from simpletuner_fleet.core.people.scim.filters import OF_GROUPS, OF_USERS, FilterTerm, read_filter
from simpletuner_fleet.core.people.scim.patching import patched_group, patched_user, read_operations
from simpletuner_fleet.core.people.scim.resources import (
    MAX_EMAILS,
    MAX_MEMBERS_AT_ONCE,
    Email,
    ScimGroup,
    ScimUser,
    group_from,
    only_asked,
    shown_user,
    user_from,
)

ADA = ScimUser(id="u_1", user_name="ada@example.org", external_id="x1", given_name="Ada", changed_at=1.0)
AT_WORK = Email(value="a@work", type="work", primary=True)
ML = ScimGroup(id="g_1", display_name="ml", changed_at=1.0)


def patched(*operations: dict[str, Any], user: ScimUser = ADA) -> ScimUser:
    return patched_user(user, read_operations({"Operations": list(operations)}), 2.0)


def members_after(*operations: dict[str, Any]) -> tuple[bool, list[str], set[str]]:
    _, changes = patched_group(ML, read_operations({"operations": list(operations)}), 2.0)
    return changes.replaced, list(changes.added), changes.removed


def kind_of(error: pytest.ExceptionInfo[ScimRefused]) -> str:
    return str(error.value.params["scim_type"])


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "value": {"active": False}},
        {"op": "Replace", "path": "active", "value": "False"},
        {"op": "replace", "path": "ACTIVE", "value": False},
        {"op": "remove", "path": "active"},
        {"op": "add", "path": "urn:ietf:params:scim:schemas:core:2.0:User:active", "value": "false"},
        {"op": "Replace", "path": "active", "value": [{"$ref": None, "value": "False"}]},
    ],
)
def test_each_way_to_deactivate_somebody_is_understood(operation: dict[str, Any]) -> None:
    after = patched(operation)
    assert (after.active, after.changed_at, after.user_name) == (False, 2.0, ADA.user_name)


def test_entras_paths_and_dotted_names_change_what_they_name() -> None:
    after = patched(
        {"op": "Add", "path": 'emails[type eq "work"].value', "value": "ada@work.example"},
        {"op": "Add", "value": {"name.familyName": "Lovelace", "title": "Countess"}},
        {"op": "Replace", "path": "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:department"},
    )
    assert after.emails == (Email(value="ada@work.example", type="work"),)
    assert (after.given_name, after.family_name) == ("Ada", "Lovelace")
    assert patched({"op": "remove", "path": 'emails[type eq "work"]'}, user=after).emails == ()
    assert patched({"op": "Replace", "path": "name", "value": {"givenName": "A."}}).given_name == "A."
    assert patched({"op": "replace", "path": "title", "value": "x"}) == ADA


def test_what_has_one_value_may_come_as_a_list_of_one() -> None:
    wrapped = [{"$ref": None, "value": "Ada L."}]
    after = patched(
        {"op": "Add", "path": "displayName", "value": wrapped},
        {"op": "Replace", "path": "active", "value": "False"},
    )
    assert (after.display_name, after.active) == ("Ada L.", False)
    renamed, _ = patched_group(
        ML, read_operations({"Operations": [{"op": "add", "path": "displayName", "value": wrapped}]}), 2.0
    )
    assert renamed.display_name == "Ada L."


@pytest.mark.parametrize(
    "path",
    [
        "phoneNumbers[primary eq true].value",
        'addresses[type eq "work" and primary eq true].streetAddress',
        'urn:ietf:params:scim:schemas:core:2.0:User:ims[type eq "x"].value',
    ],
)
def test_what_is_not_kept_is_passed_over_however_its_path_is_written(path: str) -> None:
    after = patched(
        {"op": "Replace", "path": path, "value": "x"}, {"op": "Replace", "path": "active", "value": False}
    )
    assert (after.active, after.emails) == (False, ())


def test_an_address_is_known_by_its_whole_path_and_may_come_alone() -> None:
    by_path = {
        "op": "add",
        "path": 'urn:ietf:params:scim:schemas:core:2.0:User:emails[type eq "work"].value',
        "value": "A@work",
    }
    assert patched(by_path).emails == (Email(value="A@work", type="work"),)
    alone = {"value": "a@home", "type": "home", "primary": None}
    assert patched({"op": "add", "path": "emails", "value": alone}).emails == (
        Email(value="a@home", type="home"),
    )


@pytest.mark.parametrize(
    ("operations", "kind"),
    [
        ([], "invalidSyntax"),
        ("x", "invalidSyntax"),
        ([{"op": "move", "path": "active"}], "invalidSyntax"),
        ([7], "invalidSyntax"),
        ([{"op": "remove"}], "noTarget"),
        ([{"op": "add", "value": "x"}], "invalidSyntax"),
        ([{"op": "add", "path": ["active"], "value": True}], "invalidPath"),
        ([{"op": "replace", "path": "active", "value": "perhaps"}], "invalidValue"),
        ([{"op": "replace", "path": "active", "value": 0}], "invalidValue"),
        ([{"op": "replace", "path": "active", "value": [{}]}], "invalidValue"),
        (
            [{"op": "replace", "path": "displayName", "value": [{"value": "a"}, {"value": "b"}]}],
            "invalidValue",
        ),
        ([{"op": "replace", "path": "userName", "value": ""}], "invalidValue"),
        ([{"op": "replace", "path": "userName", "value": "x" * 256}], "invalidValue"),
        ([{"op": "replace", "path": "displayName", "value": "a\nb"}], "invalidValue"),
        ([{"op": "replace", "path": 'emails[type eq "x', "value": ""}], "invalidPath"),
        ([{"op": "add", "path": "emails", "value": [{"value": "a"}] * 11}], "invalidValue"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_scims_own_word(operations: Any, kind: str) -> None:
    with pytest.raises(ScimRefused) as error:
        patched_user(ADA, read_operations({"Operations": operations}), 2.0)
    assert kind_of(error) == kind


def test_members_come_and_go_as_okta_and_entra_send_them() -> None:
    ids = [{"value": "u_1", "display": "Ada"}, {"value": "u_2"}]
    assert members_after({"op": "add", "path": "members", "value": ids}) == (False, ["u_1", "u_2"], set())
    assert members_after({"op": "Remove", "path": "members", "value": ids[:1]}) == (False, [], {"u_1"})
    assert members_after({"op": "remove", "path": 'members[value eq "u_1"]'}) == (False, [], {"u_1"})
    assert members_after({"op": "replace", "path": "members", "value": ids}) == (True, ["u_1", "u_2"], set())
    assert members_after({"op": "remove", "path": "members"}) == (True, [], set())
    there_and_back = (
        {"op": "remove", "path": 'members[value eq "u_1"]'},
        {"op": "add", "value": {"members": ids}},
    )
    assert members_after(*there_and_back) == (False, ["u_1", "u_2"], set())
    renamed, _ = patched_group(
        ML,
        read_operations({"Operations": [{"op": "replace", "value": {"id": "g_1", "displayName": "ai"}}]}),
        2.0,
    )
    assert (renamed.display_name, renamed.id) == ("ai", "g_1")
    for path in (
        'members[display eq "x"]',
        'members[value eq "x"].display',
        "members[",
        'other[value eq "x"]x',
    ):
        if path.startswith("members"):
            with pytest.raises(ScimRefused):
                members_after({"op": "remove", "path": path})
    with pytest.raises(ScimRefused):
        members_after({"op": "replace", "path": 'members[value eq "u_1"]', "value": "u_2"})


def test_a_request_brings_so_many_members_and_no_more() -> None:
    many = [{"value": f"u_{number}"} for number in range(MAX_MEMBERS_AT_ONCE + 1)]
    assert len(group_from({"displayName": "g", "members": many[1:]}, group_id="g", now=0)[1]) == len(many) - 1
    with pytest.raises(ScimRefused):
        group_from({"displayName": "g", "members": many}, group_id="g", now=0)


def test_filters_are_read_whatever_their_case_and_others_are_refused() -> None:
    assert read_filter("", OF_USERS) == ()
    assert read_filter('userName eq "A\\"d\\\\a"', OF_USERS) == (FilterTerm("username", 'A"d\\a'),)
    assert read_filter('USERNAME EQ "ada"', OF_USERS) == (FilterTerm("username", "ada"),)
    assert read_filter('id eq "g" and members.value eq "u"', OF_GROUPS) == (
        FilterTerm("id", "g"),
        FilterTerm("members.value", "u"),
    )
    for text in (
        "userName",
        'userName co "a"',
        'userName eq "a',
        'displayName eq "a"',
        'userName eq "a" or id eq "b"',
    ):
        with pytest.raises(ScimRefused) as error:
            read_filter(text, OF_USERS)
        assert kind_of(error) == "invalidFilter"
    with pytest.raises(ScimRefused):
        read_filter(" and ".join(['id eq "x"'] * 6), OF_USERS)


@given(st.text(max_size=60))
def test_no_filter_and_no_path_does_more_than_be_refused(text: str) -> None:
    for attempt in (
        lambda: read_filter(text, OF_USERS),
        lambda: patched({"op": "add", "path": text, "value": text}),
        lambda: members_after({"op": "remove", "path": text}),
    ):
        with contextlib.suppress(ScimRefused):
            attempt()


def test_a_user_is_read_and_shown_without_what_nobody_said() -> None:
    read = user_from(
        {
            "userName": "ada",
            "name": {"givenName": "Ada"},
            "emails": [{"value": "a@b", "primary": True}],
            "title": 7,
        },
        user_id="u_1",
        active=True,
        now=5.0,
    )
    shown = shown_user(read, [ML], {"resourceType": "User"})
    assert shown["name"] == {"givenName": "Ada"}
    assert shown["emails"] == [{"value": "a@b", "primary": True}]
    assert shown["groups"] == [{"value": "g_1", "display": "ml"}]
    assert "externalId" not in shown
    assert set(only_asked(shown, {"username"}, set())) == {"schemas", "id", "meta", "userName"}
    assert "emails" not in only_asked(shown, set(), {"emails"})


def addresses_after(*operations: dict[str, Any]) -> tuple[Email, ...]:
    return patched(*operations, user=replace(ADA, emails=(AT_WORK,))).emails


def test_an_address_that_is_added_leaves_the_others_and_one_that_is_replaced_does_not() -> None:
    home = {"value": "a@home", "type": "home"}
    at_home = Email(value="a@home", type="home")
    assert addresses_after({"op": "add", "path": "emails", "value": [home]}) == (AT_WORK, at_home)
    assert addresses_after({"op": "add", "value": {"emails": [home, home]}}) == (AT_WORK, at_home), (
        "once, not twice"
    )
    assert addresses_after({"op": "replace", "path": "emails", "value": [home]}) == (at_home,)
    assert addresses_after({"op": "add", "path": 'emails[type eq "home"]', "value": home}) == (
        AT_WORK,
        at_home,
    )
    assert addresses_after({"op": "remove", "path": 'emails[type eq "work"].primary'}) == (
        Email(value="a@work", type="work"),
    )
    assert addresses_after({"op": "remove", "path": 'emails[type eq "work"]'}) == ()


def test_addresses_are_as_many_and_as_long_by_a_path_as_in_a_whole_user() -> None:
    many = [
        {"op": "add", "path": f'emails[type eq "t{at}"].value', "value": "a@b"} for at in range(MAX_EMAILS)
    ]
    listed = [{"value": f"{at}@b", "type": f"t{at}"} for at in range(MAX_EMAILS)]
    long = f'emails[type eq "{"t" * 300}"].value'
    for operations in (
        many,
        [{"op": "add", "path": "emails", "value": listed}],
        [{"op": "add", "path": long, "value": "a@b"}],
        [{"op": "add", "path": 'emails[type eq "\x07"].value', "value": "a@b"}],
    ):
        with pytest.raises(ScimRefused):
            addresses_after(*operations)
