"""Opens the blobs that a storage URL names."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.ports.direct import DirectBlobs

FORMS = (
    "Use 'file:///PATH' or 's3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME' with the keys in AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY."
)
NO_CLIENT = (
    "Check the URL, and that this machine has CA certificates (the package ca-certificates, or SSL_CERT_FILE): the client"
    " needs them, even where the endpoint has no TLS."
)
RETRIES, RETRY_S = 3, 20.0
REGION = "us-east-1"
S3_OPTIONS = frozenset({"endpoint", "region"})


class StorageRefused(FleetError):
    """The storage URL is not usable."""

    code = "storage_refused"
    next_step = FORMS


def open_blobs(url: str | None, folder: Path) -> Blobs:
    """Opens the storage. Without a URL everything is in `folder`, and with S3 what still grows.

    The URL is never repeated: it may hold keys.
    """
    if not url:
        return FolderBlobs(folder)
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.strip("/"):
        return FolderBlobs(Path(parts.path))
    if parts.scheme == "s3":
        return _open_s3(parts, folder)
    raise StorageRefused("SIMPLETUNER_STORAGE_URL names neither a folder nor a bucket.")


def local_folder(url: str | None, folder: Path) -> Path:
    """Returns where bytes come to lie on this machine: all of them, or with S3 what still grows."""
    parts = urlsplit(url or "")
    return Path(parts.path) if parts.scheme == "file" else folder


def open_direct(
    url: str | None,
    who: str,
    workers_url: str | None,
    environment: Mapping[str, str],
    may_promise: Callable[[], bool] = lambda: True,
) -> DirectBlobs | None:
    """Returns the bucket as workers reach it by themselves; None where every file goes through the orchestrator.

    `may_promise` tells whether this orchestrator leads for sure.
    """
    parts = urlsplit(url or "")
    insisted = who in ("workers", "all")
    if who == "off" or parts.scheme != "s3":
        if insisted:
            raise StorageRefused(
                "SIMPLETUNER_STORAGE_DIRECT is for a bucket: SIMPLETUNER_STORAGE_URL names none."
            )
        return None
    options = _s3_options(parts)
    endpoint = options.get("endpoint") or f"https://s3.{options.get('region', REGION)}.amazonaws.com"
    workers_endpoint = workers_url or endpoint
    if not insisted and not workers_endpoint.startswith("https:"):
        return None
    access_key, secret_key = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key:
        if insisted:
            raise StorageRefused(
                "Links to the bucket cannot be signed: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set."
            )
        return None
    # Only who uses S3 pays for its library.
    from simpletuner_fleet.blobs.s3_direct import DirectBucket
    from simpletuner_fleet.blobs.s3_requests import BucketPlace
    from simpletuner_fleet.blobs.s3_signing import BucketKeys, Signer

    keys = BucketKeys(
        access_key=access_key,
        secret_key=secret_key,
        session_token=environment.get("AWS_SESSION_TOKEN", ""),
    )
    place = BucketPlace(endpoint=endpoint, bucket=parts.netloc, prefix=parts.path.strip("/"))
    signer = Signer(keys, options.get("region", REGION))
    return DirectBucket(place, signer, workers_endpoint, may_promise)


def _s3_options(parts: SplitResult) -> dict[str, str]:
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if not parts.hostname or "@" in parts.netloc or set(options) - S3_OPTIONS:
        raise StorageRefused(
            "The S3 URL names a bucket, a prefix, and of options only endpoint and region; keys have no place in it."
        )
    return options


def _open_s3(parts: SplitResult, folder: Path) -> Blobs:
    options = _s3_options(parts)
    # Only who uses S3 pays for its library.
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    from simpletuner_fleet.blobs.s3 import S3Blobs

    endpoint = options.get("endpoint")
    region = options.get("region", REGION)
    try:
        bucket = S3Store(
            parts.netloc,
            prefix=parts.path.strip("/") or None,
            config={"region": region, **({"endpoint": endpoint} if endpoint else {})},
            client_options={"allow_http": bool(endpoint and endpoint.startswith("http://"))},
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
        )
    except BaseError as error:
        raise StorageRefused(
            f"The client for the S3 storage could not be made ({type(error).__name__}).", next_step=NO_CLIENT
        ) from error
    return S3Blobs(bucket, FolderBlobs(folder))
