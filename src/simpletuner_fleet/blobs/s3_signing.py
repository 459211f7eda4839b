"""Signs requests to S3 (AWS Signature Version 4): our own in their headers, those of others in their links.

A link opens one call with one method, path and query, and with the headers that are signed into it, until it expires.
Our own calls carry their signature in a header, so that an address which a log or an error repeats is worth nothing.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from msgspec import Struct

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
Query = Sequence[tuple[str, str]]


class BucketKeys(Struct, frozen=True, kw_only=True):
    """Holds the credentials that sign requests to S3."""

    access_key: str
    secret_key: str
    session_token: str = ""
    """Of temporary keys; '' where they last."""


class Signer:
    def __init__(self, keys: BucketKeys, region: str) -> None:
        self._keys = keys
        self._region = region

    def link(
        self, method: str, address: str, query: Query, headers: Mapping[str, str], at: float, expires_s: int
    ) -> str:
        """Returns the address with its signature. Whoever calls it must send exactly these headers."""
        stamp = _stamp(at)
        signed = {"host": _host_of(address), **_lowered(headers)}
        whole_query = [
            *query,
            ("X-Amz-Algorithm", ALGORITHM),
            ("X-Amz-Credential", f"{self._keys.access_key}/{self._scope(stamp)}"),
            ("X-Amz-Date", stamp),
            ("X-Amz-Expires", str(expires_s)),
            ("X-Amz-SignedHeaders", ";".join(sorted(signed))),
        ]
        if self._keys.session_token:
            whole_query.append(("X-Amz-Security-Token", self._keys.session_token))
        signature = self._signature(method, address, whole_query, signed, UNSIGNED, stamp)
        return f"{address}?{canonical_query(whole_query)}&X-Amz-Signature={signature}"

    def headers(
        self, method: str, address: str, query: Query, headers: Mapping[str, str], content: bytes, at: float
    ) -> dict[str, str]:
        """Returns all headers of a call of our own, its signature among them."""
        stamp, content_sha256 = _stamp(at), hashlib.sha256(content).hexdigest()
        signed = {
            "host": _host_of(address),
            "x-amz-content-sha256": content_sha256,
            "x-amz-date": stamp,
            **_lowered(headers),
        }
        if self._keys.session_token:
            signed["x-amz-security-token"] = self._keys.session_token
        signature = self._signature(method, address, query, signed, content_sha256, stamp)
        credential = f"{self._keys.access_key}/{self._scope(stamp)}"
        names = ";".join(sorted(signed))
        return {
            **signed,
            "authorization": f"{ALGORITHM} Credential={credential},SignedHeaders={names},Signature={signature}",
        }

    def _signature(
        self,
        method: str,
        address: str,
        query: Query,
        signed: Mapping[str, str],
        content_sha256: str,
        stamp: str,
    ) -> str:
        names = sorted(signed)
        request = "\n".join(
            [
                method,
                urlsplit(address).path or "/",
                canonical_query(query),
                *(f"{name}:{signed[name].strip()}" for name in names),
                "",
                ";".join(names),
                content_sha256,
            ]
        )
        digest = hashlib.sha256(request.encode()).hexdigest()
        to_sign = "\n".join([ALGORITHM, stamp, self._scope(stamp), digest])
        key = f"AWS4{self._keys.secret_key}".encode()
        for part in (stamp[:8], self._region, "s3", "aws4_request"):
            key = _hmac(key, part)
        return _hmac(key, to_sign).hex()

    def _scope(self, stamp: str) -> str:
        return f"{stamp[:8]}/{self._region}/s3/aws4_request"


def canonical_query(query: Query) -> str:
    encoded = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query)
    return "&".join(f"{name}={value}" for name, value in encoded)


def encoded_path(path: str) -> str:
    return quote(path, safe="/-_.~")


def _host_of(address: str) -> str:
    """Returns the host as clients send it: the port that a scheme has anyway is left out."""
    parts = urlsplit(address)
    return parts.netloc.removesuffix(":443" if parts.scheme == "https" else ":80")


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ")


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
