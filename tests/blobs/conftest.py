"""Every promise is tested in all three homes; S3 is moto's server, from its wheel."""

from pathlib import Path

import pytest

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.blobs.opening import open_blobs
from simpletuner_fleet.ports import Blobs
from tests.s3_server import BUCKET, CREDENTIALS


@pytest.fixture(params=["memory", "folder", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blobs:
    match request.param:
        case "memory":
            return MemoryBlobs()
        case "folder":
            return FolderBlobs(tmp_path / "blobs")
        case _:
            for name, value in CREDENTIALS.items():
                monkeypatch.setenv(name, value)
            endpoint = request.getfixturevalue("s3_endpoint")
            return open_blobs(f"s3://{BUCKET}/{tmp_path.name}?endpoint={endpoint}", tmp_path / "staging")
