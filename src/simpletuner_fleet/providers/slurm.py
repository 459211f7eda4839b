"""Provides machines that are jobs of a Slurm cluster: each is one `sbatch` whose script is the worker.

Allocation and worker end together: when the worker ends, so does the allocation, and the worker is told of the
allocation's time limit early enough to save. Slurm is called by its own commands, as the server's user: they know what
a site allows, and stay the same over many versions. The one-time token goes to `sbatch` on its standard input, so no
list of processes shows it.
"""

import asyncio
import os
import re
import shlex
from contextlib import suppress
from pathlib import Path

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.core.provisioning.pool import NAME_BEGINS
from simpletuner_fleet.providers.commands import run_command
from simpletuner_fleet.providers.contract import (
    CreatedMachine,
    MachineOrder,
    ProviderRefused,
    ProviderSurroundings,
    ProviderUnsure,
)
from simpletuner_fleet.providers.settings import SettingsReader, declared_offer, end_of_file

COMMAND_TIMEOUT_S = 20.0
KILL_AFTER_S = 60.0
"""A worker that was asked to stop gives its job back before that."""
NOTICE_S = 120
NOTICE_USED = 0.9
"""Of that time a worker counts on so much: Slurm looks at its clock from time to time only."""
PASSED_ON = "PATH,HOME,USER,LANG"
"""Of the server's environment: whatever else a worker needs is in its script."""
OPTIONS = ("account", "partition", "qos", "constraint", "gres", "time", "mem")
UNSURE = ("timed out", "unable to contact", "zero bytes", "connection", "communication", "try again")
"""Beginnings of what Slurm says when nobody knows whether the controller has heard."""
ENDED = frozenset({"COMPLETING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"})
_PROGRAM = re.compile(r"[A-Za-z0-9_./+-]+")

SCRIPT = """#!/bin/sh
umask 077
{exports}
work="${{SLURM_TMPDIR:-${{TMPDIR:-/tmp}}}}/{name}"
{command} worker --work-dir "$work" &
worker=$!
trap 'kill -USR1 $worker' USR1
trap 'trap "" TERM; kill -TERM $worker' TERM
wait $worker
status=$?
while kill -0 $worker 2>/dev/null; do wait $worker; status=$?; done
rm -rf "$work"
exit $status
"""


class SlurmProvider:
    settle_s = 30.0
    sweep_s = 5.0

    def __init__(self, surroundings: ProviderSurroundings) -> None:
        if surroundings.pool.request.secret:
            raise Invalid("The provider 'slurm' takes no secret.", path="$.secret")
        settings = SettingsReader(surroundings.pool)
        self._offer = declared_offer(settings, "slurm")
        given = {name: settings.word(name) for name in OPTIONS}
        if self._offer.gpus and not given["gres"]:
            given["gres"] = f"gpu:{self._offer.gpus}"
        self._options = [f"--{name}={value}" for name, value in given.items() if value]
        self._options.append(f"--cpus-per-task={max(1, int(settings.number('cpus', 1)))}")
        self._notice_s = int(settings.number("notice_s", NOTICE_S))
        self._command = settings.word("command", "simpletuner")
        self._logs = settings.word("log_dir")
        config = settings.word("config")
        settings.finish()
        if not _PROGRAM.fullmatch(self._command):
            raise Invalid(
                "The provider's setting 'command' must be the path of a program.", path="$.settings"
            )
        if self._logs and not Path(self._logs).is_absolute():
            raise Invalid("The provider's setting 'log_dir' must be an absolute path.", path="$.settings")
        self._environment = {**surroundings.environment, **({"SLURM_CONF": config} if config else {})}
        self._asked_to_stop: dict[str, float] = {}

    async def offers(self) -> list[MachineOffer]:
        """Returns the one kind of machine that the pool describes.

        Slurm is asked whether it would accept such a job at all.
        """
        await self._say("sbatch", *self._options, "--test-only", script="#!/bin/sh\n")
        return [self._offer]

    async def create(self, order: MachineOrder) -> CreatedMachine:
        notice = {"SIMPLETUNER_END_NOTICE": f"{self._notice_s * NOTICE_USED:g}"}
        exports = "\n".join(
            f"export {name}={shlex.quote(value)}" for name, value in {**order.environment, **notice}.items()
        )
        script = SCRIPT.format(exports=exports, name=order.name, command=self._command)
        printed = await self._say(
            "sbatch",
            *self._options,
            *("--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", f"--export={PASSED_ON}"),
            f"--job-name={order.name}",
            f"--signal=B:USR1@{self._notice_s}",
            f"--output={Path(self._logs) / '%j.log' if self._logs else '/dev/null'}",
            script=script,
        )
        job_id = printed.strip().partition(";")[0]
        if not job_id.isdigit():
            raise ProviderUnsure(f"sbatch said {printed[:200]!r}, which is no job id")
        return CreatedMachine(provider_id=job_id, hourly_micros=self._offer.hourly_micros)

    async def machines(self) -> list[ListedMachine]:
        return [
            ListedMachine(
                provider_id=job_id,
                name=name,
                runs=state not in ENDED,
                hourly_micros=self._offer.hourly_micros,
            )
            for job_id, name, state in await self._queue()
        ]

    async def _queue(self) -> list[tuple[str, str, str]]:
        """Returns id, name and state of each of this user's jobs whose name begins like ours.

        Without `--all`, jobs in partitions that the site hides would seem to be gone.
        """
        printed = await self._say(
            "squeue", "--all", "--noheader", f"--user={os.getuid()}", "--format=%i|%T|%j"
        )
        rows = [line.strip().split("|", 2) for line in printed.splitlines() if line.count("|") >= 2]
        return [(job_id, name, state) for job_id, state, name in rows if name.startswith(f"{NAME_BEGINS}-")]

    async def destroy(self, provider_id: str) -> None:
        """Ends the job.

        A running worker is signalled first, and only the worker: a trainer that Slurm ended at the same time could not
        save.
        """
        states = {job_id: state for job_id, _, state in await self._queue()}
        state, now = states.get(provider_id), asyncio.get_running_loop().time()
        if state is None:
            self._asked_to_stop.pop(provider_id, None)
            return
        asked_at = self._asked_to_stop.get(provider_id)
        if state == "RUNNING" and asked_at is None:
            await self._cancel("--batch", "--signal=TERM", provider_id)
            self._asked_to_stop[provider_id] = (
                now  # only now: who never heard it could not save before it is killed
            )
        elif state != "RUNNING" or (asked_at is not None and now - asked_at >= KILL_AFTER_S):
            await self._cancel(provider_id)

    async def _cancel(self, *arguments: str) -> None:
        with suppress(ProviderRefused):  # it has just ended; the list will tell
            await self._say("scancel", *arguments)

    async def boot_log(self, provider_id: str) -> str:
        if not self._logs or not provider_id.isdigit():
            return ""
        return await asyncio.to_thread(end_of_file, Path(self._logs) / f"{provider_id}.log")

    async def _say(self, *command: str, script: str = "") -> str:
        """Returns what the command printed."""
        end = await run_command(command, self._environment, script, within_s=COMMAND_TIMEOUT_S)
        if end.status == 0:
            return end.printed
        if end.status < 0 or any(part in end.complained.lower() for part in UNSURE):
            raise ProviderUnsure(end.complained)
        raise ProviderRefused(end.complained)
