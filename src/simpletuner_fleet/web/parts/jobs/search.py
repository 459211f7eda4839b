"""Describes the search in a list of jobs: the fields of its form, and chips for what was searched for."""

from typing import Any

from simpletuner_fleet.core.jobs.finding import JobSearch
from simpletuner_fleet.languages import N_

FIELDS: tuple[tuple[str, str, str], ...] = (
    ("owner", N_("Owner"), ""),
    ("worker", N_("Worker"), "gpu-1"),
    ("config", N_("Config"), ""),
    ("trainer", N_("Trainer"), "simpletuner"),
    ("dataset", N_("Dataset"), "sha256:…"),
    ("label", N_("Label"), "gpu_type=a100"),
    ("tag", N_("Tag"), ""),
    ("reason", N_("Reason"), "gpu_out_of_memory"),
    ("since", N_("Submitted since"), "24h, 7d, 2026-01-31"),
    ("until", N_("Submitted before"), "24h, 7d, 2026-01-31"),
    ("ended_since", N_("Ended since"), "24h, 7d, 2026-01-31"),
    ("ended_until", N_("Ended before"), "24h, 7d, 2026-01-31"),
)
"""Name in the address, what it is called, and an example."""
SEVERAL = frozenset({"label", "tag", "status"})


def chips(query: JobSearch) -> list[tuple[str, str, str, Any]]:
    """Returns the name, title and text of each part of a search, and the value of its field without it."""
    titles = {"q": N_("Text"), "status": N_("Status"), **{name: title for name, title, _ in FIELDS}}
    parts: list[tuple[str, str, str, Any]] = []
    for name, title in titles.items():
        value = getattr(query, name)
        if name in SEVERAL:
            parts += [(name, title, str(one), [two for two in value if two != one]) for one in value if one]
        elif value:
            parts.append((name, title, str(value), None))
    return parts
