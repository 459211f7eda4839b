"""Runs `simpletuner worker`: builds the agent from resolved settings, runs it, and reports how it ended."""

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from simpletuner_fleet.agent.attempts.retention import KeepLimits
from simpletuner_fleet.agent.checking import check_worker
from simpletuner_fleet.agent.departure import Departure, exit_status
from simpletuner_fleet.agent.interruptions.watching import NoticeSettings
from simpletuner_fleet.agent.isolation.cgroups import JobLimits
from simpletuner_fleet.agent.isolation.places import JobPath
from simpletuner_fleet.agent.nodes.following import run_follower
from simpletuner_fleet.agent.nodes.leading import NodeSettings
from simpletuner_fleet.agent.program import (
    SHUTDOWN_GRACE_S,
    WorkerSettings,
    default_name,
    run_agent,
)
from simpletuner_fleet.agent.wire.errors import Refused, TokenRejected, Unreachable
from simpletuner_fleet.cli.frame.command_name import as_called
from simpletuner_fleet.cli.frame.text import clean_lines
from simpletuner_fleet.cli.programs.logging_setup import set_up_logging
from simpletuner_fleet.client import troubles
from simpletuner_fleet.client.trust import Choices, TrustError
from simpletuner_fleet.core.errors import FleetError, InvalidToken
from simpletuner_fleet.core.worker_errors import (
    IsolationUnavailable,
    JobLimitUnavailable,
    JobPathError,
    NodeSecretError,
    NoSuchGpu,
    NotANode,
)
from simpletuner_fleet.languages import _

FINAL = (IsolationUnavailable, JobLimitUnavailable, JobPathError, NodeSecretError, NoSuchGpu, NotANode)
"""What no start again would change."""


def run_worker(args: argparse.Namespace) -> int:
    set_up_logging(args.log_format, verbose=args.verbose)
    addresses = (args.orchestrator_url or "").split(",")
    settings = WorkerSettings(
        url=addresses[0],
        further_urls=tuple(addresses[1:]),
        token=args.worker_token,
        token_file=Path(args.worker_token_file) if args.worker_token_file else None,
        name=args.name or default_name(),
        persistent=bool(args.persistent),
        tls=Choices(args.ssl_fingerprint, args.ca_cert, bool(args.ssl_no_verify), bool(args.plain_http)),
        gpus=args.gpus,
        labels=dict(args.label or {}),
        work_dir=Path(args.work_dir) if args.work_dir else None,
        trainer_python=args.trainer_python,
        upload_limit_mbps=args.upload_limit_mbps,
        data_cache_dir=Path(args.data_cache_dir) if args.data_cache_dir else None,
        data_cache_gb=args.data_cache_gb,
        leave_after_s=args.leave_after,
        shutdown_grace_s=args.shutdown_grace or SHUTDOWN_GRACE_S,
        end_notice_s=args.end_notice,
        notices=NoticeSettings(watch=args.interruption_notices, metadata_url=args.metadata_url),
        max_log_mb=args.max_log_mb,
        keep=KeepLimits(attempts=args.keep_attempts, days=args.keep_attempts_days, free_gb=args.keep_free_gb),
        restarted_within_s=args.restarted_within,
        isolation=args.isolation,
        job_paths=tuple(JobPath(path, writable) for path, writable in args.job_path),
        limits=JobLimits(memory_gb=args.job_memory_gb, pids=args.job_pids),
        price_micros=args.price,
        max_jobs=None if args.max_jobs == "auto" else int(args.max_jobs),
        nodes=NodeSettings(
            count=args.nodes,
            listen=args.node_listen,
            first=args.node_of,
            secret=args.node_secret,
            secret_file=Path(args.node_secret_file) if args.node_secret_file else None,
        ),
    )
    try:
        departure = _run(args, settings)
    except TrustError as error:
        return _tell(troubles.Trouble(error.what, error.why, (error.next,), error.code, troubles.TLS))
    except InvalidToken as error:
        return _tell(_wrong_token(error.detail))
    except TokenRejected as error:
        return _tell(_rejected(settings.url, error.detail))
    except Refused as error:
        return _tell(_refusal(settings.url, error.detail, error.code))
    except Unreachable as error:
        return _tell(troubles.of_connection_error(error.cause, settings.url))
    except FleetError as error:
        following = (error.next,) if error.next else ()
        final = isinstance(error, FINAL)
        status = troubles.USAGE if final else troubles.FAILED
        return _tell(
            troubles.Trouble(_("the worker cannot start"), error.detail, following, error.code, status)
        )
    except OSError as error:
        return _tell(_machine_trouble(error))
    return _depart(departure, settings)


def _run(args: argparse.Namespace, settings: WorkerSettings) -> Departure:
    if getattr(args, "check", False):
        asyncio.run(check_worker(settings, dict(os.environ), lambda line: print(line, flush=True)))
        return Departure("everything was tried")
    if settings.nodes.first is not None:
        return asyncio.run(run_follower(settings, dict(os.environ)))
    departure = asyncio.run(run_agent(settings, dict(os.environ)))
    while departure.may_return and departure.code is None and settings.persistent:
        departure = asyncio.run(run_agent(settings, dict(os.environ)))
    return departure


def _depart(departure: Departure, settings: WorkerSettings) -> int:
    if departure.code is None:
        return 0
    if departure.code == "E_INVALID_TOKEN":
        return _tell(_rejected(settings.url, departure.reason))
    if departure.code in troubles.TROUBLES:
        return _tell(troubles.trouble(departure.code, settings.url, detail=departure.reason))
    if departure.code == "E_SUPERSEDED":
        following = (_("give each machine a worker and a token of its own: simpletuner workers create NAME"),)
        return _tell(
            troubles.Trouble(
                _("this worker was superseded"),
                departure.reason,
                following,
                departure.code,
                troubles.CONFLICT,
            )
        )
    if departure.code == "E_REFUSED":
        return _tell(_refusal(settings.url, departure.reason, departure.code))
    logging.getLogger(__name__).error("%s", departure.reason)
    return exit_status(departure)


def _wrong_token(detail: str) -> troubles.Trouble:
    """Returns the error for a token that cannot be right, which was found without asking the server."""
    return troubles.Trouble(
        _("Invalid token: this cannot be a worker's token"),
        detail,
        (
            _("copy it again, whole and without whitespace"),
            _("check for whitespace in the token string"),
            _("if it is lost, request a new one (simpletuner workers rotate-token NAME)"),
        ),
        "E_INVALID_TOKEN",
        troubles.AUTH,
    )


def _rejected(url: str, detail: str) -> troubles.Trouble:
    """Returns the error for a token that the server does not know, with what that can mean."""
    unknown = _("the server does not know this token: it was rotated, or its worker was deleted")
    said = unknown if detail == InvalidToken.__doc__ else detail
    return troubles.trouble("E_INVALID_TOKEN", url, detail=said)


def _machine_trouble(error: OSError) -> troubles.Trouble:
    """Returns the error for what the system refuses: a full disk, a folder that cannot be written."""
    where = f"{error.filename}: " if error.filename else ""
    return troubles.Trouble(
        _("the worker cannot go on"),
        f"{where}{error.strerror or error}",
        (_("check the disk and the folder:  df -h"), _("or name another folder with --work-dir")),
        "E_MACHINE",
        troubles.FAILED,
    )


def _refusal(url: str, detail: str, code: str) -> troubles.Trouble:
    return troubles.Trouble(
        _("the orchestrator at %(url)s refuses this worker", url=url),
        detail,
        ("simpletuner doctor worker",),
        code,
        troubles.AUTH,
    )


def _tell(trouble: troubles.Trouble) -> int:
    # What the orchestrator said is part of it.
    print(as_called(clean_lines(troubles.format_trouble(trouble))), file=sys.stderr, flush=True)
    return trouble.exit
