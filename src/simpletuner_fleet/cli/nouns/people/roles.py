"""Runs the `simpletuner roles` commands: lists, sets and deletes roles."""

import argparse

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.cli.remote.lookup import segment
from simpletuner_fleet.languages import _

ROLES = "/api/admin/roles"
LIST = (
    *(field("name"), field("users"), field("all_jobs", "ALL JOBS")),
    Column("PERMISSIONS", lambda role: " ".join(role["permissions"]), shrinks=True),
)


def list_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).items("roles", api.items(ROLES, "roles"), LIST, id_field="name")
    return ExitCode.OK


def set_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        body = {"permissions": args.permission, "all_jobs": args.all_jobs}
        Output(args).item(api.put(f"{ROLES}/{segment(args.role)}", body), LIST, id_field="name")
    return ExitCode.OK


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(f"{ROLES}/{segment(args.role)}")
        Output(args).say(_("the role %(name)s is deleted", name=args.role))
    return ExitCode.OK
