"""A small secret is replaced as a whole or stays as it was."""

import subprocess
import sys
from pathlib import Path

WRITE = """
import resource, sys
from pathlib import Path
from simpletuner_fleet.client.private_files import write_private_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
write_private_bytes(Path(sys.argv[1]), b"x" * 4096)
"""


def test_a_secret_that_cannot_be_written_whole_leaves_the_old_one_and_no_draft(tmp_path: Path) -> None:
    place = tmp_path / "keys" / "secrets.key"
    place.parent.mkdir()
    place.write_bytes(b"the old key")
    ended = subprocess.run(
        [sys.executable, "-c", WRITE, str(place)], capture_output=True, text=True, check=False
    )
    assert "File too large" in ended.stderr
    assert place.read_bytes() == b"the old key"
    assert list(place.parent.iterdir()) == [place]
