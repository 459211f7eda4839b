"""What a worker remembers of the audit log."""

import os
from pathlib import Path
from threading import Timer

import pytest

from simpletuner_fleet.agent.audit_memory import AuditMemory
from simpletuner_fleet.protocol.messages import AuditHead

HEAD = AuditHead(seq=7, hash="aa", root="bb", at=1.0, signature="cc")


def test_lines_that_a_bad_disk_has_spoiled_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "audit_heads.jsonl"
    first = AuditMemory(file)
    first.heard(HEAD)
    first.close()
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"aa", b"\xff\xfe") + b"\x00\x00\n" + whole)
    assert AuditMemory(file).newest == HEAD


def test_a_memory_that_cannot_be_read_keeps_no_worker_from_its_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "audit_heads.jsonl"
    file.mkdir()
    memory = AuditMemory(file)
    assert "cannot be read" in caplog.text
    memory.heard(HEAD)
    assert memory.newest == HEAD
    memory.close()


def test_a_heartbeat_waits_for_no_disk(tmp_path: Path) -> None:
    """A FIFO that nobody reads from is opened for writing as slowly as a file on a disk that hangs."""
    file = tmp_path / "audit_heads.jsonl"
    memory = AuditMemory(file)
    os.mkfifo(file)
    readers: list[int] = []
    rescue = Timer(10.0, lambda: readers.append(os.open(file, os.O_RDONLY | os.O_NONBLOCK)))
    rescue.start()
    memory.heard(HEAD)
    rescue.cancel()
    assert not readers
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    memory.close()
    assert HEAD.hash.encode() in os.read(reader, 4096)
    os.close(reader)
