"""Runs the `simpletuner workers` commands: administers workers, their tokens and their labels."""

import argparse
import re
import sys
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, only_with, usage
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import ago, size_text
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.cli.remote.changes import looks
from simpletuner_fleet.cli.remote.watch import watch
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.languages import _, ngettext
from simpletuner_fleet.settings import values

WORKERS = "/api/admin/workers"


def _gpus(worker: dict[str, Any]) -> str | None:
    count, name = worker.get("gpu_count"), worker.get("gpu_name")
    return (
        f"{count} x {str(name).removeprefix('NVIDIA ')}"
        if count and name
        else str(count)
        if count is not None
        else None
    )


LIST = (
    field("id"),
    field("name"),
    field("status"),
    field("worker_type", "TYPE", goes=3),
    Column("GPUS", _gpus),
    Column("HEARTBEAT", lambda worker: ago(worker.get("last_heartbeat")), goes=1),
    field("labels", shrinks=True, goes=2),
)
DETAIL = (
    *LIST[:5],
    field("accelerator_type", "ACCELERATOR"),
    field("gpu_vram_gb", "VRAM (GB)"),
    field("labels"),
    field("reported_labels", "REPORTED LABELS"),
    field("trainers"),
    Column("DATA", lambda worker: data_text(worker)),
    field("version"),
    Column("HEARTBEAT", lambda worker: ago(worker.get("last_heartbeat"))),
    Column("TOKEN MADE", lambda worker: ago(worker.get("token_created_at"))),
    field("token_warning", "TOKEN WARNING"),
    field("drain_note", "NOTE"),
    field("drain_deadline", "STOPS ITS JOBS AT"),
    field("set_aside_until", "SET ASIDE UNTIL"),
    field("set_aside_reason", "COULD NOT START"),
    field("interrupted_by", "TAKEN AWAY BY"),
    field("ends_at", "MACHINE ENDS AT"),
)
MADE = (field("worker_id", "ID"), field("name"), field("token"), field("connection_command", "START IT WITH"))


def data_text(worker: dict[str, Any]) -> str | None:
    """Says how much the worker's dataset cache holds, and how much it may hold."""
    limit = worker.get("data_limit_bytes")
    if not limit:
        return None
    size, count = size_text(worker.get("data_bytes") or 0), len(worker.get("datasets") or ())
    return ngettext(
        "%(n)s dataset, %(size)s of %(limit)s",
        "%(n)s datasets, %(size)s of %(limit)s",
        count,
        size=size,
        limit=size_text(limit),
    )


def list_(args: argparse.Namespace) -> int:
    out = Output(args)
    query = {"status": args.status, "label": args.label or None}
    with connected(args) as api:
        if args.watch:
            watch(api, out, lambda: lookup.workers(api, **query), LIST)
            return ExitCode.OK
        workers = api.items(WORKERS, "workers", {**query, "local": "true"})
        if not workers and not out.for_programs:
            out.hint(_("No workers yet. Create one:  simpletuner workers create NAME"))
        out.items("workers", workers, LIST)
    return ExitCode.OK


def get(args: argparse.Namespace) -> int:
    with connected(args) as api:
        if getattr(args, "curl", False):
            api.get(WORKERS)
        Output(args).item(lookup.worker(api, args.worker), DETAIL)
    return ExitCode.OK


def create(args: argparse.Namespace) -> int:
    out = Output(args)
    body = {"name": args.name, "worker_type": args.type, "labels": _labels(args.label)}
    with connected(args) as api:
        _show_token(out, api.post(WORKERS, body))
    return ExitCode.OK


def drain(args: argparse.Namespace) -> int:
    if args.no_checkpoint and args.timeout is None:
        raise only_with(
            "--no-checkpoint",
            "--timeout",
            f"simpletuner workers drain {args.worker} --timeout 10m --no-checkpoint",
        )
    options = {"note": args.note, "timeout_s": args.timeout}
    options["checkpoint_first"] = False if args.no_checkpoint else None
    body = {key: value for key, value in options.items() if value is not None} or None
    status = _act(args, "drain", body, _("%(worker)s accepts no new jobs", worker=args.worker))
    if args.wait and not getattr(args, "curl", False):
        _wait_until_empty(args)
    return status


def _wait_until_empty(args: argparse.Namespace) -> None:
    with connected(args) as api:
        path = f"{WORKERS}/{segment(_id(api, args))}"
        for worker in looks(api, lambda: dict(api.get(path))):
            if not worker.get("attempts"):
                Output(args).say(_("%(worker)s is no longer running anything", worker=args.worker))
                return


def resume(args: argparse.Namespace) -> int:
    return _act(args, "resume", None, _("%(worker)s accepts jobs again", worker=args.worker))


def rotate_token(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        worker_id = _id(api, args)
        answer = dict(api.post(f"{WORKERS}/{segment(worker_id)}/token"))
        _show_token(out, {"worker_id": worker_id, **answer})
        out.say(_("The old token is no longer valid; running jobs continue. Give the worker the new one."))
    return ExitCode.OK


def set_labels(args: argparse.Namespace) -> int:
    """Changes labels: the server takes the whole set, so the present one is read first and changed here."""
    out = Output(args)
    with connected(args) as api:
        worker = lookup.worker(api, args.worker)
        labels = changed(dict(worker["labels"]), args.labels)
        answer = api.patch(f"{WORKERS}/{segment(worker['id'])}", {"labels": labels})
        out.say(
            _(
                "%(name)s has the labels %(labels)s",
                name=worker["name"],
                labels=", ".join(f"{k}={v}" for k, v in labels.items()) or _("none"),
            )
        )
        if out.shows_result:
            out.item(answer, DETAIL)
    return ExitCode.OK


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(f"{WORKERS}/{segment(_id(api, args))}")
        Output(args).say(_("%(worker)s deleted; its token is no longer valid", worker=args.worker))
    return ExitCode.OK


def changed(labels: dict[str, str], words: list[str]) -> dict[str, str]:
    """Returns the labels with the changes: KEY=VALUE sets a label, KEY- removes it."""
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key.strip():
            labels[key.strip()] = value.strip()
        elif not equals and re.fullmatch(r".+-", word):
            labels.pop(word[:-1], None)
        else:
            raise usage(
                _("'%(word)s' is not a label change", word=word),
                _("expected KEY=VALUE to set a label or KEY- to remove one"),
                "simpletuner workers set-labels NAME team=nlp location-",
            )
    return labels


def _act(args: argparse.Namespace, verb: str, body: dict[str, Any] | None, outcome: str) -> int:
    out = Output(args)
    with connected(args) as api:
        answer = api.post(f"{WORKERS}/{segment(_id(api, args))}/{verb}", body)
        out.say(outcome)
        if out.shows_result and isinstance(answer, dict):
            out.item(answer, DETAIL)
    return ExitCode.OK


def _id(api: Api, args: argparse.Namespace) -> str:
    return lookup.worker_id(api, args.worker)


def _labels(words: list[str]) -> dict[str, str]:
    try:
        return values.pairs(words)
    except ValueError as error:
        raise usage(
            _("%(flag)s cannot be used this way", flag="--label"),
            str(error),
            _("for example %(example)s", example="--label location=us-west"),
        ) from None


def _show_token(out: Output, answer: dict[str, Any]) -> None:
    """Prints the token once, on stdout; on a terminal so that the command can be copied in one piece."""
    if not out.terminal or out.format != "table" or out.fields:
        out.item(answer, MADE, id_field="worker_id")
        if out.leaves_out("token"):
            out.say_once(_("token, shown this once: %(token)s", token=answer["token"]))
        if not out.for_programs:
            out.say_all(address_notes(answer.get("address") or {}))
        return
    print(f"{clean(answer.get('name') or 'worker')} ({clean(answer['worker_id'])})\n")
    print("  " + _("Token, shown only once:") + f"\n\n  {clean(answer['token'])}")
    if answer.get("connection_command"):
        print("\n  " + _("Start it on the GPU machine:"))
        print(f"\n{_indented(str(answer['connection_command']))}")
    sys.stdout.flush()
    out.say_all(address_notes(answer.get("address") or {}))


def address_notes(address: dict[str, Any]) -> list[str]:
    """Says where the address in the command may be wrong, and how to choose another."""
    if address.get("sure") == "loopback":
        return [
            _("Only this machine can reach the server at %(url)s.", url=address["url"]),
            _("To let other machines in, stop it and start it with:  %(line)s", line=address["to_change"]),
        ]
    if address.get("sure") == "guessed":
        return [
            _(
                "If the GPU machine cannot reach %(url)s, use %(others)s, or set the address once on the server: "
                "--public-url URL (SIMPLETUNER_PUBLIC_URL).",
                url=address["url"],
                others=", ".join(address["others"]),
            )
        ]
    return []


def _indented(command: str) -> str:
    return "\n".join(f"  {clean(line)}" for line in command.split("\n"))
