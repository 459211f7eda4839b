"""The signatures that AWS has published for its examples, and those that its own library makes."""

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.auth import S3SigV4QueryAuth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]

from simpletuner_fleet.blobs.s3_signing import BucketKeys, Signer

KEYS = BucketKeys(access_key="AKIAIOSFODNN7EXAMPLE", secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "https://examplebucket.s3.amazonaws.com"
AT = datetime(2013, 5, 24, tzinfo=UTC).timestamp()


def test_a_link_has_the_published_signature() -> None:
    link = Signer(KEYS, "us-east-1").link("GET", f"{HOST}/test.txt", [], {}, AT, 86_400)
    assert "X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request" in link
    assert link.endswith("X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "content", "signature"),
    [
        (
            "GET",
            "/test.txt",
            [],
            {"Range": "bytes=0-9"},
            b"",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test%24file.text",
            [],
            {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            b"Welcome to Amazon S3.",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET",
            "/",
            [("lifecycle", "")],
            {},
            b"",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET",
            "/",
            [("prefix", "J"), ("max-keys", "2")],
            {},
            b"",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_a_call_of_our_own_has_the_published_signature(
    method: str,
    path: str,
    query: list[tuple[str, str]],
    headers: dict[str, str],
    content: bytes,
    signature: str,
) -> None:
    sent = Signer(KEYS, "us-east-1").headers(method, HOST + path, query, headers, content, AT)
    assert sent["authorization"].endswith(f"Signature={signature}")


def test_a_link_for_a_part_with_signed_headers_and_temporary_keys_is_what_aws_own_library_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = datetime(2026, 11, 16, 12, 30, 5, tzinfo=UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: at.replace(tzinfo=None))
    token = "temporary/token+with=signs"
    query = [("partNumber", "7"), ("uploadId", "an id/with+signs=")]
    headers = {
        "Content-Length": "5242880",
        "x-amz-checksum-sha256": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
    }
    address = "http://127.0.0.1:9000/bucket/fleet/direct/j_1/4/abc-1-2"
    request: Any = AWSRequest("PUT", address, headers=headers, params=dict(query))
    credentials = Credentials(KEYS.access_key, KEYS.secret_key, token)
    S3SigV4QueryAuth(credentials, "s3", "eu-central-1", expires=900).add_auth(request)
    theirs = dict(pair.split("=", 1) for pair in request.url.partition("?")[2].split("&"))

    keys = BucketKeys(access_key=KEYS.access_key, secret_key=KEYS.secret_key, session_token=token)
    ours = Signer(keys, "eu-central-1").link("PUT", address, query, headers, at.timestamp(), 900)
    assert dict(pair.split("=", 1) for pair in ours.partition("?")[2].split("&")) == theirs
