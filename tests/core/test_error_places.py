"""Errors that anybody is told stand together, in core/errors.py; those of a worker's machine in core/worker_errors.py."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src" / "simpletuner_fleet"
TOGETHER = {"core/errors.py", "core/worker_errors.py"}
ELSEWHERE = {
    "blobs/opening.py": {"StorageRefused"},
    "http/access/networks.py": {"BadNetwork"},
    "http/edge/problems.py": {"ForeignOrigin", "HostNotAllowed", "MethodNotAllowed", "RequestTimeout"},
    "http/server/sockets.py": {"CannotListen"},
    "http/server/tls.py": {"BadCertificate"},
    "storage/publish/content.py": {"PublishFailed"},
    "store/backup/archive.py": {"BackupUnusable"},
    "store/failures.py": {"StoreRefused"},
    "trainers/contract.py": {"TrainerError"},
}
"""They need words of their part, or are its public face, as for those who write a trainer."""


def test_what_anybody_is_told_stands_together() -> None:
    places: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body if "FleetError" in text else ():
            if isinstance(node, ast.ClassDef) and name not in TOGETHER:
                bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                if "FleetError" in bases:
                    places.setdefault(name, set()).add(node.name)
    assert all(names <= ELSEWHERE.get(name, set()) for name, names in places.items()), places
