"""Machines that are Jobs of a cluster: our own server, strict by Kubernetes' published schemas. No real cluster."""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.provisioning.offers import ListedMachine
from simpletuner_fleet.providers.contract import (
    MachineOrder,
    ProviderRefused,
    ProviderSurroundings,
    ProviderUnsure,
)
from simpletuner_fleet.providers.kubernetes.access import access_of
from simpletuner_fleet.providers.kubernetes.provider import KubernetesProvider
from tests.core.provisioning.provisioning_kit import a_pool, an_offer
from tests.providers.kubernetes.cluster import NAMESPACE, TOKEN, Cluster, cluster_at
from tests.providers.kubernetes.schema import faults

NAME = "stf-f1-m1"
JOINING = {"SIMPLETUNER_ORCHESTRATOR_URL": "https://fleet.example", "SIMPLETUNER_WORKER_TOKEN": "jt_once"}
IMAGE = {"image": "registry.example/simpletuner-worker:1"}
UNUSED = httpx2.AsyncClient()
"""A cluster has authorities of its own."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_at(tmp_path) as made:
        yield made


def provider_of(key: str | None, **settings: str) -> KubernetesProvider:
    return KubernetesProvider(
        ProviderSurroundings(
            pool=a_pool(provider="kubernetes", secret="cluster", settings={**IMAGE, **settings}),
            key=key,
            folder=Path("/nowhere"),
            environment={},
            http=UNUSED,
        )
    )


def order(name: str = NAME) -> MachineOrder:
    return MachineOrder(name=name, offer=an_offer(), environment=JOINING)


async def shown(provider: KubernetesProvider) -> list[ListedMachine]:
    return await provider.machines()


async def test_a_machine_is_a_job_with_its_token_apart_and_both_go_together(cluster: Cluster) -> None:
    provider = provider_of(cluster.kubeconfig(), gpus="2", gpu_name="A100", vram_gb="80", price="1.5")
    (offer,) = await provider.offers()
    assert (offer.gpus, offer.hourly_micros) == (2, 1_500_000)
    assert cluster.objects["jobs"] == cluster.objects["secrets"] == {}, "a dry run makes nothing"
    assert (await provider.create(order())).provider_id == NAME
    job = cluster.objects["jobs"][NAME]
    assert faults({**job, "metadata": {"name": NAME}}) == []
    assert job["metadata"]["labels"]["simpletuner-fleet/orchestrator"] == "f1"
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["backoffLimit"], pod["restartPolicy"], spec["suspend"]) == (0, "Never", False)
    assert spec["activeDeadlineSeconds"] == 900 + 168 * 3600
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert container["command"] == ["simpletuner", "worker"]
    secret = cluster.objects["secrets"][NAME]
    assert base64.b64decode(secret["data"]["token"]) == b"jt_once"
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert "jt_once" not in json.dumps(job)
    cluster.control()
    other = provider_of(cluster.kubeconfig())
    assert [(one.name, one.runs, one.note) for one in await shown(other)] == [(NAME, True, "")]
    await other.destroy(NAME)
    assert [(one.name, one.runs) for one in await shown(other)] == [(NAME, False)], "its pod is still there"
    await other.destroy(NAME)
    cluster.collect()
    assert await shown(other) == []
    assert cluster.objects["secrets"] == cluster.objects["pods"] == {}
    await other.destroy(NAME)


async def test_a_machine_of_several_nodes_is_an_indexed_job_whose_pods_find_each_other(
    cluster: Cluster,
) -> None:
    provider = provider_of(cluster.kubeconfig(), nodes="2", gpus="16", price="30", queue="vision")
    (offer,) = await provider.offers()
    assert (offer.nodes, offer.gpus, offer.hourly_micros) == (2, 16, 30_000_000)
    assert not any(cluster.objects.values()), "a dry run makes nothing"
    await provider.create(order())
    job = cluster.objects["jobs"][NAME]
    assert faults({**job, "metadata": {"name": NAME, "labels": job["metadata"]["labels"]}}) == []
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completionMode"], spec["parallelism"], spec["completions"]) == ("Indexed", 2, 2)
    assert spec["backoffLimit"] == 0, "one pod that fails ends them all"
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    service, secret = cluster.objects["services"][NAME], cluster.objects["secrets"][NAME]
    assert service["spec"]["clusterIP"] == "None"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["SIMPLETUNER_NODE_OF"] == f"{NAME}-0.{NAME}:{service['spec']['ports'][0]['port']}"
    assert variables["SIMPLETUNER_WORKER_NODES"] == "2"
    owners = [thing["metadata"]["ownerReferences"][0]["uid"] for thing in (service, secret)]
    assert owners == [job["metadata"]["uid"]] * 2
    shared = base64.b64decode(secret["data"]["nodes"]).decode()
    assert "PRIVATE KEY" in shared
    assert "PRIVATE KEY" not in json.dumps(job)
    await provider.create(order())
    assert cluster.objects["secrets"][NAME] == secret, "a call that is made again changes no secret"
    await provider.destroy(NAME)
    cluster.collect()
    assert not any(cluster.objects[kind] for kind in ("jobs", "pods", "secrets", "services"))


async def test_without_the_right_to_make_services_there_is_no_machine_of_several_nodes(
    cluster: Cluster,
) -> None:
    provider = provider_of(cluster.kubeconfig(), nodes="2", gpus="2")
    cluster.allowed.discard(("create", "services"))
    with pytest.raises(ProviderRefused, match="403"):
        await provider.offers()
    with pytest.raises(ProviderUnsure, match="its Service could not be made"):
        await provider.create(order())


async def test_what_the_pool_says_of_its_pods_is_in_the_job_and_the_pod_is_restricted(
    cluster: Cluster,
) -> None:
    provider = provider_of(
        cluster.kubeconfig(),
        queue="vision",
        node_selector="pool=gpu, nvidia.com/gpu.product=A100",
        tolerations="nvidia.com/gpu:NoSchedule,team=vision,spot",
        image_pull_secret="regcred",
        service_account="trainer",
        priority_class="low",
        runtime_class="nvidia",
        gpus="1",
        gpu_resource="amd.com/gpu",
        cpus="7.5",
        memory_gb="64",
        disk_gb="200",
        shm_gb="16",
        grace_s="60",
        max_hours="1",
        run_as="1000",
        command="/opt/fleet/bin/simpletuner",
    )
    await provider.create(order())
    job = cluster.objects["jobs"][NAME]
    assert faults({**job, "metadata": {"name": NAME, "labels": job["metadata"]["labels"]}}) == []
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "vision"
    assert job["spec"]["suspend"] is True
    assert job["spec"]["activeDeadlineSeconds"] == 900 + 3600
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "gpu", "nvidia.com/gpu.product": "A100"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "vision"},
        {"key": "spot", "operator": "Exists"},
    ]
    assert (pod["serviceAccountName"], pod["priorityClassName"], pod["runtimeClassName"]) == (
        "trainer",
        "low",
        "nvidia",
    )
    assert pod["imagePullSecrets"] == [{"name": "regcred"}]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 1000
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"] == {
        "amd.com/gpu": "1",
        "memory": "64000M",
        "cpu": "7500m",
        "ephemeral-storage": "200000M",
    }
    (listed,) = await shown(provider)
    assert listed.note == "Suspended: the queue vision has not admitted it yet"


async def test_what_keeps_a_pod_from_running_is_said(cluster: Cluster) -> None:
    provider = provider_of(cluster.kubeconfig())

    async def note() -> str | None:
        (listed,) = await provider.machines()
        return listed.note

    await provider.create(order())
    cluster.no_pods = "pods is forbidden: exceeded quota: gpus"
    cluster.control()
    assert await note() == "FailedCreate: pods is forbidden: exceeded quota: gpus"
    assert "exceeded quota" in await provider.boot_log(NAME)
    cluster.allowed.discard(("list", "events"))
    assert await note() == "", "events are for people alone"
    assert await provider.boot_log(NAME) == "Kubernetes has made no pod for it"
    cluster.no_pods = ""
    cluster.control()
    status = cluster.pod(NAME)["status"]
    status["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
    ]
    assert await note() == "Unschedulable: 0/3 nodes: no GPU"
    status["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    status["containerStatuses"] = [{"state": {"waiting": {"reason": "ContainerCreating"}}}]
    assert await note() == ""
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}
    status["containerStatuses"] = [{"state": {"waiting": waiting}}]
    assert await note() == 'ImagePullBackOff: Back-off pulling image "x"'
    assert "waiting to start" in await provider.boot_log(NAME)
    status["containerStatuses"] = [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]
    status["phase"] = "Failed"
    cluster.logs[f"{NAME}-x7k2p"] = "the end\n"
    cluster.end(NAME, "Failed", reason="BackoffLimitExceeded", message="Job has reached the limit")
    (listed,) = await provider.machines()
    assert (listed.runs, listed.note) == (False, "BackoffLimitExceeded: Job has reached the limit")
    assert await provider.boot_log(NAME) == "OOMKilled (exit 137)\nthe end\n"


@pytest.mark.parametrize("after", ["lost", "500", "proxy"])
async def test_an_answer_that_is_lost_leaves_open_what_was_made_and_the_list_tells(
    cluster: Cluster, after: str
) -> None:
    provider = provider_of(cluster.kubeconfig())
    cluster.after = after
    with pytest.raises(ProviderUnsure):
        await provider.create(order())
    assert [one.name for one in await shown(provider)] == [NAME]
    await provider.create(order())
    assert len(cluster.objects["jobs"]) == 1, "a call that is made again meets what it made"
    assert NAME in cluster.objects["secrets"]
    await provider.create(order())


async def test_a_no_of_its_own_means_that_nothing_was_made_but_not_once_the_job_is_there(
    cluster: Cluster,
) -> None:
    provider = provider_of(cluster.kubeconfig())
    cluster.allowed.discard(("create", "secrets"))
    with pytest.raises(ProviderRefused, match="403 Forbidden"):
        await provider.offers()
    with pytest.raises(ProviderUnsure, match="its Secret could not be made"):
        await provider.create(order())
    cluster.allowed.discard(("create", "jobs"))
    with pytest.raises(ProviderRefused, match="Its role does not allow that"):
        await provider.create(order("stf-f1-m2"))
    cluster.allowed.discard(("list", "jobs"))
    with pytest.raises(ProviderUnsure, match="403"):
        await provider.machines()
    with pytest.raises(ProviderRefused, match="no name that Kubernetes takes"):
        await provider.create(order("stf-f1-M_1"))
    stranger = provider_of(cluster.kubeconfig(token="another"))
    with pytest.raises(ProviderRefused, match=r"401 Unauthorized.*store a new one"):
        await stranger.offers()


async def test_it_waits_as_long_as_a_busy_server_asks_for_and_then_says_so(cluster: Cluster) -> None:
    provider = provider_of(cluster.kubeconfig())
    cluster.busy = 1
    await provider.create(order())
    assert NAME in cluster.objects["jobs"]
    cluster.busy = 3
    with pytest.raises(ProviderRefused, match="429"):
        await provider.create(order("stf-f1-m2"))
    assert "stf-f1-m2" not in cluster.objects["jobs"]


async def test_a_list_is_whole_or_none(cluster: Cluster) -> None:
    provider = provider_of(cluster.kubeconfig())
    names = [f"stf-f1-m{number}" for number in range(5)]
    for name in names:
        await provider.create(order(name))
    cluster.objects["jobs"]["backup"] = {
        "metadata": {"name": "backup", "labels": {}},
        "spec": {},
        "status": {},
    }
    cluster.page_limit = 2
    cluster.lists_forgotten = 1
    assert [one.name for one in await shown(provider)] == names, "begun again, and nobody else's Job is in it"
    cluster.lists_forgotten = 99
    with pytest.raises(ProviderUnsure, match="forgot its list"):
        await provider.machines()
    asked = len(cluster.asked)
    await provider.destroy("backup")
    await provider.destroy("stf-../../../secrets")
    assert len(cluster.asked) == asked
    assert await provider.boot_log("backup") == ""


async def test_a_list_without_an_end_is_not_read_until_the_memory_is_full(cluster: Cluster) -> None:
    provider = provider_of(cluster.kubeconfig())
    await provider.create(order())
    cluster.lists_end, asked = False, len(cluster.asked)
    with pytest.raises(ProviderUnsure, match="does not end"):
        await provider.machines()
    assert len(cluster.asked) - asked < 5


async def test_a_client_certificate_a_token_with_an_address_and_the_pods_own_account_are_taken(
    cluster: Cluster, tmp_path: Path
) -> None:
    encoded = [
        base64.b64encode(file.read_bytes()).decode() for file in (cluster.certificate, tmp_path / "own.key")
    ]
    pair = {"client-certificate-data": encoded[0], "client-key-data": encoded[1]}
    assert await provider_of(cluster.kubeconfig(**pair)).machines() == []
    authority = cluster.certificate.read_text()
    by_address = provider_of(TOKEN, api=cluster.url, ca=authority, namespace=NAMESPACE)
    assert await by_address.machines() == []
    assert any(f"/namespaces/{NAMESPACE}/" in path for _, path in cluster.asked)
    with pytest.raises(ProviderUnsure, match="certificate"):
        await provider_of(TOKEN, api=cluster.url).machines()
    account = tmp_path / "account"
    account.mkdir()
    for name, text in {"token": "old", "ca.crt": authority, "namespace": "mine"}.items():
        (account / name).write_text(text)
    host, port = cluster.url.removeprefix("https://").split(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    access = access_of(None, "", "", environ, account)
    assert (access.url, access.namespace) == (cluster.url, "mine")
    (account / "token").write_text(f"{TOKEN}\n")
    assert access.headers() == {"Authorization": f"Bearer {TOKEN}"}, "Kubernetes has renewed it"


def test_an_access_that_is_not_safe_or_not_there_is_refused(tmp_path: Path, cluster: Cluster) -> None:
    def refused(key: str | None, url: str = "", authorities: str = "") -> str:
        with pytest.raises(Invalid) as caught:
            access_of(key, url, authorities, {}, tmp_path / "none")
        return caught.value.detail

    config = json.loads(cluster.kubeconfig())
    assert "no pod with a service account" in refused(None)
    assert "no kubeconfig in JSON" in refused("apiVersion: v1\nkind: Config\n")
    assert "https" in refused(TOKEN, "http://cluster")
    assert "no token" in refused("two words", "https://cluster")
    assert "PEM" in refused(TOKEN, "https://cluster", "-----BEGIN nothing")
    config["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
    assert "not to be verified" in refused(json.dumps(config))
    assert "neither a token nor" in refused(cluster.kubeconfig(exec="aws"))
    pair = {"client-certificate-data": "bm8=", "client-key-data": "bm8="}
    assert "do not belong together" in refused(cluster.kubeconfig(**pair))


def test_settings_that_kubernetes_would_not_take_are_refused_at_once() -> None:
    def refused(**settings: str) -> str:
        with pytest.raises(Invalid) as caught:
            provider_of(None, **settings)
        return caught.value.detail

    assert "'image' is not of the form IMAGE[:TAG]" in refused(image="")
    assert "'node_selector' is not of the form KEY=VALUE,…" in refused(node_selector="gpu")
    assert "KEY[=VALUE][:EFFECT],…" in refused(tolerations="a=b:Sometimes")
    assert "'namespace'" in refused(namespace="Mine/../x")
    assert "/PATH/OF/PROGRAM" in refused(command="sh -c")
    assert "'priority_class'" in refused(priority_class="Not One")
    assert "no setting pods" in refused(pods="2")
    assert "So many GPUs (3) cannot be shared equally by so many nodes (2)" in refused(nodes="2", gpus="3")


async def test_a_server_that_says_nothing_is_given_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner_fleet.providers.kubernetes.api.TOGETHER_S", 0.2)
    provider = provider_of(cluster.kubeconfig())
    held: Any = cluster._lock
    held.acquire()
    try:
        with pytest.raises(ProviderUnsure, match=r"did not answer in 0\.2 s"):
            await asyncio.wait_for(provider.machines(), 30)
    finally:
        held.release()
