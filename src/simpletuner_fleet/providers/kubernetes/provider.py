"""Creates, lists and deletes machines in a Kubernetes cluster through the cluster's own API.

A Job has the machine's name, which is never used twice: a call that is made again meets what it made. It is deleted in
the foreground, so that it is listed until its pods are gone. Its Secret, which holds the one-time token, is made after it
and belongs to it, and so does the Service by which the pods of several nodes find each other: nothing is left behind,
whenever this process ends.
"""

import asyncio
import re
import uuid
from typing import Any, TypeVar

import msgspec

from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.core.provisioning.pool import NAME_BEGINS
from simpletuner_fleet.providers.contract import (
    CreatedMachine,
    MachineOrder,
    ProviderRefused,
    ProviderSurroundings,
    ProviderUnsure,
)
from simpletuner_fleet.providers.forms import insist
from simpletuner_fleet.providers.kubernetes.access import ClusterAccess, access_of
from simpletuner_fleet.providers.kubernetes.api import (
    CONFLICT,
    GONE,
    NOT_FOUND,
    KubernetesApi,
    KubernetesRefused,
    connected,
)
from simpletuner_fleet.providers.kubernetes.job import (
    CONTAINER,
    DNS_NAME,
    MACHINE,
    MANAGED_BY,
    NODES_KEY,
    OURS,
    TOKEN_KEY,
    TOKEN_VARIABLE,
    job_of,
    read_pod_settings,
    secret_of,
    service_of,
)
from simpletuner_fleet.providers.kubernetes.objects import (
    EVENTS,
    JOB,
    JOBS,
    PODS,
    Item,
    KubernetesJob,
    Listing,
    note_of_event,
    note_of_job,
    note_of_pod,
)
from simpletuner_fleet.providers.node_secret import new_node_secret
from simpletuner_fleet.providers.settings import LOG_BYTES, SettingsReader, declared_offer

Answer = TypeVar("Answer")
PAGE = 500
LISTS_BEGUN = 3
TRIED_EVERY_S = 60.0
STRICTLY = {"fieldValidation": "Strict"}
"""A cluster that does not know a field says so, instead of leaving out what the field says."""
OUR_LABEL = {"labelSelector": f"{MANAGED_BY}={OURS}"}
POD_NAME = re.compile(r"[a-z0-9.-]{1,253}")


class KubernetesProvider:
    settle_s = 30.0
    sweep_s = 10.0

    def __init__(self, surroundings: ProviderSurroundings) -> None:
        settings = SettingsReader(surroundings.pool)
        nodes = max(1, int(settings.number("nodes", 1)))
        self._offer = declared_offer(settings, "kubernetes", nodes)
        self._pod = read_pod_settings(settings, self._offer.gpus, nodes, surroundings.pool.request.boot_s)
        self._given = (settings.word("api"), settings.word("ca"))
        self._namespace = settings.word("namespace")
        settings.finish()
        insist("namespace", not self._namespace or bool(DNS_NAME.fullmatch(self._namespace)), "NAME")
        self._key = surroundings.key
        self._access: ClusterAccess | None = None
        self._tried_until = 0.0

    async def offers(self) -> list[MachineOffer]:
        """Returns the one kind of machine that the pool describes.

        The cluster is asked whether it would accept such a Job at all.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._tried_until:
            name, dry = f"{NAME_BEGINS}-dry-run", {"dryRun": "All", **STRICTLY}
            async with connected(await self._reached()) as api:
                await api.ask("POST", self._jobs(), dry, job_of(name, self._pod, {}))
                for kind, thing in self._belongings(name, "", str(uuid.uuid4())):
                    await api.ask("POST", self._core(kind), dry, thing)
            self._tried_until = now + TRIED_EVERY_S
        return [self._offer]

    async def create(self, order: MachineOrder) -> CreatedMachine:
        if not DNS_NAME.fullmatch(order.name):
            raise ProviderRefused(f"{order.name!r} is no name that Kubernetes takes")
        self._tried_until = 0.0
        async with connected(await self._reached()) as api:
            try:
                answer = await api.ask(
                    "POST", self._jobs(), STRICTLY, job_of(order.name, self._pod, order.environment)
                )
            except KubernetesRefused as error:
                if error.status != CONFLICT or error.reason != "AlreadyExists":
                    raise
                answer = await api.ask("GET", f"{self._jobs()}/{order.name}")
            await self._give_token(api, order, _decoded(answer, JOB))
        return CreatedMachine(provider_id=order.name, hourly_micros=self._offer.hourly_micros)

    async def _give_token(self, api: KubernetesApi, order: MachineOrder, job: KubernetesJob) -> None:
        """Creates the Secret with the token, and the Service.

        The Job exists by now, so no refusal from here on may say that nothing was made.
        """
        token = order.environment[TOKEN_VARIABLE]
        for kind, thing in self._belongings(order.name, token, job.metadata.uid):
            try:
                await api.ask("POST", self._core(kind), STRICTLY, thing)
            except ProviderRefused as error:
                if isinstance(error, KubernetesRefused) and error.reason == "AlreadyExists":
                    continue
                raise ProviderUnsure(f"its {thing['kind']} could not be made: {error}") from error

    def _belongings(self, name: str, token: str, job_uid: str) -> list[tuple[str, dict[str, Any]]]:
        """Returns the objects that are created after the Job, belong to it and are deleted with it.

        If they are created again, the first ones stay.
        """
        if self._pod.nodes == 1:
            return [("secrets", secret_of(name, {TOKEN_KEY: token}, job_uid))]
        values = {TOKEN_KEY: token, NODES_KEY: new_node_secret()}
        return [("services", service_of(name, job_uid)), ("secrets", secret_of(name, values, job_uid))]

    async def machines(self) -> list[ListedMachine]:
        try:
            async with connected(await self._reached()) as api:
                jobs = await self._listed(api, self._jobs(), JOBS, OUR_LABEL)
                notes = {job.metadata.name: note_of_job(job) for job in jobs}
                if any(job.runs and not job.spec.suspend for job in jobs):
                    notes |= await self._notes(api, jobs)
        except KubernetesRefused as error:
            raise ProviderUnsure(str(error)) from error
        return [
            ListedMachine(
                provider_id=job.metadata.name,
                name=job.metadata.name,
                runs=job.runs,
                hourly_micros=self._offer.hourly_micros,
                note=notes[job.metadata.name],
            )
            for job in jobs
        ]

    async def _notes(self, api: KubernetesApi, jobs: list[KubernetesJob]) -> dict[str, str]:
        """Returns, by machine, why its pod does not run or why it has none."""
        query = {**OUR_LABEL, "fieldSelector": "status.phase=Pending"}
        known = {job.metadata.name for job in jobs}
        pending = await self._listed(api, self._core("pods"), PODS, query)
        notes = {pod.machine: note for pod in pending if pod.machine in known and (note := note_of_pod(pod))}
        lacking = {job.metadata.name for job in jobs if job.lacks_pod}
        if lacking:
            failed = await self._events(api, "involvedObject.kind=Job,reason=FailedCreate")
            notes |= {name: note for name, note in failed.items() if name in lacking}
        return notes

    async def _events(self, api: KubernetesApi, chosen: str) -> dict[str, str]:
        """Returns events by object, or none where the role does not allow reading them: they only inform people."""
        try:
            events = await self._listed(api, self._core("events"), EVENTS, {"fieldSelector": chosen})
        except KubernetesRefused:
            return {}
        return {event.involved_object.name: note_of_event(event) for event in events}

    async def _listed(
        self,
        api: KubernetesApi,
        path: str,
        decoder: msgspec.json.Decoder[Listing[Item]],
        query: dict[str, str],
    ) -> list[Item]:
        """Lists all objects as they were at one moment.

        A list that expires between two of its pages is begun again.
        """
        for _ in range(LISTS_BEGUN):
            items: list[Item] = []
            seen: set[str] = set()
            following = ""
            try:
                while True:
                    asked = {**query, "limit": str(PAGE), **({"continue": following} if following else {})}
                    page = _decoded(await api.ask("GET", path, asked), decoder)
                    items += page.items
                    following = page.metadata.next
                    if not following:
                        return items
                    if following in seen:
                        raise ProviderUnsure("Kubernetes' list does not end")
                    seen.add(following)
            except KubernetesRefused as error:
                if error.status != GONE or not following:
                    raise
        raise ProviderUnsure("Kubernetes forgot its list before it was read to the end")

    async def destroy(self, provider_id: str) -> None:
        if not _is_ours(provider_id):
            return
        how = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        async with connected(await self._reached()) as api:
            try:
                await api.ask("DELETE", f"{self._jobs()}/{provider_id}", None, how)
            except KubernetesRefused as error:
                if error.status != NOT_FOUND:
                    raise

    async def boot_log(self, provider_id: str) -> str:
        """Returns what Kubernetes says about the machine's pods, then the end of what its worker printed."""
        if not _is_ours(provider_id):
            return ""
        async with connected(await self._reached()) as api:
            pods = await self._listed(
                api, self._core("pods"), PODS, {"labelSelector": f"{MACHINE}={provider_id}"}
            )
            lines = [note for pod in pods if (note := note_of_pod(pod))]
            if not pods:
                events = await self._events(api, f"involvedObject.kind=Job,involvedObject.name={provider_id}")
                lines = [*events.values()] or ["Kubernetes has made no pod for it"]
            for pod in pods:
                lines.append(await self._printed(api, pod.metadata.name))
        return "\n".join(lines)[-LOG_BYTES:]

    async def _printed(self, api: KubernetesApi, pod: str) -> str:
        if not POD_NAME.fullmatch(pod):
            return ""
        query = {"container": CONTAINER, "tailLines": "200", "limitBytes": str(LOG_BYTES)}
        try:
            answer = await api.ask("GET", f"{self._core('pods')}/{pod}/log", query)
        except KubernetesRefused as error:  # a container that never started has printed nothing
            return str(error)
        return answer.decode(errors="replace")

    async def _reached(self) -> ClusterAccess:
        """Finds the access when it is first needed: a pool's settings are checked before its secret is known."""
        if self._access is None:
            self._access = await asyncio.to_thread(access_of, self._key, *self._given)
        return self._access

    def _jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{self._where()}/jobs"

    def _core(self, kind: str) -> str:
        return f"/api/v1/namespaces/{self._where()}/{kind}"

    def _where(self) -> str:
        usual = self._access.namespace if self._access else ""
        return self._namespace or usual or "default"


def _is_ours(name: str) -> bool:
    return name.startswith(f"{NAME_BEGINS}-") and bool(DNS_NAME.fullmatch(name))


def _decoded(answer: bytes, decoder: msgspec.json.Decoder[Answer]) -> Answer:
    try:
        return decoder.decode(answer)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ProviderUnsure(f"Kubernetes answered with what is not its own: {error}") from error
