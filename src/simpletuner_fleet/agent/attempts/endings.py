"""Describes how an attempt ended on this machine, and makes its final report from that."""

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import EndReason, OnTimeLimit, Outcome
from simpletuner_fleet.core.workers.start_trouble import Blame
from simpletuner_fleet.protocol.messages import ReportStatus, StatusReport

GIVEN_BACK = {
    EndReason.PREEMPTED: "the worker was asked to stop",
    EndReason.INTERRUPTED: "its machine is being taken away",
    EndReason.DRAINED: "the worker was drained",
    EndReason.TIME_LIMIT: "the time limit was reached",
}
"""The job goes on elsewhere: why, in a sentence."""
SHIM_OUTCOME = {
    EndReason.CANCELLED: Outcome.CANCELLED,
    EndReason.PREEMPTED: Outcome.RELEASED,
    EndReason.INTERRUPTED: Outcome.RELEASED,
    EndReason.DRAINED: Outcome.RELEASED,
    EndReason.TIME_LIMIT: Outcome.RELEASED,
    EndReason.STALE: Outcome.LOST,
}
"""What the shim of a stopped trainer reports if the agent dies meanwhile."""
CUT_OFF = frozenset({EndReason.FENCED, EndReason.AGENT_LOST, EndReason.DATA_UNREACHABLE})


class AttemptEnding(Struct, frozen=True, kw_only=True):
    """Describes how a trainer's process tree ended."""

    reason: EndReason = EndReason.EXITED
    exit_code: int | None = None
    exit_signal: int | None = None
    error: str | None = None
    last_lines: str = ""
    blame: Blame = Blame.UNCLEAR
    """Where nothing was ever run: whose fault that may be."""
    restart: bool = False
    """The watchdog ended it, and the job wants to go on from its last good checkpoint then."""
    resume_below: int | None = None
    shortfall: str | None = None
    """Why the training is not complete although its program says that it ended well."""


def final_report(
    stopping: EndReason | None, ending: AttemptEnding, on_time_limit: OnTimeLimit = "fail"
) -> StatusReport:
    """Returns the final report. An ending by itself counts as what it was, even if a stop was on its way."""
    report = StatusReport(
        status=ReportStatus.FAILED,
        exit_code=ending.exit_code,
        exit_signal=ending.exit_signal,
        error=ending.error,
        last_lines=ending.last_lines or None,
        restart=ending.restart,
        resume_below=ending.resume_below,
    )
    by_itself = ending.reason is EndReason.EXITED
    if by_itself and ending.exit_code == 0 and ending.shortfall is None:
        report.status = ReportStatus.COMPLETED
    elif stopping is EndReason.CANCELLED:
        report.status = ReportStatus.CANCELLED
    elif stopping in GIVEN_BACK:
        report.status = ReportStatus.RELEASED
        report.reason, report.error = stopping, GIVEN_BACK[stopping]
    elif ending.reason in CUT_OFF or ending.reason is EndReason.RESUME_FAILED:
        report.status = ReportStatus.RELEASED
        report.reason = EndReason.CUT_OFF if ending.reason in CUT_OFF else ending.reason
        report.error = ending.error or "the worker was cut off from the orchestrator"
    elif ending.reason is EndReason.TIME_LIMIT:
        report.status = ReportStatus.RELEASED if on_time_limit == "requeue" else ReportStatus.FAILED
        report.reason, report.error = ending.reason, GIVEN_BACK[ending.reason]
    elif ending.reason is EndReason.START_FAILED:
        report.reason = ending.reason
        report.blame = "" if ending.blame is Blame.JOB else ending.blame
    elif ending.reason is EndReason.SHIM_LOST:
        report.error = ending.error or "the trainer and its supervisor were killed"
    elif by_itself and ending.shortfall:
        report.error = ending.shortfall
    return report
