"""Files that a rank begins later than others are sent as well: a launcher that starts its processes anew makes new ones."""

from pathlib import Path

import pytest

from simpletuner_fleet.agent.ship.logs import log_shipper
from simpletuner_fleet.agent.ship.logs.log_stream import LogStream
from tests.agent.log_files import all_bytes, scanned
from tests.agent.ship.logs.test_log_shipper import Logs, attempt
from tests.http.api_kit import until


async def test_a_file_of_a_rank_that_appears_later_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shipper, "LOOK_FOR_RANKS_S", 0.05)
    before, after, last = (tmp_path / f"attempt_{number}.log" for number in (1, 0, 2))
    before.write_bytes(b"before\n")
    ranks = {1: [before]}
    async with attempt() as one:
        logs = Logs(one, tmp_path, ranks)
        await until(
            lambda: logs.shippers.sent_something(one.turn) and len(logs.shippers._shippers[one.turn]) == 2
        )
        after.write_bytes(b"started anew\n")
        ranks[1] = [after, before]

        async def both_came() -> bool:
            return await one.log(rank=1) == b"before\nstarted anew\n"

        await until(both_came)
        last.write_bytes(b"last words\n")
        ranks[1] = [after, before, last]
        await logs.end()
        assert await one.log(rank=1) == b"before\nstarted anew\nlast words\n"
        assert not logs.shippers.left_something(one.turn)


def test_a_later_process_knows_which_file_was_read_how_far_though_others_came_before_it(
    tmp_path: Path,
) -> None:
    late, early = tmp_path / "a.log", tmp_path / "b.log"
    early.write_bytes(b"read\n")
    earlier = scanned(LogStream([early], tmp_path / "sent-1.log-index", grows=True))
    earlier.close()
    late.write_bytes(b"new\n")
    with early.open("ab") as file:
        file.write(b"more\n")
    later = scanned(LogStream([late, early], tmp_path / "sent-1.log-index", grows=True), ended=True)
    assert sorted(all_bytes(later, ended=True).splitlines()) == [b"more", b"new", b"read"]
    later.close()
