"""Proves for whom an orchestrator forwards a request, so that only another one of the fleet can say so."""

import hashlib
import hmac

from msgspec import Struct

from simpletuner_fleet.http.edge.exchange import Exchange

PASSED_ON = "x-fleet-passed-on"
"""Term, caller's address, whether it came over TLS, and a proof over these and the request line."""


class Caller(Struct, frozen=True, kw_only=True):
    peer: str
    secure: bool


class PeerProof:
    """Proves for whom a request is forwarded between orchestrators of one fleet.

    A proof is made and checked with a key that every orchestrator of the fleet derives from the one it was given.
    """

    def __init__(self, fleet_secret: bytes) -> None:
        self._key = hmac.digest(fleet_secret, b"requests passed on between orchestrators", hashlib.sha256)

    def header(self, exchange: Exchange, term: int) -> str:
        fields = f"{term} {exchange.peer or '-'} {'tls' if exchange.secure else 'plain'}"
        return f"{fields} {self._proof(fields, exchange)}"

    def caller(self, exchange: Exchange, term: int) -> Caller | None:
        """Returns the original caller; None where no other orchestrator of this fleet has named one in this term."""
        fields, _, proof = exchange.headers.get(PASSED_ON, "").rpartition(" ")
        if not hmac.compare_digest(proof.encode(), self._proof(fields, exchange).encode()):
            return None
        said_term, peer, how = fields.split(" ")
        if said_term != str(term):
            return None
        return Caller(peer="" if peer == "-" else peer, secure=how == "tls")

    def _proof(self, fields: str, exchange: Exchange) -> str:
        said = "\n".join((fields, exchange.method, exchange.path, exchange.query.decode("latin-1")))
        return hmac.new(self._key, said.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()
