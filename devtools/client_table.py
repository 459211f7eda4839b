"""Draws the Python client's copy of the route table: its calls, what they take and what they answer.

`./dev client` writes it; with `--check` it only says whether it is up to date. A client cannot import the server, and
a copy by hand would fall behind.
"""

import ast
import enum
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from simpletuner_fleet.http.application import ROUTES
from simpletuner_fleet.http.edge.routes import Route

FOLDER = Path(__file__).parent.parent / "src" / "simpletuner_fleet" / "client" / "table"
PACKAGE = "simpletuner_fleet.client.table"
NOTE = "Drawn by `./dev client` from the server's route table. Do not edit: change the routes and draw again."
JOB_CALLS = {
    "LIST_JOBS": "GET /api/jobs",
    "GET_JOB": "GET /api/jobs/{id}",
    "EXPLAIN": "GET /api/jobs/{id}/explain",
    "OUTLOOK": "GET /api/jobs/{id}/outlook",
    "ATTEMPTS": "GET /api/jobs/{id}/attempts",
    "JOB_EVENTS": "GET /api/jobs/{id}/events",
    "SUBMIT": "POST /api/queue/submit",
    "CANCEL": "POST /api/jobs/{id}/cancel",
    "RETRY": "POST /api/jobs/{id}/retry",
    "SET_PRIORITY": "POST /api/queue/{id}/priority",
    "QUEUE_STATS": "GET /api/queue/stats",
}
RESULT_CALLS = {
    "METRICS": "GET /api/jobs/{id}/metrics",
    "LOGS": "GET /api/jobs/{id}/logs",
    "COMPARE": "GET /api/compare",
    "ARTIFACTS": "GET /api/jobs/{id}/artifacts",
}
FLEET_CALLS = {
    "LIST_WORKERS": "GET /api/admin/workers",
    "GET_WORKER": "GET /api/admin/workers/{id}",
    "LIST_CONFIGS": "GET /api/configs",
    "GET_CONFIG": "GET /api/configs/{name}",
    "SAVE_CONFIG": "PUT /api/configs/{name}",
    "LIST_DATASETS": "GET /api/data",
    "GET_DATASET": "GET /api/data/{id}",
    "WHOAMI": "GET /api/whoami",
    "EVENTS": "GET /api/events",
}
GROUPS = (
    ("job_answers", "What is answered about jobs.", JOB_CALLS),
    ("result_answers", "What is answered about what jobs bring forth.", RESULT_CALLS),
    ("fleet_answers", "What is answered about workers, configs and datasets.", FLEET_CALLS),
)
REQUEST_DICTS = {"SubmitOptions": "SUBMIT"}
"""Bodies whose fields are keyword arguments of a method."""


def main() -> int:
    drawn = {FOLDER / name: _formatted(text) for name, text in drawings().items()}
    if "--check" not in sys.argv[1:]:
        FOLDER.mkdir(exist_ok=True)
        for path, text in drawn.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path.name for path, text in drawn.items() if not path.exists() or path.read_text() != text]
    if stale:
        print(f"{', '.join(stale)}: not as the route table is now; run ./dev client", file=sys.stderr)
    return bool(stale)


def drawings() -> dict[str, str]:
    rows: dict[str, Route] = {}
    module_of: dict[type[msgspec.Struct], str] = {}
    files = {"__init__.py": f'"""The server\'s route table as the client has it.\n\n{NOTE}\n"""\n'}
    for module, summary, calls in GROUPS:
        own = _rows(calls)
        rows |= own
        kinds = [one for one in _structs(row.answer for row in own.values()) if one not in module_of]
        files[f"{module}.py"] = _types(summary, kinds, module_of)
        module_of |= dict.fromkeys(kinds, module)
    files["requests.py"] = _requests(rows)
    files["calls.py"] = _calls(rows, module_of)
    return files


def _rows(calls: dict[str, str]) -> dict[str, Route]:
    table = {f"{row.method} {row.path}": row for row in ROUTES}
    return {name: table[where] for name, where in calls.items()}


def _structs(kinds: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """Yields every struct that is reached, those that others need first."""
    seen: list[type[msgspec.Struct]] = []

    def walk(kind: Any) -> Iterator[type[msgspec.Struct]]:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind in seen:
                return
            seen.append(kind)
            base = _base(kind)
            if base:
                yield from walk(base)
            for hint in _own_hints(kind).values():
                yield from walk(hint)
            yield kind
        for inner in get_args(_bare(kind)):
            yield from walk(inner)

    for kind in kinds:
        yield from walk(kind)


def _bare(kind: Any) -> Any:
    return _bare(get_args(kind)[0]) if get_origin(kind) is Annotated else kind


def _base(kind: type[msgspec.Struct]) -> type[msgspec.Struct] | None:
    base = kind.__mro__[1]
    return base if base is not msgspec.Struct else None


def _own_hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__annotations__ if name in hints}


def _text(kind: Any) -> str:
    """Returns a type as it is written. A word of a closed list is a plain one: a newer server may have more of them."""
    kind = _bare(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if kind is NoneType or kind is None:
        return "None"
    if kind is msgspec.UnsetType:
        return "UnsetType"
    if kind is Any:
        return "Any"
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(_text(one) for one in inner))
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        return "str"
    if origin is tuple:
        return f"tuple[{', '.join('...' if one is Ellipsis else _text(one) for one in inner)}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_text, inner))}]"
    return str(kind.__name__)


def _types(
    summary: str, kinds: list[type[msgspec.Struct]], module_of: dict[type[msgspec.Struct], str]
) -> str:
    body = "\n\n".join(map(_struct, kinds))
    names = [name for name in ("UNSET", "Struct", "UnsetType", "field") if re.search(rf"\b{name}\b", body)]
    typing = "from typing import Any\n\n" if re.search(r"\bAny\b", body) else ""
    others = _imports(body, module_of)
    return (
        f'"""{summary}\n\n{NOTE}\n"""\n\n{typing}from msgspec import {", ".join(names)}\n{others}\n\n{body}\n'
    )


def _imports(body: str, module_of: dict[type[msgspec.Struct], str]) -> str:
    used = [
        (module, kind.__name__)
        for kind, module in module_of.items()
        if re.search(rf"\b{kind.__name__}\b", body)
    ]
    return "".join(f"from {PACKAGE}.{module} import {name}\n" for module, name in sorted(used))


def _struct(kind: type[msgspec.Struct]) -> str:
    base = _base(kind)
    docs = _field_docs(kind)
    lines = [f"class {kind.__name__}({base.__name__ if base else 'Struct'}, frozen=True, kw_only=True):"]
    doc = inspect.cleandoc(kind.__doc__ or "")
    if doc:
        lines.append(textwrap.indent(f'"""{doc}"""\n', "    "))
    fields = {one.name: one for one in msgspec.structs.fields(kind)}
    for name, hint in _own_hints(kind).items():
        lines.append(f"    {name}: {_text(hint)}{_default(fields[name])}")
        if name in docs:
            lines.append(textwrap.indent(f'"""{docs[name]}"""', "    "))
    return "\n".join(lines) + "\n"


def _default(one: msgspec.structs.FieldInfo) -> str:
    renamed = f"name={one.encode_name!r}" if one.encode_name != one.name else ""
    default = ""
    if one.default_factory is not msgspec.NODEFAULT:
        default = f"default_factory={one.default_factory.__name__}"
    elif one.default is not msgspec.NODEFAULT:
        default = "default=UNSET" if one.default is msgspec.UNSET else f"default={_plain(one.default)!r}"
    if renamed or default.startswith("default_factory"):
        return f" = field({', '.join(filter(None, (default, renamed)))})"
    return f" = {default.removeprefix('default=')}" if default else ""


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _field_docs(kind: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    docs, last = {}, ""
    for node in tree.body[0].body:  # type: ignore[attr-defined]
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                last = name
            case ast.Expr(value=ast.Constant(value=str(text))) if last:
                docs[last] = inspect.cleandoc(text)
                last = ""
            case _:
                last = ""
    return docs


def _requests(rows: dict[str, Route]) -> str:
    classes = []
    for title, call in REQUEST_DICTS.items():
        body = rows[call].body
        hints = get_type_hints(body, include_extras=True)
        lines = [
            f"class {title}(TypedDict, total=False):",
            f'    """{rows[call].summary}: what may be said."""\n',
        ]
        docs = {
            name: text
            for base in reversed(body.__mro__)
            if issubclass(base, msgspec.Struct) and base is not msgspec.Struct
            for name, text in _field_docs(base).items()
        }
        for name, hint in hints.items():
            if name in ("dry_run", "idempotency_key", "config", "config_name"):
                continue
            lines.append(f"    {name}: {_text(_sent(hint))}")
            if name in docs:
                lines.append(f'    """{docs[name]}"""')
        classes.append("\n".join(lines))
    body_text = "\n\n\n".join(classes)
    return f'"""What is sent.\n\n{NOTE}\n"""\n\nfrom typing import Any, TypedDict\n\n\n{body_text}\n'


def _sent(hint: Any) -> Any:
    """A part of a request that is an object of its own is a plain dict."""
    bare = _bare(hint)
    if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        return dict[str, Any]
    if get_origin(bare) in (Union, UnionType):
        parts = [_sent(one) for one in get_args(bare)]
        return Union[tuple(parts)]  # noqa: UP007 - made of a list
    return bare


def _calls(rows: dict[str, Route], module_of: dict[type[msgspec.Struct], str]) -> str:
    lines = []
    for name, row in rows.items():
        answer, kind = "dict", "dict[str, Any]"
        if row.answer not in (None, dict):
            answer = kind = row.answer.__name__
        given = f"query={_names(row.query)}, body={_names(row.body)}"
        lines.append(
            f"{name}: RouteCall[{kind}] = RouteCall({row.method!r}, {row.path!r}, {answer}, {given})"
        )
        lines.append(f'"""{row.summary}."""')
    body = "\n".join(lines)
    return (
        f'"""The calls of the client.\n\n{NOTE}\n"""\n\nfrom typing import Any\n\n'
        f"from simpletuner_fleet.client.calls.call import RouteCall\n{_imports(body, module_of)}\n{body}\n"
    )


def _names(kind: Any) -> tuple[str, ...] | None:
    """Returns the names that may be used; None where any may."""
    if kind is None:
        return ()
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return tuple(one.encode_name for one in msgspec.structs.fields(kind)) if is_struct else None


def _formatted(text: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    done = subprocess.run(
        [*ruff, "check", "--select", "I,F401", "--fix", "-q", "-", "--stdin-filename", "x.py"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        cwd=FOLDER.parent,
    ).stdout
    return subprocess.run(
        [*ruff, "format", "-"], input=done, capture_output=True, text=True, check=True, cwd=FOLDER.parent
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
