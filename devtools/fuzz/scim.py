"""What providers send by SCIM, almost: users, groups, filters and the paths of a PATCH, which no schema describes."""

from typing import Any

from devtools.fuzz.cast import TEAM
from devtools.fuzz.chance import Chance
from devtools.fuzz.document import Known, Operation
from simpletuner_fleet.core.people.scim.resources import (
    GROUP_SCHEMA,
    MAX_EMAILS,
    MAX_TEXT_CHARS,
    USER_SCHEMA,
    ScimKind,
    ScimSource,
    ScimUser,
)
from simpletuner_fleet.core.people.sign_in.providers import Provider, RoleRules, TeamGroups
from simpletuner_fleet.orchestrator.scim.entries import user_in
from simpletuner_fleet.orchestrator.sign_in.ways import SignInSettings
from simpletuner_fleet.ports import View
from simpletuner_fleet.sim.checks.checkers import Problem

BASE = "/scim/v2/"
EVERYTHING = 10**9
GROUPS = ("ml-admins", "ml", "staff", "leads")
USER_PARTS = ("userName", "externalId", "displayName", "active", "name", "emails", "name.givenName", "groups")
GROUP_PARTS = ("displayName", "externalId", "members")
FILTERED = ("id", "userName", "externalId", "displayName", "members", "members.value", "meta.created")
OPS = (*("add", "replace", "Add") * 3, *("remove", "REPLACE") * 2, "move")
BROKEN_PATHS = (
    *('emails[type eq "work"', 'emails[type ne "work"]', 'emails[not (type eq "a")]', "members[]", "[", "]["),
    *('members[value eq "\\"]', 'emails[type eq "' + 'a" and type eq "' * 60 + '"]', "urn:", "a" * 2000, "."),
)
TEXT_VALUES = (
    "ada",
    "eve",
    "Ada@corp",
    "O'Hara, X",
    "s-1",
    "s-2",
    "s-3",
    "ml",
    "\u732b",
    "\u0130",
    "a" * 255,
    "a" * 256,
)


def scim_settings() -> SignInSettings:
    """One provider that nobody asks anything, and that tells of its users and groups."""
    roles = RoleRules(admin=("ml-admins",), member=("ml",), viewer=("staff",))
    teams = {TEAM: TeamGroups(lead=("leads",), member=("ml",))}
    corp = Provider(
        id="corp", title="Corp", issuer="https://corp.invalid", client_id="x", roles=roles, teams=teams
    )
    return SignInSettings(providers=(corp,), scim=ScimSource(provider="corp"))


class ScimValues:
    def __init__(self, known: Known, chance: Chance) -> None:
        self._known, self._chance = known, chance

    def body(self, operation: Operation) -> Any:
        if self._chance.happens(20):
            return self._chance.garbage()
        of_users = "/Users" in operation.path
        if operation.method == "PATCH":
            changes = self._user_change if of_users else self._group_change
            operations = [changes() for _ in range(self._chance.choice((0, 1, 1, 1, 2, 5, 30)))]
            return {self._chance.choice(("Operations", "Operations", "operations", "ops")): operations}
        return self._whole(USER_PARTS if of_users else GROUP_PARTS, USER_SCHEMA if of_users else GROUP_SCHEMA)

    def query(self) -> dict[str, Any]:
        chance = self._chance
        filters = [self._term() for _ in range(chance.choice((1, 1, 1, 2, 6)))]
        asked = {
            "filter": chance.choice((" and ", " AND ", " or ", "and")).join(filters),
            "startIndex": chance.choice((1, 0, -1, 2, chance.number())),
            "count": chance.choice((1, 0, -1, 100, chance.number())),
            "attributes": chance.choice(("userName", "members", "name.givenName,id", chance.text())),
            "excludedAttributes": chance.choice(("members", "groups", "id,meta", chance.text())),
        }
        return {name: value for name, value in asked.items() if chance.happens(2)}

    def _whole(self, parts: tuple[str, ...], schema: str) -> dict[str, Any]:
        document = {part: self._value(part) for part in parts if not self._chance.happens(8)}
        return {"schemas": [schema], **document}

    def _term(self) -> str:
        chance = self._chance
        value = chance.choice((self._person(), chance.choice(GROUPS), chance.choice(TEXT_VALUES)))
        quoted = chance.choice((f'"{value}"', f'"{value}"', value, f'"{value}', "true"))
        return f"{chance.choice(FILTERED)} {chance.choice(('eq', 'eq', 'EQ', 'sw', 'pr'))} {quoted}"

    def _user_change(self) -> dict[str, Any]:
        kind = self._chance.choice(("work", "home", self._chance.text()))
        path = self._chance.choice((*USER_PARTS, f'emails[type eq "{kind}"].value', f"{USER_SCHEMA}:active"))
        return self._change(path)

    def _group_change(self) -> dict[str, Any]:
        return self._change(self._chance.choice((*GROUP_PARTS, f'members[value eq "{self._person()}"]')))

    def _change(self, path: str) -> dict[str, Any]:
        chance = self._chance
        part = "emails.value" if path.endswith("].value") else path.partition("[")[0].rpartition(":")[2]
        if chance.happens(4):
            return {"op": chance.choice(OPS), "value": {path: self._value(part)}}
        path = chance.choice((*BROKEN_PATHS, chance.text())) if chance.happens(12) else path
        return {"op": chance.choice(OPS), "path": path, "value": self._value(part)}

    def _value(self, part: str) -> Any:
        chance = self._chance
        if chance.happens(30):
            return chance.garbage()
        match part:
            case "active":
                return chance.choice((True, True, True, False, "False", "true", "True", None, "no"))
            case "name":
                return {"givenName": chance.choice(TEXT_VALUES), "FamilyName": None}
            case "emails":
                count = chance.choice((0, 1, 1, 1, 2, 2, 2, 11))
                return [{"value": f"{at}@corp", "type": "work", "primary": at == 0} for at in range(count)]
            case "members" | "groups":
                return [{"value": self._person()} for _ in range(chance.choice((0, 1, 3, 40)))]
            case "displayName":
                return chance.choice((*GROUPS, *TEXT_VALUES))
        return chance.choice(TEXT_VALUES) if chance.happens(3) else f"s-{chance.randrange(60)}"

    def _person(self) -> str:
        return str(self._chance.one_of(self._known[self._chance.choice(("scim_user", "scim_user", "user"))]))


def told_problems(view: View) -> list[Problem]:
    """Whoever SCIM tells of is a user here, groups have only such members, and nothing is larger than it may be."""
    problems: list[Problem] = []
    known = set()
    for entry in view.scim_page(ScimKind.USER, 0, EVERYTHING):
        user = user_in(entry)
        known.add(user.id)
        if view.user(user.id) is None or len(user.emails) > MAX_EMAILS:
            problems.append(("scim", f"the user {user} has no account here, or too many addresses"))
        if any(len(text) > MAX_TEXT_CHARS or not text.isprintable() for text in _texts(user)):
            problems.append(("scim", f"the user {user} has a text that nobody may send"))
    for entry in view.scim_page(ScimKind.GROUP, 0, EVERYTHING):
        strangers = set(view.scim_members(entry.id)) - known
        if strangers:
            problems.append(("scim", f"the group {entry.name} has members of whom nobody told: {strangers}"))
    return problems


def _texts(user: ScimUser) -> list[str]:
    names = [user.user_name, user.external_id, user.display_name, user.given_name, user.family_name]
    return names + [text for email in user.emails for text in (email.value, email.type)]
