"""Declares the `simpletuner pools` and `simpletuner machines` commands."""

import argparse
from typing import Any

from simpletuner_fleet.cli.commands.rows import Noun, OneOf, Verb, argument, repeated, switch
from simpletuner_fleet.settings import values

POOL = argument("name", metavar="POOL")
MONEY: dict[str, Any] = {"read": values.money_or_none, "metavar": "AMOUNT", "default": argparse.SUPPRESS}
POOL_SET = (
    POOL,
    argument(
        "--provider",
        metavar="KIND",
        help="Where its machines come from: kubernetes, process, runpod, slurm, ssh, vast, or a plug-in's name",
    ),
    repeated("--setting", "KEY=VALUE", "For the provider alone; KEY= takes it away; may be repeated"),
    argument(
        "--secret",
        metavar="NAME",
        may_be_empty=True,
        help="The stored secret that holds the provider's key",
    ),
    argument("--min-machines", read=values.count, metavar="N", help="Keep so many even without a job"),
    argument("--max-machines", read=values.count, metavar="N", help="Never more at a time (default: 1)"),
    argument(
        "--max-price", dest="max_price_micros", help="An hour of one machine costs at most so much", **MONEY
    ),
    argument(
        "--max-hourly",
        dest="max_hourly_micros",
        help="All its machines cost at most so much an hour",
        **MONEY,
    ),
    argument("--max-daily", dest="max_daily_micros", help="They cost at most so much a day (UTC)", **MONEY),
    argument(
        "--max-monthly", dest="max_monthly_micros", help="They cost at most so much a month (UTC)", **MONEY
    ),
    argument(
        "--market",
        choices=("on_demand", "spot", "spot_first"),
        metavar="WHICH",
        help="on_demand (default), spot, or spot_first",
    ),
    argument(
        "--spot-tries",
        read=values.count,
        metavar="N",
        help="With spot_first: after so many machines that were taken away a job gets one on demand (default: 2)",
    ),
    argument(
        "--over-budget",
        choices=("stop", "finish"),
        metavar="WHAT",
        help="At the limit of a day or month running jobs are saved and stopped (stop, the default) or finish",
    ),
    argument(
        "--idle",
        read=values.seconds_or_none,
        metavar="TIME",
        help="So long a machine stays without a job (default: 10m); 0: one job, then it goes",
    ),
    argument(
        "--boot", read=values.seconds, metavar="TIME", help="So long it may take to join (default: 15m)"
    ),
    repeated("--kind", "GLOB", "Only GPUs of this name; may be repeated"),
    repeated("--region", "REGION", "Only there; may be repeated"),
    repeated("--label", "KEY=VALUE", "Of its workers; may be repeated"),
    repeated("--team", "TEAM", "Only for jobs of this team, and of the people named; may be repeated"),
    repeated("--person", "USER", "Only for jobs of this person, and of the teams named; may be repeated"),
    switch("--everybody", help="For everybody's jobs: take teams and people away"),
    repeated("--trainer", "NAME", "What its machines can run (default: simpletuner); may be repeated"),
    argument("--data-gb", read=values.gigabytes, metavar="GB", help="Datasets it can hold (default: 100)"),
    argument(
        "--orchestrator-url", metavar="URL", may_be_empty=True, help="Where its machines reach the server"
    ),
    OneOf((switch("--on", help="Start machines"), switch("--off", help="Start no new ones"))),
)
POOLS = Noun(
    "pools",
    "Where machines come from, and what they may cost",
    "nouns.machines.pools",
    (
        Verb("list", "List pools with their machines and costs"),
        Verb("get", "Show one pool", (POOL,)),
        Verb("set", "Create a pool, or change the settings given", POOL_SET, run="nouns.machines.pools:set_"),
        Verb("check", "Try a pool's key: ask its provider for machines and offers", (POOL,)),
        Verb("delete", "Delete a pool; its machines finish their jobs and are destroyed", (POOL,)),
        Verb("take-in-hand", "After a restore: manage machines again"),
    ),
)
MACHINE = argument("id", metavar="MACHINE")
MACHINES = Noun(
    "machines",
    "Machines started by pools",
    "nouns.machines.pools",
    (
        Verb(
            "list",
            "List machines and what they cost",
            (
                argument("--pool", metavar="POOL", help="Only of this pool"),
                switch("--all", help="Include machines that ended this month"),
            ),
            run="nouns.machines.pools:list_machines",
        ),
        Verb("get", "Show one machine", (MACHINE,), run="nouns.machines.pools:get_machine"),
        Verb(
            "end",
            "Let a machine finish its jobs and destroy it",
            (MACHINE, switch("--now", help="Destroy it at once, whatever runs there")),
            run="nouns.machines.pools:end_machine",
        ),
    ),
)
