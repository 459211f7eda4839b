"""Builds the headers of every answer, encoded once where they do not depend on the request."""

from collections.abc import Mapping

from simpletuner_fleet.http.edge.exchange import RawHeaders, head_of
from simpletuner_fleet.protocol.messages import TERM_HEADER

STRICT_CSP = b"default-src 'none'; frame-ancestors 'none'"
MAX_HEADS = 512


def security_headers(tls: bool) -> RawHeaders:
    headers = [
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"content-security-policy", STRICT_CSP),
    ]
    if tls:
        headers.append((b"strict-transport-security", b"max-age=31536000"))
    return headers


class Heads:
    """Makes the heads of answers. No cache keeps anything under `/api/` unless its handler says so."""

    def __init__(self, tls: bool, term: int | None = None) -> None:
        """Takes the leader's `term`: with one, every answer says in which term it was given."""
        self.of_pages = security_headers(tls)
        if term is not None:
            self.of_pages.append((TERM_HEADER.encode(), b"%d" % term))
        self.of_api = [*self.of_pages, (b"cache-control", b"no-store")]
        self._plain: dict[tuple[int, bool, str], bytes] = {}

    def plain(self, status: int, path: str, content_type: str) -> bytes:
        key = (status, path.startswith("/api/"), content_type)
        head = self._plain.get(key)
        if head is None:
            head = head_of(status, self._headers(path, content_type, {}))
            if len(self._plain) < MAX_HEADS:
                self._plain[key] = head
        return head

    def with_more(
        self, status: int, path: str, content_type: str, own: Mapping[str, str], more: RawHeaders
    ) -> bytes:
        """Returns a head in which `own` replaces what the table says, and `more` is added."""
        return head_of(status, [*self._headers(path, content_type, own), *more])

    def _headers(self, path: str, content_type: str, own: Mapping[str, str]) -> RawHeaders:
        headers = list(self.of_api if path.startswith("/api/") else self.of_pages)
        if own:
            replacements = {
                name.lower().encode("latin-1"): value.encode("latin-1") for name, value in own.items()
            }
            headers = [*(pair for pair in headers if pair[0] not in replacements), *replacements.items()]
        if content_type:
            headers.append((b"content-type", content_type.encode("latin-1")))
        return headers
