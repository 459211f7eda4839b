"""Protects a database that was restored from a backup: it is older than what its workers have seen and do."""

from msgspec import Struct

EPOCHS_PER_S = 1_000_000
"""More attempts than any fleet ever begins."""
SHORTEST_HOLD_S = 20.0
"""Twice as long as a worker waits at most before it tries again."""
LEAP = 1_000 * EPOCHS_PER_S
"""More attempts than any fleet begins between a backup and its restore: whatever the clock says, none is given again."""
RESTORED = "restore.pending"
"""The setting by which a restore tells the next start of the server about itself."""
HANDS_OFF = "machines.hands_off"
"""The setting by which a restore keeps its hands off machines: the database they belong to may be in use elsewhere."""
LINKS_SINCE = "restore.links_since"
"""The setting that says when the database was last restored: no link in a message from before that works."""
HELD_UNTIL = "restore.held_until"
"""The setting that says until when nothing is placed, to every server of the fleet."""


class RestoreNote(Struct, frozen=True, kw_only=True):
    backup_at: float
    backup_epoch: int
    restored_at: float
    credentials: str
    """`journal`, `all withdrawn` or `trusted`."""


def least_epoch(now: float) -> int:
    """Returns the least epoch from which a restored database counts on.

    It is above all epochs that were given since the backup, and since any other restore, of the same backup too.
    """
    return int(now * EPOCHS_PER_S)


def placing_from(now: float, heartbeat_timeout_s: float) -> float:
    """Returns until when nothing is placed: by then every worker was heard, or its lease has ended."""
    return now + max(SHORTEST_HOLD_S, 2 * heartbeat_timeout_s)
