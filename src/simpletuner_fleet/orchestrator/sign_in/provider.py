"""Talks to one OpenID provider: reads its discovery document and keys, and who has logged in there."""

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from simpletuner_fleet.core.errors import NotVouchedFor, ProviderUnusable, SignInFailed
from simpletuner_fleet.core.people.sign_in import claims as rules
from simpletuner_fleet.core.people.sign_in.claims import LogoutOrder, Person
from simpletuner_fleet.core.people.sign_in.providers import (
    DISCOVERY,
    Described,
    Provider,
    ProviderDocument,
    described,
    is_safe,
)
from simpletuner_fleet.core.people.sign_in.stored import StoredProvider
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.orchestrator.sign_in.asking import DEADLINE_S, Asker
from simpletuner_fleet.orchestrator.sign_in.journeys import Begun, Returned
from simpletuner_fleet.orchestrator.sign_in.keys import KeyRing

DOCUMENT_LIFE_S = 3_600.0
FAILURE_LIFE_S = 5.0
"""For so long a provider that could not be asked is not asked again."""
OK = 200
TROUBLE = frozenset({408, 425, 429, *range(500, 600)})
"""Statuses that say nothing about the question: asked again, the answer may be another."""
MAX_ID_TOKEN_CHARS = 6_000
"""A longer one is not shown to the provider again at the log-out: it would not fit into an address."""


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str = ""


class Issuer:
    """Verifies tokens of one issuer, which describes itself at a well-known address and has keys."""

    def __init__(
        self,
        issuer: str,
        hosts: tuple[str, ...] = (),
        ca_file: str = "",
        *,
        for_people: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        deadline_s: float = DEADLINE_S,
        outbound: OutboundConnector | None = None,
    ) -> None:
        self._issuer, self._hosts, self._for_people = issuer, hosts, for_people
        self._monotonic = monotonic
        self.asker = Asker(ca_file, deadline_s, outbound)
        self._keys = KeyRing(self._fetch_keys, monotonic)
        self._described: tuple[float, Described] | None = None
        self._failed: tuple[float, ProviderUnusable] | None = None

    async def describe(self) -> Described:
        now = self._monotonic()
        if self._described and now < self._described[0] + DOCUMENT_LIFE_S:
            return self._described[1]
        if self._failed and now < self._failed[0] + FAILURE_LIFE_S:
            raise ProviderUnusable(self._failed[1].detail, next_step=self._failed[1].next)
        try:
            fresh = await self._look()
        except ProviderUnusable as error:
            self._failed = (self._monotonic(), error)
            raise
        self._described, self._failed = (now, fresh), None
        return fresh

    async def read(self, token: str) -> tuple[dict[str, Any], str]:
        """Returns the claims of a token of this issuer, and the type that its header names."""
        signed = await self._keys.read(token, (await self.describe()).signatures)
        return signed.claims, signed.type

    async def _look(self) -> Described:
        return described(await self.document(), self._issuer, self._hosts, for_people=self._for_people)

    async def document(self) -> ProviderDocument:
        """Asks the provider to describe itself, now; nothing in the document has been checked."""
        status, body = await self.asker.ask(self._issuer.rstrip("/") + DISCOVERY)
        if status != OK:
            raise ProviderUnusable(f"The provider answers {status} when asked to describe itself.")
        said: ProviderDocument = decoded(body, ProviderDocument)
        return said

    async def keys(self, at: str) -> bytes:
        status, body = await self.asker.ask(at)
        if status != OK:
            raise ProviderUnusable(f"The provider answers {status} when asked for its keys.")
        return body

    async def _fetch_keys(self) -> bytes:
        return await self.keys((await self.describe()).keys)


class OpenIdProvider(Issuer):
    def __init__(
        self,
        provider: Provider,
        deadline_s: float = DEADLINE_S,
        outbound: OutboundConnector | None = None,
        stored: StoredProvider | None = None,
    ) -> None:
        """Takes `stored`, the row that the provider was made from; it is None for one of the server's own file."""
        super().__init__(
            provider.issuer, provider.hosts, provider.ca_file, deadline_s=deadline_s, outbound=outbound
        )
        self.settings = provider
        self.stored = stored

    @property
    def journey(self) -> str:
        """Returns what binds a log-in to this provider.

        If its client id or issuer has changed since, the log-in does not fit.
        """
        return f"{self.settings.id} {self.settings.client_id} {self.settings.issuer}"

    async def login_address(self, begun: Begun, redirect_uri: str) -> str:
        return self.address_at((await self.describe()).authorize, begun, redirect_uri)

    def address_at(self, authorize: str, begun: Begun, redirect_uri: str, **more: str) -> str:
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": begun.challenge,
            "code_challenge_method": "S256",
            **more,
        }
        return f"{authorize}?{urlencode(asked)}"

    async def logout_address(self, id_token: str, redirect_uri: str) -> str:
        """Returns where a browser logs out of the provider, too; '' where that is not offered or not known."""
        try:
            at = (await self.describe()).end_session
        except ProviderUnusable:
            return ""
        shown = {"id_token_hint": id_token} if id_token and await self._knows(id_token) else {}
        asked = {"client_id": self.settings.client_id, "post_logout_redirect_uri": redirect_uri, **shown}
        return f"{at}?{urlencode(asked)}" if at and is_safe(at) else ""

    async def _knows(self, id_token: str) -> bool:
        """Tells whether the token's key is still known.

        With an outdated token the provider would show an error page, and the person would stay logged in there.
        """
        try:
            await self.read(id_token)
        except (NotVouchedFor, ProviderUnusable):
            return False
        return True

    async def check_sender(self, issuer: str | None) -> None:
        """Raises NotVouchedFor if the answer comes from another provider, where providers name themselves.

        Two providers must not be mixed up.
        """
        if issuer is None and not (await self.describe()).names_itself:
            return
        if issuer != self.settings.issuer:
            raise NotVouchedFor("The answer came from another provider than the one that was asked.")

    async def person(self, code: str, returned: Returned, redirect_uri: str, now: float) -> Person:
        tokens = await self._exchange(code, returned, redirect_uri)
        claims, _ = await self.read(tokens.id_token)
        rules.check_id_token(claims, self.settings, returned.nonce, now)
        groups = rules.groups_of(claims, self.settings.groups_claim)
        if groups is None:
            claims = {**await self._userinfo(tokens.access_token, claims), **claims}
            groups = rules.groups_of(claims, self.settings.groups_claim)
        id_token = tokens.id_token if len(tokens.id_token) <= MAX_ID_TOKEN_CHARS else ""
        return rules.person_of(claims, self.settings, groups or (), id_token)

    async def logout_order(self, token: str, now: float) -> LogoutOrder:
        claims, kind = await self.read(token)
        if kind not in rules.LOGOUT_TYPES:
            raise NotVouchedFor("This is no logout token.")
        return rules.logout_order(claims, self.settings, now)

    async def _exchange(self, code: str, returned: Returned, redirect_uri: str) -> _Tokens:
        status, body = await self.show_code(await self.describe(), code, returned.verifier, redirect_uri)
        if status != OK:
            raise _not_accepted(status)
        tokens: _Tokens = decoded(body, _Tokens)
        return tokens

    async def show_code(
        self, about: Described, code: str, verifier: str, redirect_uri: str
    ) -> tuple[int, bytes]:
        provider = self.settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        credentials = None
        if provider.client_secret and not about.secret_in_body:
            credentials = (quote(provider.client_id, safe=""), quote(provider.client_secret, safe=""))
        else:
            form["client_id"] = provider.client_id
            if provider.client_secret:
                form["client_secret"] = provider.client_secret
        return await self.asker.ask(about.token, form=form, credentials=credentials)

    async def _userinfo(self, access_token: str, claims: dict[str, Any]) -> dict[str, Any]:
        """Returns what the userinfo endpoint says: some providers name groups only there.

        It must be about the same person. Where it has trouble there is no log-in: without groups somebody would lose
        role, sessions and tokens whose groups nobody has taken away.
        """
        at = (await self.describe()).userinfo
        if not at or not access_token:
            return {}
        status, body = await self.asker.ask(at, bearer=access_token)
        if status in TROUBLE:
            raise _not_accepted(status)
        if status != OK:
            return {}
        said: dict[str, Any] = decoded(body, dict[str, Any])
        if said.get("sub") != claims["sub"]:
            raise NotVouchedFor("The provider tells of somebody else than it was asked about.")
        return said


def _not_accepted(status: int) -> SignInFailed:
    return SignInFailed(f"The provider does not accept this log-in: it answers {status}.")


def decoded(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ProviderUnusable("The provider's answer cannot be read.") from None
