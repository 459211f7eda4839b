"""Lists every reason for which a job waits in one table; its sentences have named blanks for translation."""

from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.core.placement.matching import Refusal
from simpletuner_fleet.core.placement.reason_codes import Code as Code
from simpletuner_fleet.core.placement.reason_codes import Kind as Kind
from simpletuner_fleet.core.placement.reason_codes import Reason as Reason

_SEE_STATUS = N_("check worker status:  simpletuner workers list")
_SEE_CONNECTED = N_("verify workers are connected and IDLE")
_SEE_ALL = (_SEE_STATUS, _SEE_CONNECTED)
_RAISE_COST_LIMIT = N_("Raise the limit: simpletuner jobs edit JOB --max-cost AMOUNT")

REASONS: dict[str, Reason] = {
    reason.code: reason
    for reason in (
        Reason(
            code=Code.NO_WORKERS,
            kind=Kind.ADMIN,
            sentence=N_("no worker has joined yet"),
            label=N_("no worker has joined"),
            refusals=(Refusal.NOT_REMOTE,),
            impossible=True,
            fixes=(N_("Create a worker: simpletuner workers create NAME"),),
            advice=(N_("create a worker and start it:  simpletuner workers create NAME"), *_SEE_ALL),
        ),
        Reason(
            code=Code.KEPT_FOR_OTHERS,
            kind=Kind.ADMIN,
            sentence=N_("every worker is reserved for other people or teams"),
            label=N_("reserved for other people or teams"),
            refusals=(Refusal.KEPT_FOR_OTHERS,),
            impossible=True,
            fixes=(
                N_(
                    "Submit the job for a team that may use them, or ask an administrator: simpletuner pools set POOL "
                    "--team NAME"
                ),
            ),
            advice=(
                N_("submit it for a team that may use them:  simpletuner jobs submit CONFIG --team NAME"),
                N_("or ask an administrator:  simpletuner pools set POOL --team NAME"),
            ),
        ),
        Reason(
            code=Code.LABELS_MATCH_NONE,
            kind=Kind.CHANGE,
            sentence=N_("no worker has the required label %(asked)s"),
            label=N_("no worker has the required labels"),
            refusals=(Refusal.LABELS_DIFFER,),
            impossible=True,
            fixes=(
                N_("Check for a label mismatch between the job and the workers: simpletuner workers list"),
                N_("Add the label to a worker: simpletuner workers set-labels NAME KEY=VALUE"),
            ),
            advice=(
                N_("check for label mismatch between job and workers:  simpletuner workers list"),
                N_("give a worker the label:  simpletuner workers set-labels NAME KEY=VALUE"),
            ),
        ),
        Reason(
            code=Code.NODES_MATCH_NONE,
            kind=Kind.CHANGE,
            sentence=N_("the job asks for workers of %(nodes)s nodes; the largest has %(largest_nodes)s"),
            label=N_("no worker has this number of nodes"),
            refusals=(Refusal.NODES_DIFFER,),
            impossible=True,
            fixes=(
                N_(
                    "Ask for another number of nodes, or start such a worker: simpletuner worker --nodes %(nodes)s."
                ),
            ),
            advice=(
                N_(
                    "a job for one node runs on workers of one node, a job for several on a worker with as many"
                ),
            ),
        ),
        Reason(
            code=Code.GPU_COUNT_TOO_LARGE,
            kind=Kind.CHANGE,
            sentence=N_("too few GPUs: the job needs %(gpus)s, the largest worker has %(largest)s"),
            label=N_("no worker has enough GPUs"),
            refusals=(Refusal.TOO_FEW_GPUS,),
            impossible=True,
            fixes=(
                N_("Adjust --num_processes in the training config: the largest worker allows %(largest)s."),
            ),
            advice=(
                N_("the job requires more GPUs than any worker has"),
                N_("adjust --num_processes in the training config"),
            ),
        ),
        Reason(
            code=Code.VRAM_TOO_SMALL,
            kind=Kind.CHANGE,
            sentence=N_("too little GPU memory: the job needs %(min_vram_gb)s GB per GPU (GPUs: %(gpus)s)"),
            label=N_("no GPU has enough memory"),
            refusals=(Refusal.TOO_LITTLE_VRAM,),
            impossible=True,
            fixes=(N_("Ask for at most %(largest_gb)s GB of GPU memory."),),
            advice=(N_("ask for less memory with --min-vram, or add a worker with larger GPUs"),),
        ),
        Reason(
            code=Code.WRONG_ACCELERATOR,
            kind=Kind.CHANGE,
            sentence=N_("no worker has enough accelerators (%(gpus)s) of kind '%(accelerator)s'"),
            label=N_("another kind of accelerator"),
            refusals=(Refusal.WRONG_ACCELERATOR,),
            impossible=True,
            advice=(N_("leave the accelerator out of the config's resources, or add such a worker"),),
        ),
        Reason(
            code=Code.TRAINER_MISSING,
            kind=Kind.ADMIN,
            sentence=N_("no worker can run the trainer '%(trainer)s'"),
            label=N_("no worker has the trainer"),
            refusals=(Refusal.TRAINER_MISSING,),
            impossible=True,
            fixes=(N_("Install the trainer '%(trainer)s' on a worker and restart its agent."),),
            advice=(N_("install the trainer on a worker and restart its agent"),),
        ),
        Reason(
            code=Code.DATA_TOO_LARGE,
            kind=Kind.ADMIN,
            sentence=N_(
                "the job's datasets total %(data_gb)s GB; the largest data cache of a matching worker is "
                "%(largest_data_gb)s GB"
            ),
            label=N_("no worker has room for the datasets"),
            refusals=(Refusal.NO_ROOM_FOR_DATA,),
            impossible=True,
            fixes=(N_("Start a matching worker with a larger --data-cache-gb."),),
            advice=(N_("start a worker with a larger data cache:  simpletuner worker --data-cache-gb GB"),),
        ),
        Reason(
            code=Code.NOT_FOR_TEAM,
            kind=Kind.ADMIN,
            sentence=N_("the rules of the job's team allow none of the workers that fit"),
            label=N_("no fitting worker is for the team"),
            refusals=(Refusal.NOT_FOR_TEAM,),
            impossible=True,
            fixes=(N_("Ask a lead or an administrator to change the rules: simpletuner teams list"),),
            advice=(N_("see what the team may use:  simpletuner teams list"),),
        ),
        Reason(
            code=Code.TOO_DEAR,
            kind=Kind.CHANGE,
            sentence=N_(
                "every worker that fits costs more than the job allows: %(worker)s costs %(price)s an hour, and the job "
                "allows %(allowed)s"
            ),
            label=N_("every worker costs too much"),
            refusals=(Refusal.TOO_DEAR,),
            impossible=True,
            fixes=(N_("Allow more: simpletuner jobs edit JOB --max-price AMOUNT"),),
            advice=(N_("allow more:  simpletuner jobs edit JOB --max-price AMOUNT"),),
        ),
        Reason(
            code=Code.PRICE_UNKNOWN,
            kind=Kind.ADMIN,
            sentence=N_(
                "the job has a cost limit, and the price of matching workers is not known: %(unpriced)s"
            ),
            label=N_("no matching worker has a known price"),
            refusals=(Refusal.PRICE_UNKNOWN,),
            impossible=True,
            fixes=(
                N_(
                    "Set the price of a GPU per hour, 0 where it costs nothing: simpletuner prices worker NAME 0"
                ),
                N_("Remove the limit: simpletuner jobs edit JOB --max-cost none"),
            ),
            advice=(
                N_(
                    "set the price of a GPU per hour, 0 where it costs nothing:  simpletuner prices worker NAME 0"
                ),
            ),
        ),
        Reason(
            code=Code.COST_LIMIT,
            kind=Kind.CHANGE,
            sentence=N_(
                "%(left)s is left of the job's cost limit, which does not pay for %(least_s)s s on the cheapest matching "
                "worker: %(worker)s, %(price)s an hour"
            ),
            label=N_("the job's cost limit is reached"),
            refusals=(Refusal.COST_LIMIT,),
            impossible=True,
            fixes=(_RAISE_COST_LIMIT,),
            advice=(N_("raise the limit:  simpletuner jobs edit JOB --max-cost AMOUNT"),),
        ),
        Reason(
            code=Code.PATH_NOT_GRANTED,
            kind=Kind.ADMIN,
            sentence=N_("no fitting worker grants the paths that the job names"),
            label=N_("no worker grants the paths"),
            refusals=(Refusal.NOT_GRANTED,),
            impossible=True,
            fixes=(N_("Start a matching worker that grants them: simpletuner worker --job-path FOLDER:ro"),),
            advice=(N_("start a worker that grants them:  simpletuner worker --job-path FOLDER:ro"),),
        ),
        Reason(
            code=Code.ALL_MATCHING_BUSY,
            kind=Kind.WAIT,
            sentence=N_("all matching workers are busy"),
            label=N_("matching workers are busy"),
            refusals=(Refusal.BUSY, Refusal.HELD_ELSEWHERE),
            advice=(_SEE_STATUS, _SEE_CONNECTED, N_("check for label mismatch between job and workers")),
        ),
        Reason(
            code=Code.ALL_MATCHING_OFFLINE,
            kind=Kind.ADMIN,
            sentence=N_("all matching workers are offline"),
            label=N_("matching workers are offline"),
            refusals=(Refusal.OFFLINE,),
            fixes=(N_("Start a matching worker: simpletuner workers list --status offline"),),
            advice=(_SEE_STATUS, _SEE_CONNECTED),
            trouble="E_HEARTBEAT_TIMEOUT",
        ),
        Reason(
            code=Code.ALL_MATCHING_RECONNECTING,
            kind=Kind.WAIT,
            sentence=N_("%(worker)s lost its connection %(ago_s)s s ago"),
            label=N_("matching workers are reconnecting"),
            refusals=(Refusal.RECONNECTING,),
            fixes=(N_("Wait for it to reconnect, or check the machine and network of %(worker)s."),),
            advice=(_SEE_STATUS, N_("check the worker's machine and network if it does not reconnect")),
        ),
        Reason(
            code=Code.ALL_MATCHING_DRAINING,
            kind=Kind.ADMIN,
            sentence=N_("all matching workers are draining"),
            label=N_("matching workers are draining"),
            refusals=(Refusal.DRAINING,),
            fixes=(N_("Put a draining worker back to work: simpletuner workers resume NAME"),),
            advice=(N_("put one back to work:  simpletuner workers resume NAME"), _SEE_STATUS),
        ),
        Reason(
            code=Code.ALL_MATCHING_INTERRUPTED,
            kind=Kind.ADMIN,
            sentence=N_("all matching workers run on machines that are about to be taken away"),
            label=N_("matching machines are being taken away"),
            refusals=(Refusal.INTERRUPTED,),
            fixes=(N_("Start another matching worker, or let a pool bring one: simpletuner pools list"),),
            advice=(
                N_("start another worker, or let a pool bring one:  simpletuner pools list"),
                _SEE_STATUS,
            ),
        ),
        Reason(
            code=Code.ALL_MATCHING_SET_ASIDE,
            kind=Kind.ADMIN,
            sentence=N_("all matching workers failed to start their last jobs and are set aside for a while"),
            label=N_("matching workers are set aside"),
            refusals=(Refusal.SET_ASIDE,),
            fixes=(
                N_(
                    "See what they failed to start, fix it, and put one back to work: simpletuner workers resume NAME"
                ),
            ),
            advice=(
                N_("see what is wrong with them:  simpletuner workers list"),
                N_("put one back to work:  simpletuner workers resume NAME"),
            ),
        ),
        Reason(
            code=Code.ALL_MATCHING_NOT_LISTENING,
            kind=Kind.WAIT,
            sentence=N_(
                "%(worker)s takes no job for the moment: it gave one back, left an offer unanswered, lost its connection or "
                "is about to leave; if it stays, it gets jobs again with its next heartbeat"
            ),
            label=N_("matching workers take no job just now"),
            refusals=(Refusal.NOT_LISTENING,),
            fixes=(N_("Wait for its next heartbeat; if nothing changes, check the log of %(worker)s."),),
            advice=(_SEE_STATUS, N_("check the worker's log if nothing changes")),
        ),
        Reason(
            code=Code.ALL_MATCHING_UNUSABLE,
            kind=Kind.ADMIN,
            sentence=N_("the GPUs of all matching workers are unhealthy or in use by another program"),
            label=N_("matching GPUs are unusable"),
            refusals=(Refusal.UNUSABLE,),
            fixes=(
                N_(
                    "Check with nvidia-smi on the workers what is using the GPUs, or whether they need a reset."
                ),
            ),
            advice=(
                N_("check what is using the GPUs on the workers, or whether they need a reset:  nvidia-smi"),
            ),
        ),
        Reason(
            code=Code.BEHIND_OTHERS,
            kind=Kind.WAIT,
            sentence=N_("other jobs are ahead"),
            label=N_("other jobs come first"),
            advice=(N_("see the queue:  simpletuner jobs list --status queued"),),
        ),
        Reason(
            code=Code.OVER_SHARE,
            kind=Kind.WAIT,
            sentence=N_(
                "its team has had %(used_percent)s %% of what was used of late, and its share is %(share_percent)s %%: "
                "teams that have used less of theirs go first (%(teams_ahead)s)"
            ),
            label=N_("the team is over its share"),
            advice=(N_("see the teams and their weights:  simpletuner teams list"),),
        ),
        Reason(
            code=Code.HELD_AFTER_RESTORE,
            kind=Kind.WAIT,
            sentence=N_(
                "the server was restored from a backup: nothing is placed for another %(wait_s)s s, until workers have told "
                "what they run or their leases have ended"
            ),
            label=N_("held after a restore"),
            advice=(
                N_("wait: the job may run already, on a worker that has not been heard since the restore"),
            ),
        ),
        Reason(
            code=Code.SETTING_UNREADABLE,
            kind=Kind.ADMIN,
            sentence=N_(
                "nobody knows whether the job may start: the stored setting cannot be read (%(settings)s)"
            ),
            label=N_("a setting cannot be read"),
            fixes=(
                N_(
                    "Ask an administrator to restore it from a backup, or to delete it and set it anew: "
                    "simpletuner doctor server"
                ),
            ),
        ),
        Reason(
            code=Code.RETRY_BACKOFF,
            kind=Kind.WAIT,
            sentence=N_("waits %(wait_s)s s before the next attempt"),
            label=N_("waiting before the next attempt"),
        ),
        Reason(
            code=Code.START_TIME,
            kind=Kind.WAIT,
            sentence=N_("starts at %(starts)s or later"),
            label=N_("start time"),
        ),
        Reason(
            code=Code.APPROVAL_REQUIRED,
            kind=Kind.ADMIN,
            sentence=N_("waits for approval"),
            label=N_("waits for approval"),
        ),
        Reason(
            code=Code.DEPENDENCY,
            kind=Kind.WAIT,
            sentence=N_("waits for %(depends_on)s"),
            label=N_("waits for another job"),
        ),
        Reason(
            code=Code.QUOTA_USER,
            kind=Kind.WAIT,
            sentence=N_("the limit of running jobs is reached"),
            label=N_("the user's job limit is reached"),
        ),
        Reason(
            code=Code.QUOTA_TEAM,
            kind=Kind.WAIT,
            sentence=N_("the team's limit of running jobs is reached"),
            label=N_("the team's limit is reached"),
        ),
        Reason(
            code=Code.QUOTA,
            kind=Kind.WAIT,
            sentence=N_(
                "the quota %(quota)s is reached (%(kind)s, %(whose)s): %(used)s of %(ceiling)s until a job of it ends"
            ),
            label=N_("a quota is reached"),
            fixes=(N_("See what is used and what is left: simpletuner quotas mine"),),
            advice=(N_("see what is used and what is left:  simpletuner quotas mine"),),
        ),
        Reason(
            code=Code.QUOTA_GLOBAL,
            kind=Kind.WAIT,
            sentence=N_("the limit of running jobs is reached"),
            label=N_("the fleet's job limit is reached"),
        ),
        Reason(
            code=Code.LOCAL_GPU_BUSY,
            kind=Kind.WAIT,
            sentence=N_("the orchestrator's own GPUs are busy"),
            label=N_("the server's own GPUs are busy"),
        ),
        Reason(
            code=Code.LOCAL_NO_GPU,
            kind=Kind.CHANGE,
            sentence=N_("the orchestrator itself has no suitable GPU"),
            label=N_("the server has no suitable GPU"),
            refusals=(Refusal.NOT_LOCAL,),
            impossible=True,
            fixes=(N_("Submit with target 'worker' or 'auto', or start the server with --local."),),
            advice=(N_("submit with --target worker or --target auto"),),
        ),
        Reason(
            code=Code.WAITING_FOR_MACHINE,
            kind=Kind.WAIT,
            sentence=N_(
                "waiting for a machine of the pool %(pool)s: %(provider)s, %(machine)s, %(price)s an hour, on its way "
                "for %(since_s)s s"
            ),
            label=N_("a machine is on its way"),
        ),
        Reason(
            code=Code.MACHINE_CEILING,
            kind=Kind.ADMIN,
            sentence=N_(
                "no machine is started: the pool %(pool)s has reached its limit (%(ceiling)s); the cheapest "
                "machine that fits costs %(price)s an hour"
            ),
            label=N_("a pool's limit is reached"),
            fixes=(N_("Raise the pool's limits: simpletuner pools set %(pool)s --help"),),
        ),
        Reason(
            code=Code.MACHINE_TOO_DEAR,
            kind=Kind.CHANGE,
            sentence=N_(
                "no machine is started: the cheapest that fits costs %(price)s an hour in the pool %(pool)s, and the "
                "job allows %(allowed)s"
            ),
            label=N_("a machine costs more than the job allows"),
            fixes=(N_("Submit it with a higher --max-price."),),
        ),
        Reason(
            code=Code.MACHINE_COST_LIMIT,
            kind=Kind.CHANGE,
            sentence=N_(
                "no machine is started: %(left)s is left of the job's cost limit, and the cheapest machine that fits costs "
                "%(price)s an hour in the pool %(pool)s"
            ),
            label=N_("a machine costs more than is left"),
            fixes=(_RAISE_COST_LIMIT,),
        ),
        Reason(
            code=Code.NO_MACHINE_OFFERED,
            kind=Kind.ADMIN,
            sentence=N_(
                "no machine is started: the pool %(pool)s is offered none that fits (GPUs: %(gpus)s, memory of each: "
                "%(min_vram_gb)s GB or more)"
            ),
            label=N_("no pool is offered a fitting machine"),
            fixes=(N_("See what is offered: simpletuner offers %(pool)s"),),
        ),
        Reason(
            code=Code.MACHINES_FAILED,
            kind=Kind.ADMIN,
            sentence=N_(
                "no machine is started: the last ones of the pool %(pool)s never joined; it tries again in "
                "%(wait_s)s s"
            ),
            label=N_("a pool's machines never joined"),
            fixes=(N_("See what happened: simpletuner machines list --all"),),
        ),
        Reason(
            code=Code.MACHINE_UNREADABLE,
            kind=Kind.ADMIN,
            sentence=N_(
                "no machine is started: one that may be of the pool %(pool)s cannot be read, so nobody knows which "
                "limit a further one would pass"
            ),
            label=N_("a stored machine cannot be read"),
            fixes=(N_("Ask an administrator to restore it from a backup: simpletuner doctor server"),),
        ),
        Reason(
            code=Code.ASKING_FOR_MACHINE,
            kind=Kind.WAIT,
            sentence=N_("no worker fits: the pool %(pool)s is being asked for a machine"),
            label=N_("a pool is being asked for a machine"),
        ),
        Reason(
            code=Code.NOT_WAITING,
            kind=Kind.WAIT,
            sentence=N_("the job is %(state)s"),
            label=N_("starts now"),
        ),
    )
}
IMPOSSIBLE = frozenset(reason.code for reason in REASONS.values() if reason.impossible)
CODE_OF_REFUSAL = {refusal: reason.code for reason in REASONS.values() for refusal in reason.refusals}
