"""Group commit: all steps that wait run in one transaction, each in a savepoint of its own."""

from collections.abc import Callable

from simpletuner_fleet.ports import Tx, View
from simpletuner_fleet.store.database import Session
from simpletuner_fleet.store.failures import BatchLost
from simpletuner_fleet.store.lane import Answer, Lane, Task, unavailable
from simpletuner_fleet.store.operations import SqlTx, SqlView

MAX_STEPS_PER_COMMIT = 256
MAX_READS_PER_TURN = 64


class Writer:
    """Runs in its thread only. Nobody is answered before the commit that holds his step."""

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
            self._tx.begin_batch()
            if len(batch) == 1:
                return [self._run_alone(batch[0])]
            answers = [self._run_beside_others(task) for task in batch]
            self._commit()
            return answers
        except BatchLost as lost:
            self._give_up()
            return [unavailable(task, str(lost)) for task in batch]
        except BaseException:
            self._give_up()
            raise

    def _run_alone(self, task: Task) -> Answer:
        """Without a savepoint: the transaction itself is the step's."""
        try:
            result = task.step(self._promised)
        except BatchLost:
            raise
        except BaseException as error:
            self._tx.undo_step()
            self._session.rollback()
            return Answer(task.future, error=error)
        self._tx.keep_step()
        self._commit()
        return Answer(task.future, result)

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

    def _commit(self) -> None:
        self._tx.before_commit()
        self._session.commit()
        self._tx.after_commit()

    def _give_up(self) -> None:
        self._session.rollback()
        self._tx.forget()
        if self._on_commit_failure is not None:
            self._on_commit_failure()


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
            self._session.begin()
            result = task.step(self._view)
            self._session.commit()
        except BatchLost as lost:
            self._session.rollback()
            return unavailable(task, str(lost))
        except BaseException as error:
            self._session.rollback()
            return Answer(task.future, error=error)
        return Answer(task.future, result)
