"""The Helm chart and the plain manifests: rendered with several values, and held against Kubernetes' published schemas."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.chart import BEGINS, CHART, PLAIN, UnknownTemplate, _Template, rendered
from simpletuner_fleet.providers.kubernetes.job import IMAGE_USER
from simpletuner_fleet.settings import GROUPS
from tests.providers.kubernetes.cluster import ALLOWED
from tests.providers.kubernetes.schema import faults

EVERYTHING = {
    "server": {
        "publicUrl": "https://fleet.example",
        "databaseSecret": "database",
        "settingsSecret": "bucket-keys",
        "settings": {"SIMPLETUNER_LOG_FORMAT": "json", "SIMPLETUNER_MAX_RETRIES": 3},
        "pullSecrets": [{"name": "regcred"}],
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "control", "operator": "Exists"}],
    },
    "storage": {"className": "fast"},
    "worker": {
        "enabled": True,
        "pullPolicy": "Always",
        "pullSecrets": [{"name": "gpu-regcred"}],
        "requests": {"cpu": "4"},
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
VARIABLES = {row.env for group in GROUPS.values() for row in group}


def manifests(values: dict[str, Any] | None = None) -> dict[tuple[str, str], Any]:
    parts = list(yaml.safe_load_all(rendered(values)))
    made = {(one["kind"], one["metadata"]["name"]): one for one in parts}
    assert len(made) == len(parts)
    return made


@pytest.mark.parametrize(
    "values", [None, EVERYTHING, {"pools": {"enabled": False}}], ids=["usual", "all", "no-pools"]
)
def test_kubernetes_takes_what_the_chart_gives(values: dict[str, Any] | None) -> None:
    for one in manifests(values).values():
        assert faults(one) == [], one["kind"]


def test_the_plain_manifests_are_the_chart_with_its_usual_values() -> None:
    assert PLAIN.read_text("utf-8") == BEGINS + rendered(), "run: python -m devtools.chart"


def test_what_is_chosen_is_there_and_what_is_not_is_not() -> None:
    usual, chosen = manifests(), manifests(EVERYTHING)
    assert ("StatefulSet", "simpletuner-fleet-worker") not in usual
    worker = chosen["StatefulSet", "simpletuner-fleet-worker"]["spec"]["template"]["spec"]
    assert worker["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert worker["containers"][0]["resources"]["requests"] == {"cpu": "4", "memory": "8Gi"}
    assert worker["containers"][0]["imagePullPolicy"] == "Always"
    assert worker["imagePullSecrets"] == [{"name": "gpu-regcred"}]
    assert worker["nodeSelector"] == {"gpu": "a100"}
    server = chosen["StatefulSet", "simpletuner-fleet"]["spec"]["template"]["spec"]
    variables = {one["name"]: one for one in server["containers"][0]["env"]}
    assert variables["SIMPLETUNER_PUBLIC_URL"]["value"] == "https://fleet.example"
    assert variables["SIMPLETUNER_MAX_RETRIES"]["value"] == "3"
    assert variables["SIMPLETUNER_DATABASE_URL"]["valueFrom"]["secretKeyRef"] == {
        "name": "database",
        "key": "url",
    }
    assert server["containers"][0]["envFrom"] == [{"secretRef": {"name": "bucket-keys"}}]
    assert "envFrom" not in str(usual)
    assert (server["nodeSelector"], server["imagePullSecrets"]) == ({"disk": "fast"}, [{"name": "regcred"}])
    without = manifests({"pools": {"enabled": False}})
    assert not any(kind in ("Role", "RoleBinding") for kind, _ in without)
    assert (
        without["StatefulSet", "simpletuner-fleet"]["spec"]["template"]["spec"][
            "automountServiceAccountToken"
        ]
        is False
    )


def test_nothing_can_be_reached_but_the_servers_one_port() -> None:
    made = manifests(EVERYTHING)
    for name, ingress in (
        ("simpletuner-fleet", [{"ports": [{"port": "https", "protocol": "TCP"}]}]),
        ("simpletuner-fleet-worker", None),
    ):
        policy, pods = made["NetworkPolicy", name]["spec"], made["StatefulSet", name]["spec"]["template"]
        assert policy["podSelector"]["matchLabels"] == pods["metadata"]["labels"]
        assert (policy["policyTypes"], policy.get("ingress")) == (["Ingress"], ingress)
    assert ("NetworkPolicy", "simpletuner-fleet-worker") not in manifests()
    off = manifests({**EVERYTHING, "networkPolicy": {"enabled": False}})
    assert not any(kind == "NetworkPolicy" for kind, _ in off)


def test_the_role_allows_what_the_provider_does_and_nothing_else() -> None:
    rules = manifests()["Role", "simpletuner-fleet"]["rules"]
    assert {(verb, kind) for rule in rules for kind in rule["resources"] for verb in rule["verbs"]} == ALLOWED


def test_no_pod_has_more_rights_than_the_restricted_profile_and_every_variable_is_a_setting() -> None:
    for (kind, _), one in manifests(EVERYTHING).items():
        if kind != "StatefulSet":
            continue
        pod = one["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == IMAGE_USER
        assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch", (
            "a large volume starts at once"
        )
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {variable["name"] for variable in container["env"]} <= VARIABLES


def test_no_value_is_there_that_no_template_reads() -> None:
    texts = "".join(file.read_text("utf-8") for file in (CHART / "templates").iterdir())

    def paths(values: dict[str, Any], before: str) -> list[str]:
        leaves: list[str] = []
        for key, value in values.items():
            whole = f"{before}.{key}"
            inner = isinstance(value, dict) and value and whole not in texts.replace(f"{whole}.", "")
            leaves += paths(value, whole) if inner else [whole]
        return leaves

    own = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    assert [path for path in paths(own, ".Values") if path not in texts] == []


def test_a_template_that_the_renderer_does_not_know_is_refused(tmp_path: Path) -> None:
    scope = {".Values": {"a": 1, "on": True}}
    assert _Template("x: {{ .Values.a | quote }}").render(scope) == 'x: "1"'
    assert _Template("a {{- if .Values.on }} b{{ else }} c{{ end }}").render(scope) == "a b"
    for text in (
        "{{ include .Values.a }}",
        "{{ if .Values.a }}",
        "{{ end }}",
        "{{ range .Values.a }}{{ end }}",
        "{{ .Other }}",
    ):
        with pytest.raises(UnknownTemplate):
            _Template(text).render(scope)
