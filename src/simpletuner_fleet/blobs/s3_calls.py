"""Calls to a bucket, with its troubles told as ours."""

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from obstore.exceptions import BaseError

from simpletuner_fleet.core.errors import StoreUnavailable

T = TypeVar("T")


async def answered(asked: Awaitable[T]) -> T:
    with troubles_told():
        return await asked


@contextmanager
def troubles_told() -> Iterator[None]:
    """Trouble of the bucket passes, or an administrator ends it: the caller tries again either way."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        raise StoreUnavailable(
            f"The S3 storage did not answer as it should ({type(error).__name__}).",
            next_step="Try again shortly. If it goes on, check SIMPLETUNER_STORAGE_URL and the bucket's credentials.",
        ) from error
