"""Runs `simpletuner jobs artifacts` and `simpletuner jobs download`."""

import argparse
from pathlib import Path
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, fail, usage
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import ago, size_text, spoken_size
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.client.files.downloads import Downloader, files_to_download
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.languages import _, ngettext

Manifest = dict[str, Any]


LIST = (
    field("id"),
    field("kind"),
    field("name"),
    field("step", right=True),
    Column("SIZE", lambda manifest: size_text(manifest["total_bytes"]), right=True),
    Column("FILES", lambda manifest: str(len(manifest["files"])), right=True),
    field("attempt", right=True),
    field("worker_name", "WORKER"),
    Column("STORED", lambda manifest: ago(manifest.get("created_at"))),
)


def list_(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = str(args.job) if getattr(args, "curl", False) else lookup.job_id(api, args.job)
        manifests = api.items(f"/api/jobs/{segment(job_id)}/artifacts", "manifests")
        if not manifests and not out.for_programs:
            out.hint(_("Nothing stored yet: checkpoints appear here as they are uploaded."))
        out.items("manifests", manifests, LIST)
        if manifests and not out.for_programs:
            out.hint(_("Download them:  simpletuner jobs download %(job_id)s", job_id=job_id))
    return ExitCode.OK


def download(args: argparse.Namespace) -> int:
    out = Output(args)
    if args.to and args.archive:
        raise usage(
            _("--to and --archive were both given"),
            _("choose one destination for the download"),
            _("leave one of them out"),
        )
    with connected(args) as api:
        job_id = lookup.job_id(api, args.job)
        manifests = _manifests_to_download(api, job_id, args.latest_checkpoint)
        files = files_to_download(job_id, manifests)
        if getattr(args, "curl", False):
            api.get(files[0].url if files else f"/api/jobs/{segment(job_id)}/artifacts")
        downloader = Downloader(api)
        if args.archive:
            place = Path(args.archive)
            downloader.to_archive(place, files)
        else:
            place = Path(args.to or job_id)
            with out.going_on_later():
                downloader.to_folder(place, files)
        names = ", ".join(manifest["name"] for manifest in manifests)
        total = spoken_size(sum(file.size for file in files))
        out.say(
            ngettext(
                "%(names)s: %(n)s file, %(total)s, verified, in %(place)s",
                "%(names)s: %(n)s files, %(total)s, verified, in %(place)s",
                len(files),
                names=names,
                total=total,
                place=place,
            )
        )
        if out.shows_result:
            out.items("manifests", manifests, LIST)
    return ExitCode.OK


def _manifests_to_download(api: Api, job_id: str, latest_checkpoint: bool) -> list[Manifest]:
    stored = api.items(f"/api/jobs/{segment(job_id)}/artifacts", "manifests", lookup=True)
    checkpoints = [one for one in stored if one["kind"] == "checkpoint"]
    if latest_checkpoint:
        newest = max(checkpoints, key=lambda one: (one["step"], one["created_at"]), default=None)
        manifests = [newest] if newest else []
    else:
        manifests = [one for one in stored if one["kind"] == "artifact"]
    if manifests:
        return manifests
    raise fail(
        _("%(job_id)s has nothing of this kind to download", job_id=job_id),
        _(
            "checkpoints: %(checkpoints)s, artifacts: %(artifacts)s",
            checkpoints=len(checkpoints),
            artifacts=len(stored) - len(checkpoints),
        ),
        f"simpletuner jobs download {job_id} --latest-checkpoint"
        if checkpoints
        else f"simpletuner jobs get {job_id}",
        "not_found",
        ExitCode.NOT_FOUND,
    )
