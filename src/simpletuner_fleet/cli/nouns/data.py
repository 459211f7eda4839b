"""Runs the `simpletuner data` commands: pushes, lists, shows, deletes and pulls datasets."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import ago, size_text, spoken_size
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.cli.remote.datasets import find_dataset
from simpletuner_fleet.client.answers import BYTES
from simpletuner_fleet.client.files.downloads import Downloader, RemoteFile
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.client.files.uploads import Progress, Sender, name_for, read_folder
from simpletuner_fleet.core.configs.datasets import PREFIX, id_of, read_manifest
from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.languages import _, ngettext

DATA = "/api/data"
Dataset = dict[str, Any]
LIST = (
    field("id", shrinks=True),
    field("name"),
    field("files", right=True),
    Column("SIZE", lambda dataset: size_text(dataset["total_bytes"]), right=True),
    Column("PUSHED", lambda dataset: ago(dataset.get("created_at")), goes=1),
    field("created_by", "BY", goes=2),
)
DETAIL = (*LIST, field("workers", "CACHED ON"))
FILES = (
    field("path"),
    Column("SIZE", lambda file: size_text(file["size"]), right=True),
    field("sha256", goes=1),
)


def push(args: argparse.Namespace) -> int:
    out, folder = Output(args), Path(os.path.expanduser(args.folder))
    name = args.name or name_for(folder)
    with out.going_on_later(), connected(args) as api, _progress(out) as progress:
        pushed = read_folder(folder, progress, with_indices=args.with_indices)
        sender = Sender(api, progress)
        stored = sender.send(pushed, name)
    sent = spoken_size(sender.sent_bytes)
    out.say(
        ngettext(
            "%(name)s: %(n)s file, %(size)s, %(sent)s uploaded",
            "%(name)s: %(n)s files, %(size)s, %(sent)s uploaded",
            len(pushed.files),
            name=name,
            size=spoken_size(stored["total_bytes"]),
            sent=sent,
        )
    )
    if pushed.left_out:
        out.say(
            _(
                "left out files the trainer writes itself: %(files)s (--with-indices includes them)",
                files=", ".join(pushed.left_out[:5]),
            )
        )
    if out.format == "table" and not out.fields:
        print(clean(stored["id"]))
    else:
        out.item(stored, LIST)
    out.hint(_("Use it in a config:  %(example)s", example=f'"datasets": {{"{name}": "{stored["id"]}"}}'))
    return ExitCode.OK


def list_(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        datasets = api.items(DATA, "datasets")
        if not datasets and not out.for_programs:
            out.hint(_("No datasets yet. Push one:  simpletuner data push DIR"))
        out.items("datasets", datasets, LIST)
    return ExitCode.OK


def show(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        dataset_id = find_dataset(api, args.dataset)
        dataset = api.get(f"{DATA}/{segment(dataset_id)}")
        if args.files:
            files = files_of(api, dataset_id)
            rows = [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in files]
            out.items("files", rows, FILES, id_field="path")
        else:
            out.item(dataset, DETAIL)
    return ExitCode.OK


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        dataset_id = find_dataset(api, args.dataset)
        api.delete(f"{DATA}/{segment(dataset_id)}")
        Output(args).say(_("deleted %(id)s; workers free its cache when they need the space", id=dataset_id))
    return ExitCode.OK


def pull(args: argparse.Namespace) -> int:
    out, folder = Output(args), Path(os.path.expanduser(args.folder))
    with out.going_on_later(), connected(args) as api:
        dataset_id = find_dataset(api, args.dataset)
        dataset = api.get(f"{DATA}/{segment(dataset_id)}", lookup=True)
        base = f"{DATA}/{segment(dataset_id)}/objects"
        files = [
            RemoteFile(url=f"{base}/{file.sha256}", place=file.path, size=file.size, sha256=file.sha256)
            for file in files_of(api, dataset_id)
        ]
        Downloader(api).to_folder(folder, files)
        total = spoken_size(sum(file.size for file in files))
        out.say(
            ngettext(
                "%(name)s: %(n)s file, %(size)s, verified, in %(folder)s",
                "%(name)s: %(n)s files, %(size)s, verified, in %(folder)s",
                len(files),
                name=dataset["name"],
                size=total,
                folder=folder,
            )
        )
        if out.shows_result:
            out.item(dataset, DETAIL)
    return ExitCode.OK


def files_of(api: Api, dataset_id: str) -> tuple[FileEntry, ...]:
    """Returns the files of a manifest, whose SHA-256 must be the dataset's id: its paths are written to this disk."""
    digest = dataset_id.removeprefix(PREFIX)
    data = api.content(f"{DATA}/{PREFIX}{digest}/objects/{digest}", kind=BYTES)
    try:
        if id_of(data) == digest:
            return read_manifest(data, Policy(max_dataset_files=sys.maxsize))
    except FleetError as error:
        raise _foreign(digest, error.detail) from None
    raise _foreign(digest, _("its SHA-256 is not the dataset's id"))


def _foreign(dataset_id: str, why: str) -> CliError:
    return fail(
        _("the file list of %(id)s is not usable", id=dataset_id[:12]),
        why,
        _("run the same command again"),
        "E_DATA_MANIFEST",
    )


@contextmanager
def _progress(out: Output) -> Iterator[Progress]:
    """Draws a progress bar where stderr is a terminal, and nothing otherwise."""
    if out.quiet or not sys.stderr.isatty():
        yield lambda what, count, total: None
        return
    from rich.console import Console  # heavy, and only a terminal needs it
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    names = {"hash": _("reading"), "send": _("sending")}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True, no_color=not out.color), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def tell(what: str, count: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(names[what], total=total)
            bars.update(tasks[what], advance=count)

        yield tell
