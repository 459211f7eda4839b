"""Defects that only one of a thousand seeds showed: each must be noticed without them."""

from devtools.mutants.table.mutant import Mutant

MANY_SEEDS = ("tests/sim/test_found_by_many_seeds.py",)

RARE = (
    Mutant(
        "a-late-word-takes-gpus-back",
        "a report that comes late makes a trainer that has ended hold its GPUs again",
        "core/jobs/lifecycle.py",
        "    if has_left_its_gpus(job) and not finishing:\n        return NOTHING\n",
        "",
        MANY_SEEDS,
    ),
    Mutant(
        "a-cancellation-takes-gpus-back",
        "a job cancelled while its results are on their way holds its GPUs again",
        "core/jobs/job.py",
        " or job.state is _CANCELLING\n",
        "\n",
        MANY_SEEDS,
    ),
    Mutant(
        "a-deleted-worker-leaves-attempts",
        "attempts of a deleted worker live on, and nobody ever ends them",
        "orchestrator/workers/administer.py",
        '        for attempt in attempts:\n            give_up(transaction, attempt, "its worker was deleted")\n',
        "",
        MANY_SEEDS,
    ),
    Mutant(
        "an-old-offer-is-made-again",
        "an offer of the time of the backup is sent again, though its worker has run it since",
        "orchestrator/after_restore.py",
        "            if attempt.state is AttemptState.OFFERED:\n",
        "            if attempt.state is AttemptState.ENDED:\n",
        MANY_SEEDS,
    ),
    Mutant(
        "goes-on-without-a-lease-after-a-restore",
        "a trainer goes on whose job was given away after the backup",
        "core/jobs/reconcile.py",
        "    return listening and held.paused\n",
        "    return False\n",
        MANY_SEEDS,
    ),
    Mutant(
        "a-reservation-goes-with-its-step",
        "a worker that was reserved is offered to nobody after the step that let it go was run again",
        "engine/transaction.py",
        "        self.index.reserved_before = self._reserved_before or {}\n",
        "",
        MANY_SEEDS,
    ),
    Mutant(
        "a-recorded-end-is-not-read",
        "a trainer's end that its killed supervisor had recorded is told as a loss",
        "agent/guard/runner.py",
        '        return msgspec.json.decode((attempt_dir / "exit.json").read_bytes(), type=ExitRecord)\n',
        '        raise OSError("not read")\n',
        ("tests/agent/guard/test_runner.py",),
    ),
    Mutant(
        "an-edited-job-heads-two-lines",
        "a job whose request was edited goes on heading its former line, and keeps everybody there waiting",
        "core/placement/roster/lines.py",
        "        while line and self.entries.get(line[0][2]) is not line[0]:",
        "        while line and self.entries.get(line[0][2]) != line[0]:",
        ("tests/core/placement/roster/test_lines.py",),
    ),
    Mutant(
        "a-late-copy-leaves-an-older-agent-connecting",
        "an older agent with an open stream is called connecting for ever after a late copy of its registration",
        "core/workers/heartbeat.py",
        "    away = offline or late_copy or worker.connection is Connection.RECONNECTING\n",
        "    away = offline or worker.connection is Connection.RECONNECTING\n",
        ("tests/core/workers/test_heartbeat.py",),
    ),
    Mutant(
        "a-digest-is-enough",
        "a file of a dataset that somebody keeps to themselves is claimed by its digest",
        "store/memory/datasets.py",
        "            if ready and (dataset.visibility is Visibility.EVERYBODY or dataset.owner == claimant)\n",
        "            if ready\n",
        ("tests/attacks/test_member.py",),
    ),
)
