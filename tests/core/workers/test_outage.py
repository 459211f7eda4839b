"""What a worker may conclude from a refused connection."""

from simpletuner_fleet.core.workers.outage import BELIEVED_S, Knock, is_dead


def test_only_the_orchestrators_own_socket_tells_that_it_is_dead() -> None:
    assert is_dead(Knock.REFUSED, (), 0.0)
    assert not is_dead(None, [Knock.REFUSED], 0.0)
    assert not is_dead(Knock.SILENT, [Knock.REFUSED], 0.0)


def test_whoever_listens_at_another_address_may_be_the_orchestrator() -> None:
    assert not is_dead(Knock.REFUSED, [Knock.SILENT, Knock.OPEN], 0.0)
    assert is_dead(Knock.REFUSED, [Knock.SILENT, Knock.REFUSED], 0.0)


def test_a_death_is_believed_for_a_bounded_time() -> None:
    assert is_dead(Knock.REFUSED, (), BELIEVED_S - 1)
    assert not is_dead(Knock.REFUSED, (), BELIEVED_S)
