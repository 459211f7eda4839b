"""Steps that several tests hand to a store."""

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from simpletuner_fleet.ports import Tx
from tests.store.samples import BUNDLE, job, worker

T = TypeVar("T")
Step = Callable[[Tx], T]


class ChangedMyMind(Exception):
    pass


def prepare(tx: Tx) -> None:
    tx.add_worker(worker(1))
    tx.add_job(job(1), BUNDLE)


def adding(number: int) -> Step[None]:
    return lambda tx: tx.add_job(job(number), BUNDLE)


def change_worker(tx: Tx) -> None:
    known = tx.worker("w_1")
    assert known is not None
    tx.save_worker(replace(known, drain_note=f"{known.drain_note}."))


def give_up(tx: Tx) -> None:
    tx.add_job(job(77), BUNDLE)
    raise ChangedMyMind


def noting(step: Step[T], seen: list[T]) -> Step[T]:
    """Runs the step, and notes what it returned when it ran."""

    def noted(tx: Tx) -> T:
        seen.append(step(tx))
        return seen[-1]

    return noted
