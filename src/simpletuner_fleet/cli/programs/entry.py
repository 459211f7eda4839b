"""Starts the two programs, `server` and `worker`: resolves and checks their settings, then runs them."""

import argparse
import os
import sys

from simpletuner_fleet.cli.frame.errors import usage
from simpletuner_fleet.cli.frame.unforeseen import insist_on_server_packages
from simpletuner_fleet.cli.programs.hide_token import forget_tokens
from simpletuner_fleet.client import resolve_settings
from simpletuner_fleet.client.trust import is_loopback
from simpletuner_fleet.languages import _


def server(args: argparse.Namespace) -> int:
    insist_on_server_packages()
    _apply("server", args)
    _check_server(args)
    forget_tokens("SIMPLETUNER_ADMIN_TOKEN", "SIMPLETUNER_API_TOKEN")
    # the whole server; no other command needs it
    from simpletuner_fleet.cli.programs.server import run_server

    return run_server(args)


def worker(args: argparse.Namespace) -> int:
    _apply("worker", args)
    check_worker_settings(args)
    forget_tokens(
        "SIMPLETUNER_WORKER_TOKEN",
        resolve_settings.HIDDEN_TOKEN,
        "SIMPLETUNER_API_TOKEN",
        "SIMPLETUNER_NODE_SECRET",
    )
    if args.gpu_inventory:
        os.environ["SIMPLETUNER_GPU_INVENTORY"] = args.gpu_inventory  # the agent looks for it there
    # the whole agent; no other command needs it
    from simpletuner_fleet.cli.programs.worker import run_worker

    return run_worker(args)


def check_worker_settings(args: argparse.Namespace) -> None:
    if args.node_index == 0:
        args.node_of = None
    if args.node_secret_file:
        args.node_secret = None
    if args.node_of:
        _check_follower(args)
        return
    _choose_token(args)
    _check_worker(args)


def _check_follower(args: argparse.Namespace) -> None:
    """Drops the token of a node that follows: it talks to the first node, and knows no orchestrator."""
    args.worker_token = args.worker_token_file = None
    if getattr(args, "check", False):
        raise usage(
            _("--check asks the orchestrator, and this node does not know it"),
            _("with --node-of it follows %(host)s", host=args.node_of[0]),
            _("check the first node"),
        )


def _apply(group: str, args: argparse.Namespace) -> None:
    for note in resolve_settings.apply(group, args):
        print(note, file=sys.stderr)


def _check_server(args: argparse.Namespace) -> None:
    if bool(args.ssl_cert) != bool(args.ssl_key):
        raise usage(
            _("a certificate and its key belong together"),
            _("only one of --ssl-cert and --ssl-key was given"),
            "simpletuner server --ssl-cert FILE --ssl-key FILE",
        )
    if args.trust_loopback and not is_loopback(args.host):
        raise usage(
            _("--trust-loopback is only allowed when bound to loopback"),
            _("with --host %(host)s others could get in through a proxy on this machine", host=args.host),
            _("leave --trust-loopback out, or use --host 127.0.0.1"),
        )


def _choose_token(args: argparse.Namespace) -> None:
    """Chooses between a token and a token file: the one given more directly counts, and both alike is an error."""
    if args.worker_token and args.worker_token_file:
        token, file = args.sources["worker_token"], args.sources["worker_token_file"]
        if token.rank == file.rank:
            raise usage(
                _("two worker tokens were given"),
                _("by %(where)s and by %(where2)s", where=token.where, where2=file.where),
                _("give one of them"),
            )
        if token.rank > file.rank:
            args.worker_token_file = None
        else:
            args.worker_token = None
    if args.worker_token_file == "-":
        args.worker_token, args.worker_token_file = sys.stdin.readline().strip() or None, None


def _check_worker(args: argparse.Namespace) -> None:
    if not args.orchestrator_url:
        raise usage(
            _("no orchestrator URL is set for this worker"),
            _("neither --orchestrator-url nor SIMPLETUNER_ORCHESTRATOR_URL was given"),
            "simpletuner worker --orchestrator-url https://HOST:8001 --worker-token-file FILE",
        )
    if not args.worker_token and not args.worker_token_file:
        raise usage(
            _("the worker has no token"),
            _("neither --worker-token, --worker-token-file nor SIMPLETUNER_WORKER_TOKEN was given"),
            _("on the orchestrator: simpletuner workers create NAME"),
        )
    if os.environ.get(resolve_settings.HIDDEN_TOKEN) and sys.stderr.isatty():
        print(
            _(
                "note: --worker-token was taken off the command line, where other users could see it; "
                "--worker-token-file or SIMPLETUNER_WORKER_TOKEN never put it there"
            ),
            file=sys.stderr,
        )
