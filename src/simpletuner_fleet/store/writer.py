"""Group commit: all steps that wait run in one transaction, each in a savepoint of its own."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from simpletuner_fleet.ports import Tx, View
from simpletuner_fleet.store.database import Session
from simpletuner_fleet.store.failures import BatchLost
from simpletuner_fleet.store.lane import Answer, Lane, Task, unavailable
from simpletuner_fleet.store.operations import SqlTx, SqlView

T = TypeVar("T")
MAX_STEPS_PER_COMMIT = 256
MAX_READS_PER_TURN = 64


class Answers(NamedTuple):
    each: list[Answer]
    to_commit: bool = True


class Writer:
    """One caller at a time. Nobody is answered before the commit that holds his step."""

    def __init__(self, session: Session, on_commit_failure: Callable[[], None] | None) -> None:
        self._session = session
        self._tx = SqlTx(session)
        self._promised: Tx = self._tx
        self._on_commit_failure = on_commit_failure

    def lane(self, name: str) -> Lane:
        return Lane(name, self.run_batch, self._session.tidy, self._session.close, MAX_STEPS_PER_COMMIT)

    def run_batch(self, batch: list[Task]) -> list[Answer]:
        try:
            self._session.begin()
            answers = self.run_steps(batch)
            if answers.to_commit:
                self._session.commit()
                self.committed()
        except BatchLost as lost:
            return self.lost(batch, lost)
        except BaseException:
            self.give_up()
            raise
        return answers.each

    def run_steps(self, batch: list[Task]) -> Answers:
        """In the transaction that has begun; what it comes to is durable once that is committed."""
        self._tx.begin_batch()
        if len(batch) == 1:
            return self._run_alone(batch[0])
        each = [self._run_beside_others(task) for task in batch]
        self._tx.before_commit()
        return Answers(each)

    def committed(self) -> None:
        self._tx.after_commit()

    def lost(self, batch: list[Task], why: BatchLost) -> list[Answer]:
        self.give_up()
        return [unavailable(task, str(why)) for task in batch]

    def give_up(self) -> None:
        self._session.rollback()
        self._tx.forget()
        if self._on_commit_failure is not None:
            self._on_commit_failure()

    def _run_alone(self, task: Task) -> Answers:
        """Without a savepoint: the transaction itself is the step's."""
        try:
            result = task.step(self._promised)
        except BatchLost:
            raise
        except BaseException as error:
            self._tx.undo_step()
            self._session.rollback()
            return Answers([Answer(task.future, error=error)], to_commit=False)
        self._tx.keep_step()
        self._tx.before_commit()
        return Answers([Answer(task.future, result)])

    def _run_beside_others(self, task: Task) -> Answer:
        self._session.savepoint()
        try:
            result = task.step(self._promised)
            self._session.release()
        except BatchLost:
            raise
        except BaseException as error:
            self._tx.undo_step()
            self._session.undo()
            return Answer(task.future, error=error)
        self._tx.keep_step()
        return Answer(task.future, result)


class Reader:
    """Each look in a snapshot of its own, begun after it was asked for."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._view: View = SqlView(session)

    def lane(self, name: str) -> Lane:
        return Lane(name, self.run_batch, self._session.tidy, self._session.close, MAX_READS_PER_TURN)

    def run_batch(self, batch: list[Task]) -> list[Answer]:
        return [self._look(task) for task in batch]

    def _look(self, task: Task) -> Answer:
        try:
            return Answer(task.future, self.look(task.step))
        except BatchLost as lost:
            return unavailable(task, str(lost))
        except BaseException as error:
            return Answer(task.future, error=error)

    def look(self, look: Callable[[View], T]) -> T:
        try:
            self._session.begin()
            result = look(self._view)
            self._session.commit()
        except BaseException:
            self._session.rollback()
            raise
        return result

    def close(self) -> None:
        self._session.close()
