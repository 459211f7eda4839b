"""What a worker remembers of the audit log."""

from pathlib import Path

from simpletuner_fleet.agent.audit_memory import AuditMemory
from simpletuner_fleet.protocol.messages import AuditHead

HEAD = AuditHead(seq=7, hash="aa", root="bb", at=1.0, signature="cc")


def test_lines_that_a_bad_disk_has_spoiled_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "audit_heads.jsonl"
    AuditMemory(file).heard(HEAD)
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"aa", b"\xff\xfe") + b"\x00\x00\n" + whole)
    assert AuditMemory(file).newest == HEAD
