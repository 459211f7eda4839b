"""Reads credentials from the store."""

from collections.abc import Callable

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.people.own_roles import only_own_jobs
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.owners import permissions_of, within_its_owner
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.http.access.credential_cache import CachedCredentials, SignedIn
from simpletuner_fleet.ports import ApiToken, View

Vouches = Callable[[str], bool]
"""Tells whether people still log in through the provider with this issuer."""


def any_issuer(issuer: str) -> bool:
    """Takes every provider for one that people log in through, where there are no settings to ask."""
    return True


class StoredCredentials:
    def __init__(self, fleet: Fleet, vouches: Vouches = any_issuer) -> None:
        self._fleet, self._vouches = fleet, vouches

    async def api_token(self, token_hash: str) -> ApiToken | None:
        """Returns the token; None while the user that it acts for may not log in."""

        def look(view: View) -> ApiToken | None:
            token = view.api_token_by_hash(token_hash)
            if token is None or not _has_its_owner(view, token):
                return None
            return replace(token, permissions=within_its_owner(view, token, self._fleet.organisation))

        return await self._fleet.read(look)

    async def worker(self, token_hash: str) -> Worker | None:
        return await self._fleet.read(lambda view: view.worker_by_token_hash(token_hash))

    async def attempt(self, token_hash: str) -> Attempt | None:
        return await self._fleet.read(lambda view: view.attempt_by_upload_token(token_hash))

    async def session(self, token_hash: str) -> SignedIn | None:
        """Returns the session with its user; None for one from a provider that the settings no longer name."""

        def look(view: View) -> SignedIn | None:
            session = view.session(token_hash)
            user = view.user(session.user_id) if session else None
            if session is None or user is None or (session.issuer and not self._vouches(session.issuer)):
                return None
            organisation = self._fleet.organisation
            alone = only_own_jobs(user.role, organisation.own_roles)
            return SignedIn(session, user, permissions_of(user, organisation), alone)

        return await self._fleet.read(look)

    async def note_token_use(self, token_hash: str, now: float) -> None:
        await self._fleet.store.write(lambda tx: tx.note_token_use(token_hash, now))

    async def renew_session(self, token_hash: str, now: float) -> None:
        await self._fleet.store.write(lambda tx: tx.renew_session(token_hash, now))


def _has_its_owner(view: View, token: ApiToken) -> bool:
    owner = view.user(token.owner) if token.owner else None
    return not token.owner or (owner is not None and owner.disabled_at is None)


def remembered_credentials(fleet: Fleet, hub: StreamHub, vouches: Vouches = any_issuer) -> CachedCredentials:
    """Returns cached credentials that never outlive the stored ones.

    Whatever rotates, deletes or cleans up a worker cuts its stream at the same time, and the hub tells us so before
    the act is answered. Whoever else takes something away says of whom; where that went wrong, the fleet tells us.
    """
    credentials = CachedCredentials(StoredCredentials(fleet, vouches))
    hub.on_cut = lambda worker_id: credentials.forget_all()
    fleet.on_doubt = credentials.forget_all
    return credentials
