"""Declares the `simpletuner approvals` commands and their options."""

from simpletuner_fleet.cli.commands.rows import Noun, Verb, argument, repeated, switch
from simpletuner_fleet.settings import values

JOB = argument("job", metavar="ID", help="A job's id or a unique beginning of it")
NOTE = argument("--note", default="", metavar="TEXT", may_be_empty=True, help="Why, for its owner to read")
CONDITIONS = ("gpus_over", "hours_over", "cost_over_micros", "gpu", "first_job", "config", "trainer", "team")
RULE_ID = argument("rule", metavar="ID")
RULE = (
    argument("--gpus-over", read=values.count, metavar="N", help="Jobs of more GPUs"),
    argument("--hours-over", read=values.hours, metavar="H", help="Jobs with a longer time limit, or none"),
    argument(
        "--cost-over",
        read=values.money,
        metavar="AMOUNT",
        help="Jobs that may cost more, by their estimate, or of which nobody can say",
    ),
    argument("--gpu", metavar="GLOB", help="Jobs that can run on such GPUs alone; others are kept off them"),
    switch("--first-job", help="Jobs of people who have completed none yet"),
    argument("--config-glob", metavar="GLOB", help="Jobs of configs with such names"),
    argument("--trainer", metavar="NAME", help="Jobs of this trainer"),
    argument("--team", metavar="TEAM", help="Jobs of this team"),
    argument("--by", choices=("leads", "admins", "people"), help="Who must approve (default: leads)"),
    repeated("--person", "USER", "One of those who must, with --by people; may be repeated"),
    argument("--count", read=values.positive_count, metavar="N", help="How many of them (default: 1)"),
    argument("--expires", read=values.seconds, metavar="TIME", help="How long it waits (default: 1d)"),
    switch("--for-approvers-too", help="Also for those who may approve every job"),
)

APPROVALS = Noun(
    "approvals",
    "Jobs that need somebody's approval",
    "nouns.people.approvals",
    (
        Verb("list", "List what waits for you, and what your own jobs wait for"),
        Verb("get", "Show whose word a job waits for, or had", (JOB,)),
        Verb("approve", "Approve a job", (JOB, NOTE)),
        Verb("reject", "Reject a job", (JOB, NOTE)),
        Verb("rules", "List the rules about which jobs need an approval"),
        Verb(
            "add-rule",
            "Set a rule: a job needs an approval where all that is named is so; where nothing is, every job",
            (argument("name", metavar="NAME"), *RULE),
        ),
        Verb(
            "change-rule",
            "Change a rule; what is not named stays as it is",
            (
                RULE_ID,
                argument("--name", metavar="NAME", help="Another name"),
                *RULE,
                repeated(
                    "--without",
                    "CONDITION",
                    "A condition that falls away; may be repeated",
                    choices=CONDITIONS,
                ),
            ),
        ),
        Verb("delete-rule", "Delete a rule", (RULE_ID,)),
    ),
)
