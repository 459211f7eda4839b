"""Admits CI jobs that prove themselves with a token of their issuer: for whom they act, and what they may do."""

from collections.abc import Iterable

from msgspec import Struct

from simpletuner_fleet.core.bounds import Name
from simpletuner_fleet.core.errors import NoRole
from simpletuner_fleet.core.people.sign_in.claims import Claims, check_issued, fits, subject_of

MAX_TOKEN_NAME_CHARS = 100


class CiRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Admits CI jobs whose token has claims that all match these globs."""

    claims: dict[str, Name]
    user: Name
    """The name of the user that it acts for: it never may more than they."""
    permissions: tuple[Name, ...]


class CiIssuer(Struct, frozen=True, kw_only=True):
    id: str
    issuer: str
    audience: str
    rules: tuple[CiRule, ...]
    token_life_s: float = 900.0
    leeway_s: float = 60.0
    hosts: tuple[str, ...] = ()
    ca_file: str = ""


class CiAdmission(Struct, frozen=True, kw_only=True):
    rule: CiRule
    token_name: str


def admitted(claims: Claims, ci: CiIssuer, now: float) -> CiAdmission:
    """Returns the first rule that fits, for claims whose signature was checked before."""
    check_issued(claims, issuer=ci.issuer, audience=ci.audience, now=now, leeway_s=ci.leeway_s)
    rule = first_that_fits(claims, ci.rules)
    if rule is None:
        raise NoRole(
            "The token is genuine, but no rule fits its claims.",
            next_step="Compare its claims with the rules under [ci] in the server's sign-in file.",
        )
    return CiAdmission(rule=rule, token_name=f"ci {ci.id}: {subject_of(claims)}"[:MAX_TOKEN_NAME_CHARS])


def first_that_fits(claims: Claims, rules: Iterable[CiRule]) -> CiRule | None:
    return next((rule for rule in rules if fits(claims, rule.claims)), None)
