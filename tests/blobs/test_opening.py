import socket
from pathlib import Path

import pytest

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.blobs.opening import StorageRefused, open_blobs, open_direct
from simpletuner_fleet.core.errors import StoreUnavailable


async def test_without_a_url_and_with_that_of_a_folder_blobs_lie_in_a_folder(tmp_path: Path) -> None:
    for url, place in ((None, tmp_path / "own"), (f"file://{tmp_path}/named", tmp_path / "named")):
        blobs = open_blobs(url, tmp_path / "own")
        assert isinstance(blobs, FolderBlobs)
        await blobs.append("logs/a", 0, b"x")
        assert (place / "logs" / "a").read_bytes() == b"x"


@pytest.mark.parametrize(
    "url",
    [
        *("gs://bucket", "file://host/path", "file:///", "nonsense", "s3://", "s3:///prefix"),
        *("s3://key:secret@bucket/x", "s3://bucket?secret_access_key=hush"),
    ],
)
def test_any_other_url_is_refused_without_being_repeated(url: str, tmp_path: Path) -> None:
    with pytest.raises(StorageRefused) as refused:
        open_blobs(url, tmp_path)
    assert "secret" not in refused.value.detail
    assert "hush" not in refused.value.detail


async def test_a_storage_that_does_not_answer_is_told_as_trouble_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        blobs = open_blobs(f"s3://bucket/p?endpoint=http://127.0.0.1:{nobody.getsockname()[1]}", tmp_path)
        with pytest.raises(StoreUnavailable, match="S3"):
            await blobs.object_size("0" * 64)


def test_a_machine_without_ca_certificates_is_told_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    with pytest.raises(StorageRefused, match="could not be made") as caught:
        open_blobs("s3://bucket/prefix?endpoint=http://127.0.0.1:9", tmp_path)
    assert "ca-certificates" in (caught.value.next or "")


KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hush"}


@pytest.mark.parametrize(
    ("url", "who", "workers_url", "keys", "reached_at"),
    [
        ("s3://bucket/p", "auto", None, KEYS, "https://s3.us-east-1.amazonaws.com/bucket/p/"),
        ("s3://bucket?region=eu-1", "auto", None, KEYS, "https://s3.eu-1.amazonaws.com/bucket/"),
        ("s3://bucket?endpoint=http://minio:9000", "auto", None, KEYS, ""),
        ("s3://bucket?endpoint=http://minio:9000", "workers", None, KEYS, "http://minio:9000/bucket/"),
        ("s3://bucket?endpoint=http://minio:9000", "auto", "https://s3.org", KEYS, "https://s3.org/bucket/"),
        ("s3://bucket", "off", None, KEYS, ""),
        ("s3://bucket", "auto", None, {}, ""),
        ("file:///mnt/big", "auto", None, KEYS, ""),
        (None, "auto", None, KEYS, ""),
    ],
)
async def test_links_lead_to_where_workers_reach_the_bucket_and_to_plain_http_only_if_that_is_said(
    url: str | None, who: str, workers_url: str | None, keys: dict[str, str], reached_at: str
) -> None:
    bucket = open_direct(url, who, workers_url, keys)
    link = bucket.object_link("ab" * 32, "model") if bucket else ""
    assert link.startswith(reached_at)
    assert bool(link) is bool(reached_at)
    assert "hush" not in link
    if bucket:
        await bucket.close()


@pytest.mark.parametrize(("url", "keys"), [("file:///mnt/big", KEYS), ("s3://bucket", {})])
def test_who_insists_on_links_that_cannot_be_is_told_at_the_start(url: str, keys: dict[str, str]) -> None:
    with pytest.raises(StorageRefused):
        open_direct(url, "workers", None, keys)
