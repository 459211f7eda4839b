"""The deeper faults do what they say: a false clock, EIO, packets lost in one direction, spells that repeat."""

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.chaos.deeper.namespaces import NetworkCell
from devtools.chaos.deeper.orders import Failing, Orders, built_library
from devtools.chaos.spells import SPELL, spells_of

SAYS = """
import os, sys, time
for line in sys.stdin:
    name = line.strip()
    file = os.open(name, os.O_RDWR | os.O_CREAT)
    said = [time.time()]
    for call in (lambda: os.fsync(file), lambda: os.pwrite(file, b"x", 0), lambda: os.pread(file, 1, 0)):
        try:
            call()
            said.append(0)
        except OSError as error:
            said.append(error.errno)
    print(*said, flush=True)
"""
ECHO = """
import socket, sys
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while data := line.recv(100):
    line.sendall(data)
"""


class Program:
    """Tells its time, and how fsync, write and read of a file end; for as long as it lives."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", SAYS],
            env={**os.environ, **orders.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def look(self, file: Path) -> tuple[float, list[int]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{file}\n")
        self._process.stdin.flush()
        now, *ends = self._process.stdout.readline().split()
        return float(now), [int(end) for end in ends]

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    library = built_library(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler here")
    running = Program(Orders(library, tmp_path / "orders"))
    yield running
    running.close()


def test_a_programs_clock_is_set_while_it_runs_and_no_other_one_is(program: Program, tmp_path: Path) -> None:
    for off_s in (0.0, 7200.0, -5000.5):
        program.orders.set_clock(off_s)
        says_now, _ = program.look(tmp_path / "file")
        assert says_now - time.time() == pytest.approx(off_s, abs=5)


def test_files_of_the_database_fail_as_told_and_others_do_not(program: Program, tmp_path: Path) -> None:
    database = tmp_path / "fleet.db-wal"
    assert program.look(database)[1] == [0, 0, 0]
    for failing, ends in (
        (Failing.SYNC, [errno.EIO, 0, 0]),
        (Failing.WRITE, [0, errno.EIO, 0]),
        (Failing.READ, [0, 0, errno.EIO]),
    ):
        program.orders.fail(failing)
        assert program.look(database)[1] == ends
        assert program.look(tmp_path / "another file")[1] == [0, 0, 0]
    program.orders.fail(Failing.NOTHING)
    assert program.look(database)[1] == [0, 0, 0]


@pytest.fixture
def cell() -> Iterator[NetworkCell]:
    made = NetworkCell()
    if not made.open():
        pytest.skip("no network namespace can be made here: it takes root and `ip`")
    yield made
    made.close()


def test_packets_are_lost_in_one_direction_and_nobody_is_told(cell: NetworkCell) -> None:
    with socket.create_server((cell.outer, 0)) as listener:
        address = [cell.outer, str(listener.getsockname()[1])]
        inside = subprocess.Popen([*cell.command, sys.executable, "-I", "-S", "-c", ECHO, *address])
        listener.settimeout(20)
        line, _ = listener.accept()
        with line:
            line.settimeout(20)
            line.sendall(b"whole")
            assert line.recv(100) == b"whole"
            cell.lose(to_server=True, to_worker=False)
            line.sendall(b"one way")
            line.settimeout(0.5)
            with pytest.raises(TimeoutError):
                line.recv(100)
            cell.heal()
            line.settimeout(20)
            assert line.recv(100) == b"one way", "it was heard, and its answer was sent again"
        assert inside.wait(20) == 0


def test_many_faults_are_cut_into_spells_that_are_repeated_by_their_own_seeds() -> None:
    (one,) = spells_of(7, 30)
    assert (one.seed, one.faults) == (7, 30)
    many = spells_of(7, 3 * SPELL + 20)
    assert [spell.faults for spell in many] == [SPELL, SPELL, SPELL, 20]
    assert many == spells_of(7, 3 * SPELL + 20)
    assert len({spell.seed for spell in many}) == len(many)
    assert spells_of(many[1].seed, SPELL) == [many[1]]
