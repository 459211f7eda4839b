"""The tree of commands. Knows names and options; what a command does is found by name only when it runs."""

import argparse
from typing import Any

from simpletuner_fleet import __version__
from simpletuner_fleet.cli.parser import Parser, WideHelp
from simpletuner_fleet.settings import CLIENT, SERVER, WORKER, Setting, values

FORMATS = ("table", "json", "jsonl", "name")
JOB_STATES = ("blocked", "queued", "dispatched", "running", "cancelling", "completed", "failed", "cancelled")
ROLES = ("admin", "member", "viewer")
WORKER_STATES = ("connecting", "idle", "busy", "draining", "offline")


def typed(parse: Any) -> Any:
    """A parser of ours as argparse wants it: its sentence becomes the message."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def add_setting(parser: argparse.ArgumentParser, row: Setting, default: Any = None) -> None:
    if not row.flags:
        return
    if row.action == "switch":
        parser.add_argument(
            *row.flags, dest=row.name, action="store_const", const=True, default=default, help=row.help
        )
    elif row.action == "toggle":
        parser.add_argument(
            *row.flags, dest=row.name, action=argparse.BooleanOptionalAction, default=default, help=row.help
        )
    else:
        parser.add_argument(
            *row.flags, dest=row.name, action=row.action, default=default, metavar=row.metavar, help=row.help
        )


def add_help(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-h", "--help", action="help", help="Show this help and exit")


def add_config_file(parser: argparse.ArgumentParser, default: Any = None) -> None:
    parser.add_argument(
        "--config", dest="config_file", metavar="FILE", default=default, help="Settings file (TOML)"
    )


def talk_options(formats: tuple[str, ...] = FORMATS) -> Parser:
    """Options of every command that talks to the orchestrator; absent until given, so they may stand anywhere."""
    parent = Parser()
    output = parent.add_argument_group("OUTPUT")
    output.add_argument(
        "--json",
        action="store_const",
        const="json",
        dest="output",
        default=argparse.SUPPRESS,
        help="Print JSON (= -o json)",
    )
    output.add_argument(
        "-o",
        "--output",
        choices=formats,
        default=argparse.SUPPRESS,
        metavar="FORMAT",
        help=", ".join(formats[:-1]) + f" or {formats[-1]} (ids only)",
    )
    output.add_argument("--fields", default=argparse.SUPPRESS, metavar="A,B.C", help="Only these fields")
    output.add_argument(
        "--no-color", action="store_true", default=argparse.SUPPRESS, help="No colours (or NO_COLOR)"
    )
    output.add_argument(
        "-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help="Data only: no notes, no hints"
    )
    output.add_argument(
        "--curl",
        action="store_true",
        default=argparse.SUPPRESS,
        help="Print the curl command instead of running it; set ADMIN_TOKEN to your token",
    )
    server = parent.add_argument_group("CONNECTION")
    for row in CLIENT:
        add_setting(server, row, argparse.SUPPRESS)  # type: ignore[arg-type]
    add_config_file(server, argparse.SUPPRESS)  # type: ignore[arg-type]
    server.add_argument("-h", "--help", action="help", help="Show this help and exit")
    return parent


class Tree:
    """Adds commands to the root; each says which function runs it."""

    def __init__(self, root: Parser) -> None:
        self.talk = talk_options()
        self.commands = root.add_subparsers(
            dest="command", metavar="COMMAND", title="COMMANDS", parser_class=Parser, prog="simpletuner"
        )

    def program(self, name: str, run: str, help: str, usage_line: str) -> Parser:
        parser: Parser = self.commands.add_parser(
            name, help=help, description=help, usage=usage_line, formatter_class=WideHelp
        )
        parser.set_defaults(run=run, parser=parser)
        return parser

    def command(self, name: str, run: str, help: str) -> Parser:
        return self._leaf(self.commands, name, run, help)

    def noun(self, name: str, help: str) -> "Noun":
        parser = self.commands.add_parser(name, help=help, description=help)
        add_help(parser)
        parser.set_defaults(run="", parser=parser)
        verbs = parser.add_subparsers(
            dest="verb", metavar="VERB", title="COMMANDS", parser_class=Parser, prog=f"simpletuner {name}"
        )
        return Noun(self, name, verbs)

    def _leaf(
        self, commands: Any, name: str, run: str, help: str, formats: tuple[str, ...] = FORMATS
    ) -> Parser:
        talk = self.talk if formats == FORMATS else talk_options(formats)
        parser: Parser = commands.add_parser(name, help=help, description=help, parents=[talk])
        parser.set_defaults(run=run, parser=parser)
        return parser


class Noun:
    def __init__(self, tree: Tree, name: str, verbs: Any) -> None:
        self._tree, self._name, self._verbs = tree, name, verbs

    def verb(
        self, name: str, help: str, run: str | None = None, formats: tuple[str, ...] = FORMATS
    ) -> Parser:
        """Runs the function of its name in the module of the noun, unless told another one."""
        usual = f"{self._name}:{name.replace('-', '_')}"
        return self._tree._leaf(self._verbs, name, f"simpletuner_fleet.cli.{run or usual}", help, formats)


def build_parser() -> Parser:
    root = Parser(
        prog="simpletuner",
        description="Train on every GPU machine you have: one orchestrator, many workers.",
        epilog="'simpletuner worker' runs an agent on this machine, 'simpletuner workers' administers all of them. "
        "'simpletuner COMMAND --help' tells more.",
    )
    add_help(root)
    root.add_argument("--version", action="version", version=f"simpletuner-fleet {__version__}")
    root.set_defaults(run="", parser=root)
    tree = Tree(root)
    _programs(tree)
    _jobs(tree)
    _workers(tree)
    _configs(tree)
    _secrets(tree)
    _data(tree)
    _audit(tree)
    _tokens(tree)
    _users(tree)
    _service(tree)
    _rest(tree)
    return root


def _programs(tree: Tree) -> None:
    server = tree.program(
        "server",
        "simpletuner_fleet.cli.programs:server",
        "Run the orchestrator",
        "simpletuner server [OPTIONS]",
    )
    for row in SERVER:
        add_setting(server, row)
    worker = tree.program(
        "worker",
        "simpletuner_fleet.cli.programs:worker",
        "Run an agent on this GPU machine",
        "simpletuner worker [OPTIONS]",
    )
    for row in WORKER:
        add_setting(worker, row)
    worker.add_argument("--check", action="store_true", help="Test everything, then exit")
    for parser in (server, worker):
        add_config_file(parser)
        add_help(parser)


def _jobs(tree: Tree) -> None:
    jobs = tree.noun("jobs", "Submit jobs, see and steer them")
    submit = jobs.verb("submit", "Submit a training job")
    submit.add_argument(
        "config_ref", metavar="CONFIG", help="A saved config's name, or a path to a file or folder"
    )
    submit.add_argument("--target", choices=("worker", "local", "auto"), help="Where to run (default: auto)")
    submit.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="KEY=GLOB",
        help="Only workers with this label; may be repeated",
    )
    submit.add_argument("--gpus", type=typed(values.count), metavar="N", help="GPUs (default: num_processes)")
    submit.add_argument("--min-vram", type=float, metavar="GB", help="Memory each GPU must have")
    submit.add_argument("--priority", metavar="P", help="A number, or low, normal, high, urgent")
    submit.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="Replace a setting of the config; may be repeated",
    )
    submit.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="NAME=ID",
        help="The dataset that dataset://NAME stands for in the config; may be repeated",
    )
    submit.add_argument("--max-retries", type=typed(values.count), metavar="N", help="Retries (default: 3)")
    submit.add_argument("--retry-on-failure", action="store_true", help="Retry a trainer that failed, too")
    submit.add_argument("--time-limit", type=typed(values.seconds), metavar="TIME", help="For example 2h")
    submit.add_argument(
        "--on-time-limit",
        choices=("fail", "requeue"),
        help="At the limit: fail, or save a checkpoint and go on later (default: fail)",
    )
    submit.add_argument(
        "--depends-on",
        action="append",
        default=[],
        metavar="ID",
        help="Wait for this job to complete; may be repeated",
    )
    submit.add_argument(
        "--watchdog",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="nan, stall or disk: fail, restart-from-last-good or ignore; stall_s, disk_free_gb; may be repeated",
    )
    submit.add_argument("--name", metavar="NAME", help="A name for people")
    submit.add_argument("-n", "--dry-run", action="store_true", help="Tell what would happen, submit nothing")
    submit.add_argument("--no-wait", action="store_true", help="Refuse the job unless it can start now")
    submit.add_argument("--wait", action="store_true", help="Return when the job has ended")
    submit.add_argument("-f", "--follow", action="store_true", help="Show the log until the job has ended")
    submit.add_argument("--idempotency-key", metavar="KEY", help="The same key never submits twice")
    listing = jobs.verb("list", "List jobs, newest first")
    listing.add_argument(
        "--status",
        action="append",
        default=[],
        choices=JOB_STATES,
        metavar="STATUS",
        help="Only jobs of this status; may be repeated",
    )
    listing.add_argument("--worker", metavar="WORKER", help="Only jobs of this worker")
    listing.add_argument(
        "--limit",
        type=typed(values.positive_count),
        default=50,
        metavar="N",
        help="At most so many (default: 50)",
    )
    listing.add_argument("--watch", action="store_true", help="Go on and show changes as they happen")
    _by_job(jobs.verb("get", "Show one job"))
    watch = jobs.verb("watch", "Show jobs, or one job, as they change")
    watch.add_argument("job", nargs="?", metavar="ID", help="A job's id or a unique beginning of it")
    _by_job(jobs.verb("events", "Show what happened to a job, and what its workers noted", "events:show"))
    _by_job(jobs.verb("explain", "Tell why a job waits"))
    wait = _by_job(jobs.verb("wait", "Wait until a job has ended"))
    wait.add_argument(
        "--for",
        dest="until",
        choices=("completed", "terminal"),
        default="completed",
        help="completed fails if the job does not; terminal takes any end (default: completed)",
    )
    wait.add_argument("--timeout", type=typed(values.seconds), metavar="TIME", help="Give up after this time")
    logs = _by_job(jobs.verb("logs", "Show what a job's trainer printed"))
    logs.add_argument("-f", "--follow", action="store_true", help="Go on as it prints")
    part = logs.add_mutually_exclusive_group()
    part.add_argument("--tail", type=typed(values.count), metavar="N", help="Only the last N lines")
    part.add_argument(
        "--since",
        type=typed(values.moment),
        metavar="TIME",
        help="Only what was printed since: 10m, 2h, or 2026-01-31T12:00:00Z",
    )
    logs.add_argument("--attempt", type=typed(values.positive_count), metavar="N", help="Of this attempt")
    logs.add_argument(
        "--rank",
        type=typed(values.count),
        metavar="N",
        help="Of this process, where each prints to its own file",
    )
    logs.add_argument("--grep", metavar="RE", help="Only lines that this pattern is found in")
    logs.add_argument("--timestamps", action="store_true", help="Each line with the time it was printed")
    logs.add_argument("--raw", action="store_true", help="Bytes as they are, terminal controls included")
    metrics = _by_job(
        jobs.verb("metrics", "Show a job's loss and other curves", "metrics:show", ("csv", *FORMATS))
    )
    metrics.add_argument(
        "--key", action="append", default=[], metavar="KEY", help="Only this curve; may be repeated"
    )
    metrics.add_argument(
        "--points",
        type=typed(values.positive_count),
        metavar="N",
        help="At most so many of each (default: 20, for programs 5000)",
    )
    metrics.add_argument("--attempt", type=typed(values.positive_count), metavar="N", help="Of this attempt")
    _by_job(jobs.verb("artifacts", "List a job's stored checkpoints and artifacts", "artifacts:list"))
    download = _by_job(jobs.verb("download", "Fetch what a job has made, verified", "artifacts:download"))
    download.add_argument(
        "--latest-checkpoint", action="store_true", help="The newest checkpoint instead of the artifacts"
    )
    download.add_argument("--to", metavar="DIR", help="Into this folder (default: the job's id)")
    download.add_argument("--archive", metavar="FILE", help="Into one .tar or .tar.gz file")
    cancel = jobs.verb("cancel", "Cancel jobs")
    cancel.add_argument("jobs", nargs="+", metavar="ID", help="A job's id or a unique beginning of it")
    cancel.add_argument(
        "--checkpoint-first",
        action="store_true",
        help="Save and store a checkpoint before; cancelling again without it hurries",
    )
    cancel.add_argument(
        "--grace",
        type=typed(values.seconds),
        metavar="TIME",
        help="From asking the trainer to end to the kill",
    )
    _by_job(jobs.verb("retry", "Submit an ended job again"))
    priority = _by_job(jobs.verb("set-priority", "Change a job's place in the queue"))
    priority.add_argument("priority", metavar="P", help="A number, or low, normal, high, urgent")


def _by_job(parser: Parser) -> Parser:
    parser.add_argument("job", metavar="ID", help="A job's id or a unique beginning of it")
    return parser


def _workers(tree: Tree) -> None:
    workers = tree.noun("workers", "Administer workers")
    listing = workers.verb("list", "List all workers")
    listing.add_argument(
        "--status", choices=WORKER_STATES, metavar="STATUS", help="Only workers of this status"
    )
    listing.add_argument(
        "--label", action="append", default=[], metavar="KEY=GLOB", help="Only with this label"
    )
    listing.add_argument("--watch", action="store_true", help="Go on and show changes as they happen")
    _by_worker(workers.verb("get", "Show one worker"))
    create = workers.verb("create", "Create a worker and its token, shown only once")
    create.add_argument("name", metavar="NAME")
    create.add_argument(
        "--type",
        choices=("persistent", "ephemeral"),
        default="persistent",
        help="Whether it stays online between jobs (default: persistent)",
    )
    create.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="May be repeated")
    drain = _by_worker(workers.verb("drain", "Finish the current job, take no new one"))
    drain.add_argument("--note", metavar="TEXT", help="Why, for the others")
    drain.add_argument(
        "--timeout",
        type=typed(values.seconds),
        metavar="TIME",
        help="After so long stop what still runs; it goes on elsewhere (default: wait for it to end)",
    )
    drain.add_argument(
        "--no-checkpoint", action="store_true", help="At the timeout stop without saving a checkpoint first"
    )
    drain.add_argument("--wait", action="store_true", help="Return when nothing runs there any more")
    _by_worker(workers.verb("resume", "Undo drain"))
    _by_worker(workers.verb("rotate-token", "Make a new token; the old one is invalid at once"))
    labels = _by_worker(workers.verb("set-labels", "Set labels (KEY=VALUE) or take them away (KEY-)"))
    labels.add_argument("labels", nargs="+", metavar="KEY=VALUE|KEY-")
    _by_worker(workers.verb("delete", "Delete a worker that is offline"))


def _by_worker(parser: Parser) -> Parser:
    parser.add_argument("worker", metavar="WORKER", help="A worker's id or name")
    return parser


def _configs(tree: Tree) -> None:
    configs = tree.noun("configs", "Training configs kept by the orchestrator")
    configs.verb("list", "List saved configs")
    get = configs.verb("get", "Show a config")
    get.add_argument("name", metavar="NAME")
    bring = configs.verb("import", "Save a file or folder as a config")
    bring.add_argument("path", metavar="PATH", help="A config.json, a bundle, or a folder with a config.json")
    bring.add_argument(
        "--name", metavar="NAME", help="Save under this name (default: the file's or folder's)"
    )
    history = configs.verb("history", "List the versions of a config")
    history.add_argument("name", metavar="NAME")
    diff = configs.verb("diff", "What changed between two versions")
    diff.add_argument("name", metavar="NAME")
    diff.add_argument(
        "since",
        metavar="A",
        nargs="?",
        type=typed(values.positive_count),
        help="The older (default: before B)",
    )
    diff.add_argument(
        "to", metavar="B", nargs="?", type=typed(values.positive_count), help="The newer (default: newest)"
    )
    export = configs.verb("export", "Write a config to a folder")
    export.add_argument("name", metavar="NAME")
    export.add_argument("path", metavar="DIR", nargs="?", help="Where to (default: ./NAME)")
    export.add_argument("--force", action="store_true", help="Overwrite files that are there")
    check = configs.verb("validate", "Check a file or folder without saving it")
    check.add_argument("path", metavar="PATH")
    delete = configs.verb("delete", "Delete a config; jobs keep their copies")
    delete.add_argument("name", metavar="NAME")


def _secrets(tree: Tree) -> None:
    secrets = tree.noun("secrets", "Secrets for trainers, named by configs and never shown")
    secrets.verb("list", "List secrets by name and age")
    store = secrets.verb("set", "Store a secret; its value is read from standard input", "secrets:set_")
    store.add_argument("name", metavar="NAME")
    store.add_argument("--from-file", metavar="FILE", help="Read the value from this file instead")
    delete = secrets.verb("delete", "Delete a secret; attempts that run keep what they were given")
    delete.add_argument("name", metavar="NAME")


def _data(tree: Tree) -> None:
    data = tree.noun("data", "Datasets: pushed once, kept by content, cached on workers")
    push = data.verb(
        "push", "Upload a folder; only what is missing is sent, and the same folder has the same id"
    )
    push.add_argument(
        "folder", metavar="DIR", help="Links to files are followed; links to folders are refused"
    )
    push.add_argument("--name", metavar="NAME", help="A name for people (default: the folder's)")
    data.verb("list", "List datasets, newest first")
    show = _by_dataset(data.verb("show", "Show one dataset, and which workers have it"))
    show.add_argument("--files", action="store_true", help="List its files instead")
    pull = _by_dataset(data.verb("pull", "Fetch a dataset into a folder, verified"))
    pull.add_argument("folder", metavar="DIR")
    _by_dataset(data.verb("delete", "Delete a dataset that no job needs any more"))


def _by_dataset(parser: Parser) -> Parser:
    parser.add_argument("dataset", metavar="ID", help="A dataset's id, a beginning of it, or its name")
    return parser


def _audit(tree: Tree) -> None:
    audit = tree.noun("audit", "Who did what, and whether the record is whole")
    listing = audit.verb("list", "List audit entries, newest first")
    for flag, help in (
        ("--event-type", "For example worker.token_rotated"),
        ("--actor-id", "Who did it"),
        ("--target-type", "worker, job, config, token or user"),
        ("--target-id", "To what"),
        ("--since", "From this time on: 2026-11-15T10:00:00Z, or 2h for the last two hours"),
        ("--until", "Up to this time"),
    ):
        listing.add_argument(flag, metavar="VALUE", help=help)
    listing.add_argument("--limit", type=typed(values.positive_count), default=50, metavar="N")
    listing.add_argument("--offset", type=typed(values.count), default=0, metavar="N")
    audit.verb("verify", "Check that no entry was changed or removed")


def _tokens(tree: Tree) -> None:
    tokens = tree.noun("tokens", "API tokens for people and programs")
    tokens.verb("list", "List API tokens")
    create = tokens.verb("create", "Create an API token, shown only once")
    create.add_argument("name", metavar="NAME")
    create.add_argument(
        "--permission",
        action="append",
        default=[],
        metavar="PERMISSION",
        required=True,
        help="For example queue.submit; * is all of them; may be repeated",
    )
    create.add_argument("--expires", type=typed(values.seconds), metavar="TIME", help="For example 90d")
    revoke = tokens.verb("revoke", "Revoke an API token")
    revoke.add_argument("id", metavar="ID|NAME")


def _users(tree: Tree) -> None:
    users = tree.noun("users", "People who log in to the console")
    users.verb("list", "List users")
    create = users.verb("create", "Create a user; prints a link to choose a password")
    create.add_argument("name", metavar="NAME")
    create.add_argument("--role", choices=ROLES, default="member", help="What they may do (default: member)")
    for verb, help in (
        ("disable", "Disable a user and end their sessions"),
        ("enable", "Let a disabled user log in again"),
        ("set-role", "Change what a user may do"),
        ("reset-password", "Print a link with which a user chooses a new password"),
    ):
        parser = users.verb(verb, help)
        parser.add_argument("user", metavar="NAME|ID")
        if verb == "set-role":
            parser.add_argument("role", choices=ROLES)
    users.verb("link", "Print the link that makes the first admin, while there is no user")


def _service(tree: Tree) -> None:
    """Each verb takes the options of the program that it is about."""
    service = tree.commands.add_parser(
        "service",
        help="Let systemd run a server or a worker",
        description="Let systemd start a server or a worker with the machine, and bring it back after a crash.",
    )
    add_help(service)
    service.set_defaults(run="", parser=service)
    verbs = service.add_subparsers(
        dest="verb", metavar="VERB", title="COMMANDS", parser_class=Parser, prog="simpletuner service"
    )
    for verb, run, help in (
        ("install", "install", "Write the unit, enable it and start it"),
        ("uninstall", "uninstall", "Stop it and remove the unit"),
        ("status", "status", "What systemd says of it"),
        ("print", "show", "Print the unit and change nothing"),
    ):
        parser = verbs.add_parser(verb, help=help, description=help)
        add_help(parser)
        parser.set_defaults(run="", parser=parser)
        roles = parser.add_subparsers(
            dest="role",
            metavar="ROLE",
            title="ROLES",
            parser_class=Parser,
            prog=f"simpletuner service {verb}",
        )
        for role, rows in (("server", SERVER), ("worker", WORKER)):
            _service_role(roles.add_parser(role, help=f"The {role}", description=help), run, role, rows)


def _service_role(parser: Parser, run: str, role: str, rows: tuple[Setting, ...]) -> None:
    parser.set_defaults(run=f"simpletuner_fleet.cli.service:{run}", parser=parser, role=role)
    if run in ("install", "uninstall"):
        parser.add_argument(
            "--root", metavar="DIR", help="For an image: write beneath this folder and start nothing"
        )
    if run in ("install", "show"):
        parser.add_argument(
            "--run-as", metavar="USER", help="Whom it runs as (default: who called sudo, or you)"
        )
        for row in rows:
            add_setting(parser, row)
        add_config_file(parser)
    add_help(parser)


def _rest(tree: Tree) -> None:
    tree.command("status", "simpletuner_fleet.cli.status:status", "Server, workers, queue on one screen")
    doctor = tree.command(
        "doctor", "simpletuner_fleet.cli.doctor:doctor", "Find out what is wrong; changes nothing"
    )
    doctor.add_argument(
        "what",
        nargs="?",
        choices=("server", "worker"),
        metavar="server|worker",
        help="Which role of this machine to look at (default: both)",
    )
    login = tree.command("login", "simpletuner_fleet.cli.login:login", "Remember a server and a token for it")
    login.add_argument("server", nargs="?", metavar="URL", help="The server (default: --url)")
    login.add_argument(
        "--token-file", metavar="FILE", help="Read the token from this file (default: standard input)"
    )
    logout = tree.command("logout", "simpletuner_fleet.cli.login:logout", "Forget a server's token")
    logout.add_argument("server", nargs="?", metavar="URL", help="The server (default: the current one)")
    tree.command("whoami", "simpletuner_fleet.cli.login:whoami", "Show whom the token belongs to")
    demo = tree.command(
        "demo", "simpletuner_fleet.cli.demo:demo", "Server, worker and a model that really trains, in one go"
    )
    demo.add_argument("--chaos", action="store_true", help="Kill the worker half-way and see the job go on")
    demo.add_argument(
        "--steps",
        type=typed(values.positive_count),
        default=2000,
        metavar="N",
        help="Training steps (default: 2000)",
    )
    demo.add_argument(
        "--open",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Open the console in a browser, where there is a screen (default: yes)",
    )
    demo.add_argument("--keep", action="store_true", help="Keep the folder with everything the demo made")
    tree.command("version", "simpletuner_fleet.cli.version:version", "Show the version")
    completion = tree.command(
        "completion", "simpletuner_fleet.cli.completion:completion", "Print a completion script"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
