"""Declares the `simpletuner jobs` commands and their options."""

import argparse

from simpletuner_fleet.cli.commands.rows import (
    FORMATS,
    WITHOUT_IDS,
    Noun,
    OneOf,
    Verb,
    argument,
    repeated,
    switch,
)
from simpletuner_fleet.core.jobs.states import ENDED
from simpletuner_fleet.languages.names import JOB_STATUSES, TARGETS, VISIBILITIES
from simpletuner_fleet.settings import values

JOB = argument("job", metavar="ID", help="A job's id or a unique beginning of it")
ATTEMPT = argument("--attempt", read=values.positive_count, metavar="N", help="Of this attempt")
PRIORITY_HELP = "A number, or low, normal, high, urgent"
NOT_ENDED = tuple(status for status in JOB_STATUSES if status not in ENDED)
ON_MAX_COST_HELP = (
    "Near the cost limit: save a checkpoint and stop, or finish and start no further attempt (default: stop)"
)
START_IN = argument(
    "--in",
    dest="start_in",
    read=values.seconds,
    metavar="TIME",
    help="Start after a delay, for example 2h",
)
NODES_HELP = "Spread its GPUs over so many nodes of one worker, equally (default: 1)"

SUBMIT = (
    argument("config_ref", metavar="CONFIG", help="A saved config's name, or a path to a file or folder"),
    argument(
        "--target",
        choices=(*TARGETS, "cloud"),
        help="Where to run (default: auto); cloud: on a machine that a pool brings",
    ),
    argument(
        "--max-price",
        read=values.money,
        metavar="AMOUNT",
        help="Run on no machine of which an hour costs more, for example 2.50",
    ),
    repeated(
        "--label", "KEY=GLOB", "Only workers with this label, or version as in trainer>=4.3; may be repeated"
    ),
    argument("--gpus", read=values.count, metavar="N", help="GPUs (default: num_processes)"),
    argument("--nodes", read=values.count, metavar="N", help=NODES_HELP),
    argument("--min-vram", read=values.gigabytes, metavar="GB", help="Memory each GPU must have"),
    argument("--priority", read=values.priority, metavar="P", help=PRIORITY_HELP),
    repeated("--set", "KEY=VALUE", "Replace a setting of the config; may be repeated", dest="overrides"),
    repeated(
        "--data", "NAME=ID", "The dataset that dataset://NAME stands for in the config; may be repeated"
    ),
    argument("--max-retries", read=values.count, metavar="N", help="Retries (default: 3)"),
    switch("--retry-on-failure", help="Retry a trainer that failed, too"),
    argument("--time-limit", read=values.seconds, metavar="TIME", help="For example 2h"),
    argument(
        "--on-time-limit",
        choices=("fail", "requeue"),
        help="At the limit: fail, or save a checkpoint and go on later (default: fail)",
    ),
    argument(
        "--max-cost",
        read=values.money,
        metavar="AMOUNT",
        help="All its attempts together cost no more, for example 5.00",
    ),
    argument("--on-max-cost", choices=("stop", "finish"), help=ON_MAX_COST_HELP),
    repeated("--depends-on", "ID", "Wait for this job to complete; may be repeated"),
    OneOf(
        (
            argument(
                "--not-before",
                read=values.start_time,
                metavar="TIME",
                help="Start no earlier: 22:00 (the next one here), 2026-01-31T22:00, or with a zone",
            ),
            START_IN,
        )
    ),
    repeated(
        "--watchdog",
        "KEY=VALUE",
        "nan, stall or disk: fail, restart-from-last-good or ignore; stall_s, disk_free_gb; may be repeated",
    ),
    argument(
        "--resume-from",
        metavar="JOB[:STEP]",
        help="Go on from what that job has stored (default step: newest)",
    ),
    argument(
        "--publish",
        metavar="URL",
        help="When it has completed: hf://OWNER/NAME, or folder://NAME of the server",
    ),
    argument("--publish-secret", metavar="NAME", help="The stored secret that holds the Hub's token"),
    argument("--name", metavar="NAME", help="A name for people"),
    argument("--team", metavar="TEAM", help="The team it is for (default: the one you joined first)"),
    argument("--visibility", choices=tuple(VISIBILITIES), help="Who may see it beside you"),
    switch("-n", "--dry-run", help="Tell what would happen, submit nothing"),
    switch("--no-wait", help="Refuse the job unless it can start now"),
    switch("--any-gpu", help="Take whichever GPU is free, whatever the config asks for"),
    switch("--for-approval", help="Ask for an approval where a quota would refuse it"),
    switch("--wait", help="Return when the job has ended"),
    switch("-f", "--follow", help="Show the log until the job has ended"),
    argument("--idempotency-key", metavar="KEY", help="The same key never submits twice"),
)
SEARCH = (
    repeated(
        "--status",
        "STATUS",
        "Only jobs of this status; may be repeated",
        choices=tuple(JOB_STATUSES),
    ),
    argument("--owner", metavar="NAME", help="Only jobs of this user or token"),
    argument("--worker", metavar="WORKER", help="Only jobs of this worker"),
    argument("--config-name", metavar="NAME", help="Only jobs of this config"),
    argument("--trainer", metavar="NAME", help="Only jobs of this trainer"),
    argument("--dataset", metavar="ID", help="Only jobs that use this dataset, sha256:…"),
    repeated("--label", "KEY=GLOB", "Only jobs submitted with this label; may be repeated"),
    repeated("--tag", "TAG", "Only jobs that have this tag; may be repeated"),
    argument(
        "--reason",
        metavar="REASON",
        help="Only jobs that wait or ended for this reason, as in ALL_MATCHING_BUSY or gpu_out_of_memory",
    ),
    argument("--since", metavar="TIME", help="Submitted since: 2h, 7d, or 2026-01-31T12:00:00Z"),
    argument("--until", metavar="TIME", help="Submitted before: 2h, 7d, or 2026-01-31T12:00:00Z"),
    argument("--ended-since", metavar="TIME", help="Ended since: 2h, 7d, or 2026-01-31T12:00:00Z"),
    argument("--ended-until", metavar="TIME", help="Ended before: 2h, 7d, or 2026-01-31T12:00:00Z"),
    argument("--find", metavar="TEXT", help="Only jobs with this in their name, config or id"),
)
LIST = (
    *SEARCH,
    argument(
        "--sort",
        metavar="KEY",
        default="created",
        help="created, started, finished, priority, name, config, attempts or queue; with a minus "
        "before it the other way round, as in --sort=-name (default: created)",
    ),
    argument(
        "--limit", read=values.positive_count, default=50, metavar="N", help="At most so many (default: 50)"
    ),
    switch("--watch", help="Go on and show changes as they happen"),
)
WAIT = (
    JOB,
    argument(
        "--for",
        dest="until",
        choices=("completed", "terminal"),
        default="completed",
        help="completed fails if the job does not; terminal takes any end (default: completed)",
    ),
    argument("--timeout", read=values.seconds, metavar="TIME", help="Give up after this time"),
)
LOGS = (
    JOB,
    switch("-f", "--follow", help="Go on as it prints"),
    OneOf(
        (
            argument("--tail", read=values.count, metavar="N", help="Only the last N lines"),
            argument(
                "--since",
                read=values.moment,
                metavar="TIME",
                help="Only what was printed since: 10m, 2h, or 2026-01-31T12:00:00Z",
            ),
        )
    ),
    ATTEMPT,
    argument(
        "--rank", read=values.count, metavar="N", help="Of this process, where each prints to its own file"
    ),
    argument(
        "--grep",
        metavar="RE",
        may_be_empty=True,
        help="Only lines that this pattern is found in; a line longer than 16 MiB is taken as several",
    ),
    switch("--timestamps", help="Each line with the time it was printed"),
    switch("--raw", help="Bytes as they are, terminal controls included"),
)
METRICS = (
    JOB,
    repeated("--key", "KEY", "Only this curve; may be repeated"),
    argument(
        "--points",
        read=values.positive_count,
        metavar="N",
        help="At most so many of each (default: 20, for programs 5000)",
    ),
    ATTEMPT,
)
COMPARE = (
    argument("jobs", nargs="+", metavar="ID", help="A job's id or a unique beginning of it; two to eight"),
    repeated("--key", "KEY", "Only this curve; may be repeated"),
)
DOWNLOAD = (
    JOB,
    switch("--latest-checkpoint", help="The newest checkpoint instead of the artifacts"),
    argument("--to", metavar="DIR", help="Into this folder (default: the job's id)"),
    argument("--archive", metavar="FILE", help="Into one .tar or .tar.gz file"),
)
YES = switch("--yes", help="Do it; without it only the number of jobs is told")
DRY_RUN = switch("-n", "--dry-run", help="Only tell how many jobs match")
CANCEL = (
    argument("jobs", nargs="*", metavar="ID", help="A job's id or a unique beginning of it"),
    switch("--all", help="All jobs that have not ended instead, or those of a status"),
    repeated(
        "--status", "STATUS", "With --all: only jobs of this status; may be repeated", choices=NOT_ENDED
    ),
    YES,
    DRY_RUN,
    switch(
        "--checkpoint-first",
        help="Save and store a checkpoint before; cancelling again without it hurries",
    ),
    argument(
        "--grace", read=values.seconds, metavar="TIME", help="From asking the trainer to end to the kill"
    ),
)

DELETE = (argument("jobs", nargs="+", metavar="ID", help="A job's id or a unique beginning of it"),)
PURGE = (
    argument(
        "--older-than",
        read=values.seconds,
        required=True,
        metavar="TIME",
        help="Only jobs that ended longer ago than this, for example 30d",
    ),
    repeated("--state", "STATUS", "Only jobs that ended like this; may be repeated", choices=ENDED),
    YES,
    DRY_RUN,
)
PUBLISH = (
    JOB,
    argument(
        "--to", metavar="URL", help="hf://OWNER/NAME, or folder://NAME of the server (default: as before)"
    ),
    argument("--secret", metavar="NAME", help="The stored secret that holds the Hub's token"),
    switch("--public", help="A repository that is made for it is open to everybody"),
    argument("--branch", metavar="NAME", help="Of the repository (default: main)"),
    switch("--show", help="Only show how far it is"),
)
OTHER_MAX_COST = argument(
    "--max-cost",
    read=values.money_or_none,
    metavar="AMOUNT",
    default=argparse.SUPPRESS,
    help="All its attempts together cost no more, with what is spent already; none lifts that",
)
RETRY = (
    JOB,
    argument(
        "--resume-from",
        metavar="JOB[:STEP]",
        help="Go on from what a job has stored, usually the same (default: from the start)",
    ),
    OTHER_MAX_COST,
)

TAG = (
    JOB,
    argument("tags", nargs="*", metavar="TAG", help="Tags to add"),
    repeated("--remove", "TAG", "A tag to remove; may be repeated"),
)
EDIT = (
    JOB,
    argument("--name", metavar="NAME", may_be_empty=True, help="A name for people; empty for none"),
    argument("--target", choices=tuple(TARGETS), help="Where to run"),
    OneOf(
        (
            repeated("--label", "KEY=GLOB", "These labels instead of all it has; may be repeated"),
            switch("--no-labels", help="Any worker, whatever its labels"),
        )
    ),
    argument("--gpus", read=values.count, metavar="N", help="GPUs"),
    argument("--nodes", read=values.count, metavar="N", help=NODES_HELP),
    argument("--min-vram", read=values.gigabytes, metavar="GB", help="Memory each GPU must have"),
    argument(
        "--max-price",
        read=values.money_or_none,
        metavar="AMOUNT",
        default=argparse.SUPPRESS,
        help="Run on no machine of which an hour costs more; none lifts that",
    ),
    argument("--priority", read=values.priority, metavar="P", help=PRIORITY_HELP),
    argument("--max-retries", read=values.count, metavar="N", help="Retries"),
    argument("--time-limit", read=values.seconds, metavar="TIME", help="For example 2h"),
    OneOf(
        (
            argument(
                "--not-before",
                read=values.start_time_or_none,
                metavar="TIME",
                help="Start no earlier: 22:00 (the next one here), 2026-01-31T22:00, or with a zone; none lifts that",
            ),
            START_IN,
        )
    ),
    OTHER_MAX_COST,
    argument("--on-max-cost", choices=("stop", "finish"), help=ON_MAX_COST_HELP),
)
PIN = (
    JOB,
    argument("step", nargs="?", read=values.count, metavar="STEP", help="Of this step (default: newest)"),
    switch("--remove", help="Let it be deleted again"),
)
NOTE = (JOB, argument("text", metavar="TEXT", help="The note; empty for none"))
ACT = (
    argument("act", choices=("cancel", "retry", "priority", "tags", "delete"), help="What to do"),
    *SEARCH,
    argument("--priority", read=values.priority, metavar="P", help=PRIORITY_HELP),
    repeated("--add-tag", "TAG", "A tag to add; may be repeated"),
    repeated("--remove-tag", "TAG", "A tag to remove; may be repeated"),
    switch("--checkpoint-first", help="Before a cancel, save and store a checkpoint"),
    argument(
        "--yes",
        dest="expected",
        read=values.count,
        metavar="N",
        help="Do it, if so many jobs match; without it only their number is told",
    ),
)

JOBS = Noun(
    "jobs",
    "Submit jobs, see and steer them",
    "jobs.verbs",
    (
        Verb("submit", "Submit a training job", SUBMIT, run="jobs.submit:submit"),
        Verb("list", "List jobs, newest first", LIST),
        Verb("get", "Show one job", (JOB,)),
        Verb(
            "watch",
            "Show jobs, or one job, as they change",
            (argument("job", nargs="?", metavar="ID", help="A job's id or a unique beginning of it"),),
        ),
        Verb(
            "events",
            "Show what happened to a job, and what its workers noted",
            (JOB,),
            run="jobs.events:show",
            formats=WITHOUT_IDS,
        ),
        Verb("explain", "Tell why a job waits, and when it would start", (JOB,), formats=WITHOUT_IDS),
        Verb("wait", "Wait until a job has ended", WAIT),
        Verb("logs", "Show what a job's trainer printed", LOGS, formats=()),
        Verb(
            "metrics",
            "Show a job's loss and other curves",
            METRICS,
            run="jobs.metrics:show",
            formats=("csv", *FORMATS),
        ),
        Verb(
            "compare",
            "Show runs side by side, and in what their configs differ",
            COMPARE,
            run="jobs.compare:compare",
        ),
        Verb("artifacts", "List a job's stored checkpoints and artifacts", (JOB,), run="jobs.artifacts:list"),
        Verb("download", "Fetch what a job has made, verified", DOWNLOAD, run="jobs.artifacts:download"),
        Verb("checkpoint", "Ask a running job for a checkpoint; it trains on", (JOB,)),
        Verb("validate", "Ask a running job to validate; it trains on", (JOB,)),
        Verb("cancel", "Cancel jobs", CANCEL, run="jobs.matching:cancel"),
        Verb(
            "delete",
            "Delete ended jobs with their logs, checkpoints and artifacts",
            DELETE,
            run="jobs.matching:delete",
            formats=("json",),
        ),
        Verb(
            "purge",
            "Delete all jobs that ended long ago",
            PURGE,
            run="jobs.matching:purge",
            formats=("json",),
        ),
        Verb("retry", "Submit an ended job again", RETRY),
        Verb("tag", "Add tags to a job, or remove them", TAG, run="jobs.editing:tag"),
        Verb("edit", "Change a waiting job's request in place", EDIT, run="jobs.editing:edit"),
        Verb(
            "pin",
            "Keep a job's checkpoint from being deleted",
            PIN,
            run="jobs.editing:pin",
        ),
        Verb("note", "Write a note on a job", NOTE, run="jobs.editing:note"),
        Verb(
            "act",
            "Cancel, retry, tag, reorder or delete all matching jobs",
            ACT,
            run="jobs.matching:act",
            formats=("json",),
        ),
        Verb(
            "publish",
            "Bring a completed job's model to the Hugging Face Hub or a folder",
            PUBLISH,
            run="jobs.publish:publish",
        ),
        Verb(
            "set-priority",
            "Change a job's place in the queue",
            (JOB, argument("priority", read=values.priority, metavar="P", help=PRIORITY_HELP)),
        ),
    ),
)
