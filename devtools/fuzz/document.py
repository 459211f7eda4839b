"""The API document as a source of requests: for every operation, what it asks for, or almost that."""

from typing import Any

from msgspec import Struct

from devtools.fuzz.chance import Chance

Known = dict[str, list[Any]]
"""What there is in the server: ids, names and epochs, by the kind of thing."""
KIND_BY_SEGMENT = {
    "jobs": "job",
    "job": "job",
    "queue": "job",
    "position": "job",
    "artifacts": "manifest",
    "workers": "worker",
    "tokens": "token",
    "users": "user",
    "sessions": "session",
    "configs": "config",
    "objects": "sha256",
    "secrets": "secret",
    "files": "file",
    "Users": "scim_user",
    "Groups": "scim_group",
    "ResourceTypes": "scim_type",
    "Schemas": "scim_type",
}
KIND_BY_NAME = {
    "job_id": "job",
    "current_job_id": "job",
    "depends_on": "job",
    "resume_from": "job",
    "worker_id": "worker",
    "target_worker": "worker",
    "attempt": "attempt",
    "attempt_id": "attempt",
    "epoch": "epoch",
    "config_name": "config",
    "sha256": "sha256",
    "owner": "user",
    "users": "user",
    "incarnation": "incarnation",
    "password": "password",
    "name": "name",
    "secrets": "secret",
    "size": "size",
    "files": "file",
    "path": "file",
}
MAX_DEPTH = 6
PLAIN_WORDS = ("a", "cats", "gpu-1", "step 12 of 100", "1.5", "checkpoint-10", "eins zwei", "\u732b", "3600")


class Operation(Struct, frozen=True, kw_only=True):
    method: str
    path: str
    parameters: tuple[dict[str, Any], ...] = ()
    body: dict[str, Any] | None = None
    raw_body: bool = False
    worker: bool = False
    """It is for workers and attempts, not for people."""
    upload: bool = False

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


def operations_of(document: dict[str, Any]) -> list[Operation]:
    return [
        _operation(method.upper(), path, described)
        for path, methods in document["paths"].items()
        for method, described in methods.items()
    ]


def _operation(method: str, path: str, described: dict[str, Any]) -> Operation:
    content = described.get("requestBody", {}).get("content", {})
    schemes = {name for choice in described["security"] for name in choice}
    return Operation(
        method=method,
        path=path,
        parameters=tuple(described.get("parameters", ())),
        body=next((one["schema"] for one in content.values()), None),
        raw_body="application/octet-stream" in content,
        worker="workerToken" in schemes,
        upload="uploadToken" in schemes,
    )


class NearSchema:
    """Makes values that a schema of the document describes, and now and then others."""

    def __init__(self, document: dict[str, Any], known: Known, chance: Chance) -> None:
        self._schemas: dict[str, Any] = document["components"]["schemas"]
        self.known = known
        self.chance = chance
        self.sane = False
        """Nothing is out of place for now: what is asked for is mostly carried out."""

    def value(self, schema: dict[str, Any], name: str = "", depth: int = MAX_DEPTH) -> Any:
        chance = self.chance
        if not self.sane and chance.happens(25):
            return chance.garbage()
        kind = KIND_BY_NAME.get(name)
        if kind and self.known.get(kind) and not chance.happens(4) and schema.get("type") != "array":
            return chance.choice(self.known[kind])
        if "$ref" in schema:
            return self.value(self._schemas[schema["$ref"].rpartition("/")[2]], name, depth - 1)
        if "anyOf" in schema:
            return self.value(chance.choice(schema["anyOf"]), name, depth)
        if "enum" in schema:
            return chance.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        return self._typed(schema, name, depth)

    def _typed(self, schema: dict[str, Any], name: str, depth: int) -> Any:
        chance = self.chance
        match schema.get("type"):
            case "object" if depth > 0:
                return self._object(schema, depth)
            case "array" if depth > 0:
                count = chance.choice((0, 1, 1, 2, 3, 20))
                return [self.value(schema.get("items", {}), name, depth - 1) for _ in range(count)]
            case "string":
                return self._text(schema)
            case "integer":
                return self._whole(schema)
            case "number":
                return chance.choice(
                    (chance.number(), schema.get("maximum", 1.0), schema.get("minimum", 0.0))
                )
            case "boolean":
                return chance.happens(2)
            case "null":
                return None
        return chance.garbage()

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        chance = self.chance
        required = schema.get("required", [])
        made = {
            name: self.value(inner, name, depth - 1)
            for name, inner in schema.get("properties", {}).items()
            if (name in required and (self.sane or not chance.happens(30))) or chance.happens(3)
        }
        further = schema.get("additionalProperties")
        if isinstance(further, dict):
            for _ in range(chance.randrange(4)):
                made[chance.text()] = self.value(further, "", depth - 1)
        if not self.sane and chance.happens(30):
            made[chance.text()] = chance.garbage()
        return made

    def _text(self, schema: dict[str, Any]) -> str:
        chance = self.chance
        if self.sane and chance.happens(1.3):
            return chance.choice(PLAIN_WORDS)
        if chance.happens(3):
            return str(chance.one_of(chance.choice(list(self.known.values()))))
        longest = int(schema.get("maxLength", 0))
        if longest and chance.happens(10):
            return "x" * min(70_000, longest + chance.choice((-1, 0, 1)))
        return chance.text()

    def _whole(self, schema: dict[str, Any]) -> int | float:
        chance = self.chance
        edges = [schema[key] for key in ("minimum", "maximum") if key in schema]
        if edges and chance.happens(4):
            return int(chance.choice(edges)) + chance.choice((-1, 0, 1))
        return chance.randrange(0, 50) if self.sane or chance.happens(2) else chance.number()

    def path_part(self, path: str, name: str) -> str:
        """A value for `{name}`: mostly something that exists and is of the right kind."""
        before = path.partition("{" + name + "}")[0].rstrip("/").rpartition("/")[2]
        kind = KIND_BY_SEGMENT.get(before) or KIND_BY_NAME.get(name)
        if path.startswith("/api/data/{id}"):
            kind = "dataset"
        chance = self.chance
        if kind and self.known.get(kind) and (self.sane or not chance.happens(8)):
            return str(chance.choice(self.known[kind]))
        return (
            str(chance.one_of(chance.choice(list(self.known.values()))))
            if chance.happens(2)
            else chance.text()
        )
