"""Names why jobs may be placed now."""

from msgspec import Struct


class ClassHasJob(Struct, frozen=True):
    class_id: str


class WorkerMayTake(Struct, frozen=True):
    worker_id: str


class EveryClassMayGo(Struct, frozen=True):
    """Asks to place jobs of every class, since something changed that concerns all who wait.

    That is a limit, a quota or a restart.
    """


class LimitsMayLetGo(Struct, frozen=True):
    """Asks to place jobs that a limit or a quota has kept waiting, since an attempt that counted has ended."""


Cause = ClassHasJob | WorkerMayTake | EveryClassMayGo | LimitsMayLetGo
