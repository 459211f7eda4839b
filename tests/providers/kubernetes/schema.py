"""Whether Kubernetes would take an object: by its published schemas, strictly, and by rules that no schema can say."""

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

OLDEST, NEWEST = "1.25.0", "1.37.0"
SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
MAX_NAME = 253


@cache
def _file(version: str, name: str) -> Any:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}-local-strict"
    return json.loads((folder / f"{name}.json").read_text("utf-8"))


def faults_of_form(thing: Any, version: str = NEWEST) -> list[str]:
    """What the schema of its kind does not know or misses."""
    group, _, number = str(thing.get("apiVersion", "")).rpartition("/")
    parts = [str(thing.get("kind", "")).lower(), *([group.partition(".")[0]] if group else []), number]
    try:
        schema = _file(version, "-".join(parts))
    except FileNotFoundError:
        return [f"no kind {thing.get('kind')} in {thing.get('apiVersion')}"]
    return _against(thing, schema, version, "")


def faults_of_deleting(options: Any) -> list[str]:
    named = "/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
    return _against(options, {"$ref": named}, NEWEST, "")


def _against(value: Any, schema: dict[str, Any], version: str, at: str) -> list[str]:
    if "$ref" in schema:
        named = schema["$ref"].rpartition("/$defs/")[2]
        schema = {
            **_file(version, "_definitions")["$defs"][named],
            **{k: schema[k] for k in schema if k != "$ref"},
        }
    if "oneOf" in schema and not any(_has_type(value, one.get("type")) for one in schema["oneOf"]):
        return [f"{at}: {value!r} has no type of the schema's"]
    if not _has_type(value, schema.get("type")):
        return [f"{at}: {value!r} is no {schema.get('type')}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r} is none of {schema['enum']}"]
    if isinstance(value, dict):
        return _fields(value, schema, version, at)
    if isinstance(value, list) and "items" in schema:
        return [
            fault
            for number, item in enumerate(value)
            for fault in _against(item, schema["items"], version, f"{at}[{number}]")
        ]
    return []


def _fields(value: dict[str, Any], schema: dict[str, Any], version: str, at: str) -> list[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    faults = [f"{at}.{name}: missing" for name in schema.get("required", ()) if value.get(name) is None]
    for name, field in value.items():
        if name in known:
            faults += _against(field, known[name], version, f"{at}.{name}")
        elif isinstance(others, dict):
            faults += _against(field, others, version, f"{at}.{name}")
        elif others is False:
            faults.append(f"unknown field {at}.{name}")
    return faults


def _has_type(value: Any, wanted: Any) -> bool:
    kinds: dict[str, type | tuple[type, ...]] = {
        "string": str,
        "object": dict,
        "array": list,
        "boolean": bool,
        "integer": int,
        "number": (int, float),
        "null": type(None),
    }
    names = [wanted] if isinstance(wanted, str) else wanted
    if not names:
        return True
    return any(
        isinstance(value, kinds[name]) and (name == "boolean" or not isinstance(value, bool))
        for name in names
    )


def faults_of_sense(thing: Any) -> list[str]:
    """What the API server says to names, labels and fields that contradict one another."""
    metadata, kind = thing.get("metadata", {}), thing.get("kind")
    name = metadata.get("name", "")
    faults = [f"labels: {label}" for label in _labels(metadata.get("labels", {}))]
    longest = 63 if kind in ("Job", "Service", "Namespace") else MAX_NAME
    if len(name) > longest or not SUBDOMAIN.fullmatch(name):
        faults.append(f"metadata.name: {name!r}")
    owned = ("apiVersion", "kind", "name", "uid")
    if not all(owner.get(field) for owner in metadata.get("ownerReferences", ()) for field in owned):
        faults.append("metadata.ownerReferences: empty")
    if kind == "Job":
        faults += _job(thing["spec"])
    if kind == "Secret":
        faults += [
            f"key {key!r}" for key in thing.get("stringData", {}) if not re.fullmatch(r"[-._a-zA-Z0-9]+", key)
        ]
    if kind in ("Deployment", "StatefulSet"):
        template = thing["spec"]["template"]
        chosen, has = thing["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]
        faults += [] if chosen.items() <= has.items() else ["selector does not match the template's labels"]
        faults += _pod(template["spec"], claims(thing))
    return faults


def claims(thing: Any) -> set[str]:
    return {one["metadata"]["name"] for one in thing["spec"].get("volumeClaimTemplates", ())}


def _labels(labels: dict[str, str]) -> list[str]:
    faults = []
    for key, value in labels.items():
        prefix, slash, part = key.rpartition("/")
        if not PART.fullmatch(part) or (slash and not SUBDOMAIN.fullmatch(prefix)):
            faults.append(f"key {key!r}")
        if value and not PART.fullmatch(value):
            faults.append(f"value {value!r}")
    return faults


def _job(spec: Any) -> list[str]:
    template = spec["template"]
    pod = template["spec"]
    faults = [
        f"template labels: {label}" for label in _labels(template.get("metadata", {}).get("labels", {}))
    ]
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        faults.append("restartPolicy: a Job's pod must be Never or OnFailure")
    counts = ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "parallelism")
    faults += [f"{field}: negative" for field in counts if spec.get(field, 0) < 0]
    if spec.get("activeDeadlineSeconds") == 0:
        faults.append("activeDeadlineSeconds: must be positive")
    return faults + _pod(pod, set())


def _pod(pod: Any, claimed: set[str]) -> list[str]:
    volumes = {one["name"] for one in pod.get("volumes", ())} | claimed
    faults = [f"volume {name!r}" for name in volumes if not LABEL.fullmatch(name)]
    for one in pod.get("volumes", ()):
        limit = one.get("emptyDir", {}).get("sizeLimit", "1")
        faults += [] if QUANTITY.fullmatch(str(limit)) else [f"sizeLimit {limit!r}"]
    for toleration in pod.get("tolerations", ()):
        if toleration.get("operator") == "Exists" and toleration.get("value"):
            faults.append("tolerations: value must be empty with Exists")
    faults += [f"nodeSelector {label}" for label in _labels(pod.get("nodeSelector", {}))]
    if not pod.get("containers"):
        faults.append("containers: required")
    for container in pod.get("containers", ()):
        faults += _container(container, volumes)
    return faults


def _container(container: Any, volumes: set[str]) -> list[str]:
    faults = [] if container.get("image") else ["image: required"]
    faults += [] if LABEL.fullmatch(container["name"]) else [f"container {container['name']!r}"]
    for variable in container.get("env", ()):
        if not VARIABLE.fullmatch(variable["name"]):
            faults.append(f"env {variable['name']!r}")
        if variable.get("value") and variable.get("valueFrom"):
            faults.append(f"env {variable['name']}: both value and valueFrom")
    mounts = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
    if len(mounts) != len(set(mounts)):
        faults.append("volumeMounts: one path twice")
    for mount in container.get("volumeMounts", ()):
        faults += [] if mount["name"] in volumes else [f"volumeMounts: no volume {mount['name']!r}"]
    return faults + _resources(container.get("resources", {}))


def _resources(resources: Any) -> list[str]:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    faults = []
    for name, amount in [*limits.items(), *requests.items()]:
        if not QUANTITY.fullmatch(str(amount)):
            faults.append(f"resources: {name} {amount!r}")
        prefix, slash, part = name.rpartition("/")
        if not PART.fullmatch(part) or (slash and not SUBDOMAIN.fullmatch(prefix)):
            faults.append(f"resources: {name!r}")
    extended = {name for name in requests if "/" in name}
    faults += [
        f"resources: {name} needs an equal limit" for name in extended if limits.get(name) != requests[name]
    ]
    return faults


def faults(thing: Any) -> list[str]:
    """All of them, in the oldest cluster that we speak of and in the newest."""
    return [*faults_of_form(thing, OLDEST), *faults_of_form(thing, NEWEST), *faults_of_sense(thing)]
