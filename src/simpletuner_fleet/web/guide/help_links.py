"""Finds the part of the guide that helps with a page of the console."""

HELP = {
    "/": "how-a-job-lives",
    "/train": "submit-a-job",
    "/jobs": "submit-a-job#watch-it",
    "/jobs/{id}": "how-a-job-lives",
    "/jobs/{id}/logs": "troubleshooting#a-job-failed",
    "/jobs/{id}/checkpoints": "submit-a-job#get-the-model",
    "/compare": "submit-a-job#watch-it",
    "/configs": "submit-a-job#save-a-config",
    "/datasets": "submit-a-job#bring-the-data",
    "/fleet": "troubleshooting#a-job-waits",
    "/notifications": "notifications",
    "/machines": "machines",
    "/admin/workers": "add-a-worker",
    "/admin/workers/{id}": "troubleshooting#a-worker-goes-offline",
    "/admin/workers/create": "add-a-worker#create-it",
    "/admin/users": "enterprise#people-and-roles",
    "/admin/users/roles": "approvals-and-roles#make-a-role-of-your-own",
    "/admin/users/sign-in": "enterprise#people-and-roles",
    "/teams": "share-the-fleet",
    "/quotas": "share-the-fleet",
    "/usage": "enterprise#money",
    "/approvals": "approvals-and-roles",
    "/admin/tokens": "enterprise#tokens-for-programs",
    "/admin/audit": "enterprise#audit-log",
    "/admin/settings": "settings",
}
"""By the path of its route, as slug and section; a page that is not named goes by the nearest one above it."""


def help_link(path: str) -> str:
    """Returns where in the guide to look; a page that the guide does not cover leads to the contents."""
    while path and path not in HELP:
        path = path.rpartition("/")[0]
    return f"/guide/{HELP[path]}" if path else "/guide"
