"""The key that signs heads of the audit log."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from simpletuner_fleet.storage.audit.heads import signing_key

FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from simpletuner_fleet.storage.audit.heads import signing_key

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    signing_key(Path(sys.argv[1]))
except OSError:
    print("full")
"""
PROCESSES = 8


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def test_the_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    made = signing_key(path)
    assert public(signing_key(path)) == public(made)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["audit.key"]


def test_a_full_disk_leaves_no_key_and_the_next_start_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "full"
    assert os.listdir(tmp_path) == []
    assert len(public(signing_key(path))) == 32


def test_all_who_begin_together_have_one_key(tmp_path: Path) -> None:
    path, together = tmp_path / "audit.key", Barrier(PROCESSES)

    def begin(_: int) -> bytes:
        together.wait()
        return public(signing_key(path))

    with ThreadPoolExecutor(PROCESSES) as threads:
        assert len(set(threads.map(begin, range(PROCESSES)))) == 1
    assert os.listdir(tmp_path) == ["audit.key"]
