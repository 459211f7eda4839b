import pytest

from bench.benchmarks.heartbeats import Costs, divided_cores
from bench.programs import BenchmarkFailed


def test_server_and_clients_never_share_a_core() -> None:
    assert divided_cores([0, 1, 2]) == ({0}, {1, 2})
    with pytest.raises(BenchmarkFailed):
        divided_cores([0])


def test_what_one_core_could_answer_is_the_rate_where_that_core_is_full() -> None:
    costs = Costs()
    costs.note(heartbeats=6_000, seconds=2.0, server_cpu_s=2.0, client_cpu_s=1.0)
    costs.note(heartbeats=3_000, seconds=2.0, server_cpu_s=1.0, client_cpu_s=2.0)
    assert costs.rates == [3_000.0, 1_500.0]
    assert costs.per_cpu_second == pytest.approx([3_000.0, 3_000.0])
    assert costs.server_shares == [100.0, 50.0]
