"""Detects a training that goes wrong without ending, and decides what follows.

It looks for a loss that is no number, no step for too long, and a disk that is nearly full. Each finding is reported;
what follows is the job's own choice. The clock counts only while the trainer may run: a pause is no stall.
"""

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.training.metrics import LOSSES, Point

WatchPolicy = Literal["fail", "restart-from-last-good", "ignore"]
Trouble = Literal["nan", "stall", "disk"]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
GIB = 2**30
DISK_SHARE = 0.02
DISK_LEAST, DISK_MOST = GIB, 20 * GIB
"""A share of a large disk would be far more than anybody needs."""
NEAR = 2.0
"""The first warning comes when twice as much is left."""
MOST_NAN_FINDINGS = 20
SAID_BY = "watchdog: "


class Watchdog(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Holds the watchdog settings of a config or a submission; what is left out is as `Rules` has it."""

    nan: WatchPolicy | None = None
    stall: WatchPolicy | None = None
    disk: WatchPolicy | None = None
    nan_points: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    stall_s: Seconds | None = None
    stall_first_s: Seconds | None = None
    disk_free_gb: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Rules(Struct, frozen=True, kw_only=True):
    """Sets the rules by which the watchdog judges a training, with their defaults.

    A spoiled model is worth no GPU; a long validation looks like a stall, so a stall is only reported.
    """

    nan: WatchPolicy = "fail"
    stall: WatchPolicy = "ignore"
    disk: WatchPolicy = "ignore"
    nan_points: int = 1
    """So many in a row."""
    stall_s: float = 1800.0
    stall_first_s: float = 7200.0
    """Until the first step: models are fetched, caches filled, kernels compiled."""
    disk_free_gb: float | None = None
    """None: 2 % of the disk, but 1 GiB at least and 20 GiB at most."""


def rules_of(asked: Watchdog) -> Rules:
    return Rules(**_said(asked))


def merged(usual: Watchdog, asked: Watchdog) -> Watchdog:
    """Merges the settings: what is asked for overrides what is usual."""
    return Watchdog(**{**_said(usual), **_said(asked)})


def read_watchdog(fields: dict[str, Any]) -> Watchdog:
    """Reads the settings of an offer, and leaves out what a newer orchestrator says and this agent does not know."""
    known = {}
    for name, value in fields.items():
        try:
            msgspec.convert({name: value}, Watchdog)
        except msgspec.ValidationError:
            continue
        known[name] = value
    return msgspec.convert(known, Watchdog)


def check_watchdog(asked: Watchdog, path: str) -> Watchdog:
    rules = rules_of(asked)
    if asked.stall_first_s is not None and rules.stall_first_s < rules.stall_s:
        raise Invalid(
            f"stall_first_s must be at least stall_s ({rules.stall_s:g}).",
            path=f"{path}.stall_first_s",
        )
    return asked


def _said(watchdog: Watchdog) -> dict[str, Any]:
    return {name: value for name, value in asdict(watchdog).items() if value is not None}


class Finding(Struct, frozen=True, kw_only=True):
    """Describes something that the watchdog has seen go wrong with a training.

    `id` is the same for the same finding, however often it is made.
    """

    id: str
    trouble: Trouble
    text: str
    policy: WatchPolicy
    data: dict[str, Any] = {}
    resume_below: int | None = None
    """Checkpoints from this step on are spoiled."""


class Verdict(Struct, frozen=True, kw_only=True):
    """Decides to stop a trainer, and says why and whether it is to be tried again."""

    trouble: Trouble
    error: str
    restart: bool = False
    resume_below: int | None = None


def verdict_of(finding: Finding) -> Verdict | None:
    if finding.policy == "ignore":
        return None
    return Verdict(
        trouble=finding.trouble,
        error=SAID_BY + finding.text,
        restart=finding.policy == "restart-from-last-good",
        resume_below=finding.resume_below,
    )


class Watch:
    """Watches one attempt for trouble: it is told what is seen and returns the new findings."""

    def __init__(self, rules: Rules, now: float, resumed_from: int | None = None) -> None:
        self._rules = rules
        self._resumed_from = resumed_from
        self._bad_in_a_row = 0
        self._bad_since: int | None = None
        self._bad_at: int | None = None
        self._seen_good = False
        self._nan_findings = 0
        self._looked_at = now
        self._still_s = 0.0
        self._step: int | None = None
        self._stall_reported = False
        self._disk_reported: set[str] = set()

    def saw_points(self, points: Iterable[Point]) -> list[Finding]:
        findings = []
        for point in points:
            finding = self._judge(point)
            if finding:
                findings.append(finding)
        return findings

    def _judge(self, point: Point) -> Finding | None:
        losses = {key: point.values[key] for key in LOSSES if key in point.values}
        if not losses:
            return None
        bad = next(((key, loss) for key, loss in losses.items() if not math.isfinite(loss)), None)
        if bad is None:
            self._bad_in_a_row, self._bad_since, self._bad_at = 0, None, None
            self._seen_good = True
            return None
        if point.step == self._bad_at:
            return None
        self._bad_at = point.step
        self._bad_in_a_row += 1
        self._bad_since = point.step if self._bad_since is None else self._bad_since
        if self._bad_in_a_row != self._rules.nan_points or self._nan_findings >= MOST_NAN_FINDINGS:
            return None
        self._nan_findings += 1
        return self._nan_finding(self._bad_since, *bad)

    def _nan_finding(self, step: int, key: str, loss: float) -> Finding:
        """Returns the finding of a bad loss.

        An attempt that has not seen a single good loss resumed from a checkpoint that is spoiled itself.
        """
        named = "NaN" if math.isnan(loss) else "infinite"
        row = self._rules.nan_points
        since = f"from step {step:,} on, {row} times in a row" if row > 1 else f"at step {step:,}"
        below = step
        if not self._seen_good and self._resumed_from is not None:
            below = min(step, self._resumed_from)
        return Finding(
            id=f"nan-{step}",
            trouble="nan",
            text=f"the loss was {named} {since}",
            policy=self._rules.nan,
            data={"step": step, "key": key, "value": named},
            resume_below=below,
        )

    def saw_progress(self, now: float, step: int | None, total: int | None, *, paused: bool) -> list[Finding]:
        """Returns a finding on a stall; a training after its last step may take as long as it likes to end."""
        passed_s, self._looked_at = max(0.0, now - self._looked_at), now
        if step is not None and step != self._step:
            self._step, self._still_s, self._stall_reported = step, 0.0, False
            return []
        if paused:
            return []
        self._still_s += passed_s
        rules = self._rules
        first = self._step is None
        limit_s = max(rules.stall_s, rules.stall_first_s) if first else rules.stall_s
        done = self._step is not None and total is not None and self._step >= total
        if self._stall_reported or done or self._still_s < limit_s:
            return []
        self._stall_reported = True
        waited = duration_text(limit_s)
        text = (
            f"no step in the first {waited}" if first else f"no step for {waited} after step {self._step:,}"
        )
        return [
            Finding(
                id="stall-at-start" if first else f"stall-{self._step}",
                trouble="stall",
                text=text,
                policy=rules.stall,
                data={"step": self._step, "after_s": limit_s},
            )
        ]

    def saw_disk(self, free: int, total: int) -> list[Finding]:
        least = disk_least(self._rules, total)
        if free < least:
            return self._disk_finding("disk-full", "nearly full", self._rules.disk, free, total)
        if free < least * NEAR:
            return self._disk_finding("disk-low", "getting full", "ignore", free, total)
        return []

    def _disk_finding(self, id: str, how: str, policy: WatchPolicy, free: int, total: int) -> list[Finding]:
        """Returns the finding once in an attempt, so that it is not reported over and over."""
        if id in self._disk_reported:
            return []
        self._disk_reported.add(id)
        left = f"{free / 1e9:.1f} GB of {total / 1e9:.0f} GB free"
        return [
            Finding(
                id=id,
                trouble="disk",
                text=f"the worker's disk is {how}: {left}",
                policy=policy,
                data={"free_bytes": free, "total_bytes": total},
            )
        ]


def disk_least(rules: Rules, total: int) -> float:
    if rules.disk_free_gb is not None:
        return rules.disk_free_gb * 1e9
    return max(DISK_LEAST, min(total * DISK_SHARE, DISK_MOST))


def duration_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:g} min" if seconds < 7200 else f"{seconds / 3600:g} h"
