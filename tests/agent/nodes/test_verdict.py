"""How a training over several nodes ended, by how each of its parts did."""

from simpletuner_fleet.agent.guard.runner import TrainerExit
from simpletuner_fleet.agent.nodes.verdict import PartEnd, verdict
from simpletuner_fleet.core.jobs.job import EndReason

GOOD = TrainerExit(reason=EndReason.EXITED, exit_code=0)
STOPPED = TrainerExit(reason=EndReason.STOPPED, signal=15)


def failed(code: int) -> TrainerExit:
    return TrainerExit(reason=EndReason.EXITED, exit_code=code)


def part(rank: int, exit: TrainerExit | None) -> PartEnd:
    return PartEnd(rank=rank, name=f"host-{rank}", first_process=rank * 8, exit=exit)


def test_where_the_first_part_ended_well_the_training_did() -> None:
    assert verdict([part(1, GOOD), part(0, GOOD)], asked_to_stop=False) == GOOD
    assert verdict([part(0, GOOD), part(1, None)], asked_to_stop=False) == GOOD


def test_the_part_that_failed_first_is_named_with_its_node_and_rank() -> None:
    judged = verdict([part(2, failed(3)), part(0, failed(1)), part(1, STOPPED)], asked_to_stop=False)
    assert (judged.exit_code, judged.error) == (
        3,
        "node 2 (host-2), rank 16: the trainer ended with exit code 3",
    )
    judged = verdict([part(0, failed(1)), part(1, failed(1))], asked_to_stop=False)
    assert (judged.error or "").startswith("node 0 (host-0), rank 0: ")


def test_a_lost_node_explains_every_failure_of_the_others() -> None:
    judged = verdict([part(0, failed(1)), part(1, None)], asked_to_stop=False)
    assert (judged.reason, judged.error) == (EndReason.AGENT_LOST, "node 1 (host-1) of the worker was lost")


def test_a_part_whose_lease_ran_out_does_not_fail_the_job() -> None:
    fenced = TrainerExit(reason=EndReason.FENCED)
    judged = verdict([part(1, fenced), part(0, STOPPED)], asked_to_stop=False)
    assert judged.reason is EndReason.FENCED
    assert "node 1 (host-1)" in (judged.error or "")


def test_the_time_limit_is_the_first_nodes_and_what_follows_from_it_is_no_failure() -> None:
    late = TrainerExit(reason=EndReason.TIME_LIMIT, signal=15)
    assert verdict([part(0, late), part(1, failed(1))], asked_to_stop=False) == late


def test_what_was_asked_to_stop_was_stopped_whatever_becomes_of_a_node() -> None:
    assert verdict([part(0, STOPPED), part(1, None)], asked_to_stop=True) == STOPPED
