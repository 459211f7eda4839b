"""What stands for a backup and is none."""

import io
import tarfile
from pathlib import Path

import pytest

from simpletuner_fleet.store.backup.archive import MANIFEST, BackupUnusable, unpack_archive


@pytest.mark.parametrize("manifest", [b"", b"{", b"[]", b'{"format": "\xff"}', b'{"format": 1e999}'])
def test_a_manifest_that_cannot_be_read_is_called_so(tmp_path: Path, manifest: bytes) -> None:
    backup = tmp_path / "backup.tar.gz"
    with tarfile.open(backup, "w:gz") as archive:
        member = tarfile.TarInfo(MANIFEST)
        member.size = len(manifest)
        archive.addfile(member, io.BytesIO(manifest))
    with pytest.raises(BackupUnusable, match="cannot be read whole"):
        unpack_archive(backup, tmp_path)
