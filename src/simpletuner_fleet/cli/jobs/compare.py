"""Runs `simpletuner jobs compare`: shows jobs side by side, how each went and where their configs differ."""

import argparse
import json
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, usage
from simpletuner_fleet.cli.frame.output import Column, Output, dig
from simpletuner_fleet.cli.jobs import job_text
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.languages import _, ngettext

FEWEST, MOST = 2, 8
Row = dict[str, Any]
"""`what`, and a value by each job's id."""


def compare(args: argparse.Namespace) -> int:
    out = Output(args)
    if not FEWEST <= len(args.jobs) <= MOST:
        raise usage(
            _("two to eight jobs can be compared"),
            _("%(n)s given", n=len(args.jobs)),
            "simpletuner jobs compare ID ID",
        )
    with connected(args) as api:
        curl = getattr(args, "curl", False)
        ids = [name if curl else lookup.job_id(api, name) for name in args.jobs]
        answer = api.get("/api/compare", {"job": ids})
        metrics = {job_id: _last_values(api, job_id, args.key) for job_id in ids}
    if out.format == "json":
        out.item({"schema": "compare.v1", **answer, "metrics": metrics}, ())
        return ExitCode.OK
    rows = [*_facts(answer["jobs"]), *_values(metrics), *_differences(answer["differences"])]
    out.items("compare", rows, _columns(ids), id_field="what")
    if not answer["differences"]:
        out.say(_("Their configs are the same."))
    say_left_out(out, answer)
    return ExitCode.OK


def say_left_out(out: Output, answer: dict[str, Any]) -> None:
    """Says how many differences between configs the answer does not list."""
    left_out = answer.get("left_out", 0)
    if not left_out:
        return
    text = ngettext("%(n)s more change is not shown.", "%(n)s more changes are not shown.", left_out)
    out.say(at_least(text, answer))


def at_least(sentence: str, answer: dict[str, Any]) -> str:
    """Returns the sentence, whose number is the least there can be where nobody has counted them all."""
    return _("%(sentence)s (at least)", sentence=sentence) if answer.get("left_out_at_least") else sentence


def _last_values(api: Api, job_id: str, keys: list[str]) -> dict[str, Any]:
    """Returns each curve as one point: its last value, with the smallest and largest of all its steps."""
    query = {"key": keys or None, "points": 1}
    series = api.get(f"/api/jobs/{segment(job_id)}/metrics", query, lookup=True)["series"]
    return {key: points[-1] for key, points in series.items() if points}


def _columns(ids: list[str]) -> list[Column]:
    def of(job_id: str) -> Column:
        return Column(job_id, lambda row: row.get(job_id), shrinks=True)

    return [Column("WHAT", lambda row: row["what"]), *map(of, ids)]


def _facts(jobs: list[dict[str, Any]]) -> list[Row]:
    shown = (
        ("name", lambda job: job.get("name") or job.get("config_name")),
        ("status", job_text.status),
        ("step", lambda job: dig(job, "progress.step")),
    )
    return [{"what": what, **{job["id"]: value(job) for job in jobs}} for what, value in shown]


def _values(metrics: dict[str, dict[str, Any]]) -> list[Row]:
    keys = sorted({key for of_job in metrics.values() for key in of_job})
    return [
        {
            "what": f"{key} ({kind})",
            **{job_id: of_job.get(key, {}).get(kind) for job_id, of_job in metrics.items()},
        }
        for key in keys
        for kind in ("last", "min", "max")
    ]


def _differences(differences: list[dict[str, Any]]) -> list[Row]:
    return [
        {
            "what": str(one["path"]).removeprefix("$."),
            **{run["job_id"]: _value(run["value"]) for run in one["runs"] if "value" in run},
        }
        for one in differences
    ]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
