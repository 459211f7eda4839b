"""What is sent.

Drawn by `./dev client` from the server's route table. Do not edit: change the routes and draw again.
"""

from typing import Any, TypedDict


class SubmitOptions(TypedDict, total=False):
    """Submit a job: what may be said."""

    config_version: int | None
    """Of the config that is named; the newest where it is left out."""
    target: str
    worker_labels: dict[str, str]
    gpus: int | None
    """Of all nodes together."""
    nodes: int | None
    min_vram_gb: float | None
    accelerator: str | None
    max_price_micros: int | None
    """It runs on no machine of which an hour is known to cost more, in millionths of the currency's unit."""
    priority: int | str
    max_retries: int | None
    retry_on_failure: bool
    time_limit_s: float | None
    on_time_limit: str
    on_partition: str
    max_cost_micros: int | None
    """All its attempts together cost no more, in millionths of the currency's unit."""
    on_max_cost: str
    depends_on: list[str]
    not_before: str | None
    """It does not start before this time, as in 2026-11-18T22:00:00+01:00; it keeps its place in line."""
    overrides: dict[str, Any]
    datasets: dict[str, str]
    """These are added to the config's, or take the place of those of the same name."""
    watchdog: dict[str, Any]
    """It takes the place of what the config says of the same."""
    resume_from: str | None
    """JOB or JOB:STEP: go on from what that job has stored."""
    publish: dict[str, Any] | None
    """It takes the place of what the config says of the same."""
    name: str | None
    team: str | None
    """Name or id of the team that it is for; the one joined first where it is left out, none where it is empty."""
    visibility: str | None
    no_wait: bool
    any_gpu: bool
    """Takes whichever GPU is free: labels, memory and accelerator that are asked for are not looked at."""
    for_approval: bool
    """Asks for an approval where a quota would refuse the job."""
