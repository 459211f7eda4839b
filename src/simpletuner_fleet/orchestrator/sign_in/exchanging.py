"""Exchanges a token from a continuous integration's own issuer for a short-lived token of ours."""

from msgspec.structs import replace

from simpletuner_fleet.core.errors import UserDisabled
from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.sign_in.ci import CiAdmission, CiIssuer
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.people.api_tokens import token_event
from simpletuner_fleet.ports import ApiToken


async def exchange(fleet: Fleet, ci: CiIssuer, admission: CiAdmission, ip: str) -> tuple[ApiToken, str]:
    """Returns a new token and its secret.

    It reuses the row of an expired token, so that there are only as many rows as tokens in use at a time.
    """
    secret = fleet.ids.token(tokens.API)

    def step(transaction: Transaction) -> ApiToken:
        tx, now = transaction.tx, transaction.now
        user = tx.user_by_name(admission.rule.user)
        if user is None or user.disabled_at is not None:
            raise UserDisabled(
                "The user that this rule acts for is not there or is disabled.",
                next_step="Create the user, or name another in the rule.",
            )
        fresh = ApiToken(
            id=transaction.ids.new("t"),
            name=admission.token_name,
            token_hash=tokens.hashed(secret),
            permissions=admission.rule.permissions,
            created_at=now,
            expires_at=now + ci.token_life_s,
            owner=user.id,
        )
        known = tx.api_tokens_of(fresh.owner, fresh.name)
        over = next((one for one in known if _is_over(one, now)), None)
        if over is None:
            tx.add_api_token(fresh)
        else:
            fresh = replace(fresh, id=over.id)
            tx.save_api_token(fresh)
        actor = Actor(user.id, admission.token_name, ip)
        transaction.record(token_event(EventType.TOKEN_CREATED, fresh, actor))
        return fresh

    return await fleet.act(step), secret


def _is_over(known: ApiToken, now: float) -> bool:
    return known.expires_at is not None and known.expires_at <= now and known.revoked_at is None
