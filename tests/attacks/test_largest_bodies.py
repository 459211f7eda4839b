"""Every request with a body is sent at its largest, in every shape that its type allows.

None is a fault of the server, and none keeps it busy for longer than its size explains.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect

from devtools.fuzz.in_process_server import InProcessServer
from simpletuner_fleet.http.application import ROUTES
from simpletuner_fleet.http.edge.routes import Route

LARGEST = 4 * 1024 * 1024
DEEPEST = 4
MOST_CPU_S = 0.5
MOST_CPU_S_A_MIB = 0.4
"""Some three times as much as the slowest takes on a slow machine."""
Shape = tuple[str, Any]


def alternatives(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return alternatives(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [inner for one in kind.types for inner in alternatives(one)]
    return [kind]


def smallest(kind: inspect.Type) -> Any:
    kinds = alternatives(kind)
    if any(isinstance(one, inspect.NoneType) for one in kinds):
        return None
    match kinds[0]:
        case inspect.StrType() as text:
            return "a" * (text.min_length or 1)
        case inspect.BoolType():
            return True
        case inspect.LiteralType() as literal:
            return min(map(str, literal.values))
        case inspect.EnumType() as enum:
            return next(iter(enum.cls)).value
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return []
        case inspect.DictType() | inspect.AnyType():
            return {}
        case inspect.StructType() as struct:
            return {field.encode_name: smallest(field.type) for field in struct.fields if field.required}
        case _:
            return 1


def numbered(item: Any, number: int) -> Any:
    if isinstance(item, str):
        return f"{item}{number}"
    if isinstance(item, dict):
        return {
            key: numbered(value, number) if isinstance(value, str) else value for key, value in item.items()
        }
    return item


def shapes(kind: inspect.Type, size: int, depth: int = 0) -> Iterator[Shape]:
    """Yields values of about this size, each large in another way."""
    if depth > DEEPEST:
        return
    for one in alternatives(kind):
        match one:
            case inspect.StrType() if one.max_length is None or one.max_length > 1000:
                yield "text", ("ab/. " * size)[: min(size, one.max_length or size)]
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
                item = smallest(one.item_type)
                count = size // (len(json.dumps(item)) + 10)
                yield "others", [numbered(item, number) for number in range(count)]
                yield "same", [item] * count
                for name, inner in shapes(one.item_type, size, depth + 1):
                    yield f"[0].{name}", [inner]
            case inspect.DictType():
                value = smallest(one.value_type)
                yield "keys", {f"key_{n:07}": value for n in range(size // (len(json.dumps(value)) + 16))}
            case inspect.AnyType():
                yield "any keys", {f"train_batch_sizes{n:06}": 1 for n in range(size // 30)}
                yield "any items", [[["a"]]] * (size // 12)
            case inspect.StructType():
                yield from struct_shapes(one, size, depth)


def struct_shapes(kind: inspect.StructType, size: int, depth: int) -> Iterator[Shape]:
    usual = smallest(kind)
    for field in kind.fields:
        for name, value in shapes(field.type, size, depth + 1):
            yield f"{field.encode_name}.{name}", {**usual, field.encode_name: value}
    yield "unknown fields", {**usual, **{f"unknown{number:06}": 1 for number in range(size // 20)}}


def takes_json(route: Route) -> bool:
    return route.body not in (None, bytes) and not route.form and not route.pieces


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_the_largest_of_every_shape_is_answered_soon(tmp_path: Path) -> None:
    server = await InProcessServer(tmp_path / "server", 1).open()
    worker = await server.worker("gpu0")
    job = await server.submit(server.admin, "gpu0")
    await worker.accept(await worker.offer_of(job))
    await server.config("c1", server.admin)
    known = {"job_id": job, "id": job, "worker_id": worker.id, "name": "c1"}
    slow, faults, sent = [], [], 0
    try:
        for route in filter(takes_json, ROUTES):
            path = re.sub(r"\{(\w+)\}", lambda name: known.get(name[1], "x1"), route.path)
            headers = worker.headers if path.startswith("/api/workers/") else server.admin
            for name, body in shapes(
                inspect.type_info(route.body), min(route.max_body_bytes, LARGEST) - 4096
            ):
                content = json.dumps(body).encode()
                began = time.process_time()
                answer = await server.ask(route.method, path, content, headers, patience_s=120)
                took_s = time.process_time() - began
                sent += 1
                what = f"{route.method} {route.path}: {name}, {len(content):,} bytes: {took_s:.2f} s"
                if took_s > MOST_CPU_S + MOST_CPU_S_A_MIB * len(content) / 2**20:
                    slow.append(what)
                if answer.status >= 500:
                    faults.append(f"{what}: {answer.status}")
    finally:
        await server.close()
    assert sent > 200
    assert not slow
    assert not faults
