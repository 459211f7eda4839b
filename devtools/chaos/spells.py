"""Many faults in one command: spells of a hundred, several fleets beside each other, each judged by itself."""

import math
import multiprocessing
import os
import random
import resource
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from devtools.chaos.faults import KINDS
from devtools.chaos.run import Verdict, run_chaos

SPELL = 100
SPELLS_DRAWN = 1_000_000


class Spell(Struct, frozen=True, kw_only=True):
    seed: int
    faults: int
    only: tuple[str, ...] = ()
    until: float = math.inf
    """When no further fault is begun, on the monotonic clock, which all processes of a machine share."""


class Sum(Struct):
    """What came of all spells together."""

    verdicts: list[Verdict] = field(default_factory=list)
    drawn_from: frozenset[str] = frozenset(KINDS)

    @property
    def faults(self) -> Counter[str]:
        return sum((one.faults for one in self.verdicts), Counter())

    @property
    def seeds(self) -> set[int]:
        return {one.seed for one in self.verdicts}

    def line(self) -> str:
        return (
            f"so far: {len(self.verdicts)} spells, {self.faults.total()} faults of {len(self.faults)} kinds,"
            f" {self.violations} violations"
        )

    def text(self, took_s: float) -> str:
        faults = self.faults
        endings: Counter[str] = sum((one.endings for one in self.verdicts), Counter())
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items()))
        ends = ", ".join(f"{count} {how}" for how, count in sorted(endings.items()))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        lines = [
            (
                f"all together: {faults.total()} faults of {len(faults)} kinds in {took_s:.0f} s"
                f" ({faults.total() / took_s * 60:.0f} a minute, {used.ru_utime + used.ru_stime:.0f} s of CPU)"
            ),
            f"  faults: {kinds}",
            f"  kinds that never struck: {', '.join(sorted(self.drawn_from - set(faults))) or 'none'}",
            f"  jobs: {endings.total()} ({ends}) in {sum(one.attempts for one in self.verdicts)} started attempts",
            f"  violations: {self.violations}",
        ]
        return "\n".join(lines)

    @property
    def violations(self) -> int:
        return sum(len(one.problems) for one in self.verdicts)


def spells_of(seed: int, faults: int, only: Sequence[str] = (), until: float = math.inf) -> list[Spell]:
    """A single spell has the seed that was given; each of several has its own, and is repeated by it."""
    if faults <= SPELL:
        return [Spell(seed=seed, faults=faults, only=tuple(only), until=until)]
    rng = random.Random(seed)
    sizes = [SPELL] * (faults // SPELL) + ([faults % SPELL] if faults % SPELL else [])
    return [
        Spell(seed=rng.randrange(SPELLS_DRAWN), faults=size, only=tuple(only), until=until) for size in sizes
    ]


def run_spells(spells: Sequence[Spell], fleets: int, verbose: bool) -> Iterator[Verdict]:
    """Each fleet is a process of its own: whoever draws and judges must not wait for another."""
    if fleets == 1 or len(spells) == 1:
        yield from (_run(spell, verbose) for spell in spells if time.monotonic() < spell.until)
        return
    with multiprocessing.get_context("spawn").Pool(fleets, maxtasksperchild=1) as pool:
        for verdict in pool.imap_unordered(_run_quietly, spells):
            if verdict is not None:
                yield verdict


def noted_in(report: Path) -> list[Verdict]:
    """Returns what an earlier command has judged already."""
    lines = report.read_bytes().splitlines() if report.exists() else []
    return [
        msgspec.json.decode(line, type=Verdict, dec_hook=lambda type_, value: type_(value)) for line in lines
    ]


def note_in(report: Path, verdict: Verdict) -> None:
    with report.open("ab") as file:
        file.write(msgspec.json.encode(verdict, enc_hook=str) + b"\n")


def _run_quietly(spell: Spell) -> Verdict | None:
    return _run(spell, verbose=False) if time.monotonic() < spell.until else None


def _run(spell: Spell, verbose: bool) -> Verdict:
    """A spell that fails by itself is a violation like others, and the next one begins all the same."""
    try:
        return run_chaos(spell.seed, spell.faults, verbose, spell.only, spell.until)
    except Exception:  # whatever it is, it belongs to this spell alone and is told in its verdict
        verdict = Verdict(seed=spell.seed, folder=Path(), broken_off=True)
        verdict.problems = [("chaos", f"the spell itself failed: {traceback.format_exc()}")]
        return verdict


def usual_fleets() -> int:
    """Two for each core: a fleet mostly waits, for a freeze to end or a lease to run out."""
    return 2 * len(os.sched_getaffinity(0))
