"""Makes the reports of an attempt before its trainer runs."""

from simpletuner_fleet.protocol.messages import JobSubmit, ReportStatus, StatusReport


def fetching_report(offer: JobSubmit, done_bytes: int, total_bytes: int, incarnation: str) -> StatusReport:
    """Returns how much of the attempt's data has arrived."""
    return StatusReport(
        status=ReportStatus.STARTING,
        attempt=offer.attempt,
        epoch=offer.epoch,
        progress={"phase": "fetching data", "done_bytes": done_bytes, "total_bytes": total_bytes},
        incarnation=incarnation,
    )
