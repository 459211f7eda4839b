"""Defines how a call to the orchestrator can fail, and reads its answers."""

import errno
from typing import TypeVar

import msgspec

from simpletuner_fleet.client.troubles import ForeignAnswer
from simpletuner_fleet.protocol.problems import read_problem

T = TypeVar("T")
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""It is not the JSON it should be."""


class Unreachable(Exception):
    """No answer, or none of use. `refused` tells that the orchestrator's machine is there and its program is not."""

    def __init__(self, cause: BaseException, refused: bool, answered: bool = True) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.cause = cause
        self.refused = refused
        self.answered = answered
        """Whether something answered all the same."""


WILL_PASS = frozenset(
    {"forbidden", "foreign_origin", "host_not_allowed", "method_not_allowed", "network_not_allowed"}
)
"""Refusals that say nothing about what was asked: an administrator changes a list, a server is upgraded."""


class Refused(Exception):
    """The orchestrator itself answered with a problem; whoever stands in between is no orchestrator."""

    def __init__(self, status: int, code: str, detail: str, next_step: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.next = next_step

    @property
    def passing(self) -> bool:
        """Tells whether the same call may succeed later."""
        return self.status >= 500 or self.status in (408, 421, 425, 429) or self.code in WILL_PASS


class TokenRejected(Refused):
    """401: the token was rotated, or never was one."""


def read_answer(status: int, content: bytes, answer: type[T]) -> T:
    if status >= 300:
        raise problem_of(status, content)
    try:
        return msgspec.json.decode(content, type=answer)
    except UNREADABLE as error:
        raise Unreachable(error, refused=False) from error


def problem_of(status: int, body: bytes) -> Refused | Unreachable:
    """Returns a refusal if it is an orchestrator's; after what anybody else answers the call is made again."""
    problem = read_problem(status, body)
    if problem is None:
        return Unreachable(ForeignAnswer(status), refused=False)
    kind = TokenRejected if status == 401 else Refused
    return kind(status, problem.code, problem.detail, problem.next)


def no_answer(error: BaseException) -> Unreachable:
    return Unreachable(error, _was_refused(error), answered=False)


def _was_refused(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED:
            return True
        if isinstance(cause, BaseExceptionGroup):
            return all(_was_refused(inner) for inner in cause.exceptions)
        cause = cause.__cause__ or cause.__context__
    return False
