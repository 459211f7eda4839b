"""Writes files that only their owner can read."""

import os
import tempfile
from pathlib import Path


def write_private_bytes(path: Path, content: bytes) -> None:
    """Writes the file as a whole or not at all; others cannot read it at any moment."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
