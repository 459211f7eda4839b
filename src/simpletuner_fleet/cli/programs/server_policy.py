"""Builds the server's policy from its settings."""

import argparse

from simpletuner_fleet.cli.frame.errors import usage
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.languages import _

GIB = 2**30


def policy_of(args: argparse.Namespace) -> Policy:
    if args.heartbeat_timeout_s <= args.heartbeat_interval_s:
        raise usage(
            _("the heartbeat timeout is not longer than the heartbeat interval"),
            _(
                "%(heartbeat_timeout_s)s s of silence is normal with a heartbeat every "
                "%(heartbeat_interval_s)s s",
                heartbeat_timeout_s=f"{args.heartbeat_timeout_s:g}",
                heartbeat_interval_s=f"{args.heartbeat_interval_s:g}",
            ),
            _("set SIMPLETUNER_HEARTBEAT_TIMEOUT to three or four times SIMPLETUNER_HEARTBEAT_INTERVAL"),
        )
    pings = args.ping_interval_s or min(Policy().ping_interval_s, args.heartbeat_timeout_s / 8)
    return Policy(
        heartbeat_interval_s=args.heartbeat_interval_s,
        heartbeat_timeout_s=args.heartbeat_timeout_s,
        reconnect_grace_s=args.reconnect_grace_s,
        max_retries=args.max_retries,
        ephemeral_ttl_s=args.ephemeral_ttl_s,
        offer_timeout_s=args.offer_timeout_s,
        offer_resend_s=args.offer_resend_s,
        ping_interval_s=pings,
        retry_backoff_s=args.retry_backoff_s,
        cancel_grace_s=args.cancel_grace_s,
        checkpoint_wait_s=args.checkpoint_wait_s,
        token_warn_age_s=args.token_warn_age_s,
        waits_long_s=args.waits_long_s,
        require_approval=args.require_approval,
        approval_link_s=args.approval_link_s,
        default_visibility=Visibility(args.default_visibility),
        checkpoints_keep=args.checkpoints_keep,
        job_storage_bytes=args.job_storage_gb * GIB,
        data_storage_bytes=args.data_storage_gb * GIB,
        user_storage_bytes=args.user_storage_gb * GIB if args.user_storage_gb else None,
        object_grace_s=args.object_grace_s,
        results_wait_s=args.results_wait_s,
        object_delete_delay_s=args.object_delete_delay_s,
        jobs_keep_days=args.jobs_keep_days,
        audit_keep_days=args.audit_keep_days,
    )
