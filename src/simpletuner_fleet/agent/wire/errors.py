"""What a call to the orchestrator can come to besides its answer, and how an answer is read."""

import errno
from typing import Any, TypeVar

import msgspec

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


class Refused(Exception):
    """The orchestrator answered with a problem."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail

    @property
    def passing(self) -> bool:
        """Tells whether the same call may succeed later."""
        return self.status >= 500 or self.status in (408, 421, 425, 429)


class TokenRejected(Refused):
    """401: the token was rotated, or never was one."""


def read_answer(status: int, content: bytes, answer: type[T]) -> T:
    if status >= 300:
        raise problem_of(status, content)
    try:
        return msgspec.json.decode(content or b"{}", type=answer)
    except UNREADABLE as error:
        raise Unreachable(error, refused=False) from error


def problem_of(status: int, body: bytes) -> Refused:
    try:
        problem = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        problem = {}
    code = str(problem.get("code", f"http_{status}"))
    detail = str(problem.get("detail", f"the server answered {status}"))
    return TokenRejected(status, code, detail) if status == 401 else Refused(status, code, detail)


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
