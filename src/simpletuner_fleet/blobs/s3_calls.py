"""Turns the errors of calls to a bucket into ours."""

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from obstore.exceptions import BaseError

from simpletuner_fleet.core.errors import StoreUnavailable

T = TypeVar("T")


async def bucket_call(call: Awaitable[T]) -> T:
    with bucket_errors():
        return await call


@contextmanager
def bucket_errors() -> Iterator[None]:
    """Raises StoreUnavailable for them.

    They pass, or an administrator ends them; the caller tries again either way.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        raise StoreUnavailable(
            f"The S3 storage did not answer as it should ({type(error).__name__}).",
            next_step="Try again shortly. If it goes on, check SIMPLETUNER_STORAGE_URL and the bucket's credentials.",
        ) from error
