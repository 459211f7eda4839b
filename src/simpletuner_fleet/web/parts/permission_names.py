"""Describes the permissions for people, in the groups in which they are given."""

from simpletuner_fleet.core.people.permissions import EVERYTHING
from simpletuner_fleet.languages import N_

GROUPS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        N_("Jobs"),
        (
            ("jobs.read", N_("View jobs, their logs, curves and files")),
            ("queue.read", N_("View the queue and why jobs wait")),
            ("queue.submit", N_("Submit jobs")),
            ("queue.submit.local", N_("Submit jobs that run on the server's own machine")),
            ("queue.submit.command", N_("Submit jobs that are commands of one's own")),
            ("jobs.cancel", N_("Cancel jobs")),
            ("queue.cancel", N_("Cancel jobs through the queue API")),
            ("jobs.retry", N_("Retry ended jobs")),
            ("jobs.edit", N_("Tag jobs, write notes, edit waiting jobs and pin checkpoints")),
            ("queue.priority", N_("Reorder jobs in the queue")),
            ("queue.approve", N_("Approve or reject jobs that wait for approval")),
            ("notifications.own", N_("Choose what to be notified about, and where")),
        ),
    ),
    (
        N_("Configs, data and secrets"),
        (
            ("configs.read", N_("View configs")),
            ("configs.write", N_("Save and delete configs")),
            ("data.read", N_("View and download datasets")),
            ("data.write", N_("Upload and delete datasets")),
            ("secrets.read", N_("View the names of secrets, never their values")),
            ("secrets.write", N_("Store and delete secrets")),
        ),
    ),
    (
        N_("Administration"),
        (
            ("admin.workers", N_("Create, drain and delete workers")),
            ("machines.read", N_("View pools and machines, and what they cost")),
            ("admin.machines", N_("Set up pools, and end machines")),
            ("admin.users", N_("Manage users")),
            ("admin.tokens", N_("Manage API tokens")),
            ("admin.audit", N_("Read and verify the audit log")),
            ("admin.scim", N_("Provision users and groups through SCIM")),
            ("admin.limits", N_("Set how many jobs may run at once")),
            (
                "admin.notifications",
                N_("Be notified about everybody's jobs, and manage everybody's notifications"),
            ),
            ("admin.teams", N_("Manage teams")),
            ("admin.see_all", N_("View what is private to others or to another team")),
            (EVERYTHING, N_("Everything, including permissions added in later versions")),
        ),
    ),
)
PRESETS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (N_("Read only"), ("jobs.read", "queue.read", "configs.read", "data.read")),
    (
        N_("Submit and watch"),
        (
            "jobs.read",
            "queue.read",
            "queue.submit",
            "queue.submit.command",
            "jobs.cancel",
            "jobs.retry",
            "jobs.edit",
            "configs.read",
            "data.read",
        ),
    ),
    (N_("Everything"), (EVERYTHING,)),
)
