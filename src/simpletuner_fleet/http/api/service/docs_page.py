"""Renders the API's description for people, as one page that needs no script and no other host."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from typing import Any

import msgspec

from simpletuner_fleet.http.edge.routes import Access, Route

STYLE = """
:root {
  color-scheme: light dark;
  --text: #1c1e21; --quiet: #5c6370; --page: #fff; --box: #f4f5f7; --line: #d9dce1; --mark: #0b57d0
}
@media (prefers-color-scheme: dark) { :root {
  --text: #e6e8eb; --quiet: #9aa3af; --page: #15171a; --box: #1f2226; --line: #353a41; --mark: #8ab4f8
} }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1rem 6rem }
body { background: var(--page); color: var(--text); font: 1rem/1.55 system-ui, sans-serif }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; text-transform: capitalize }
a { color: var(--mark) } p { margin: .4rem 0; color: var(--quiet) }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: 1rem 0 }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .4rem 0; background: var(--box) }
summary { cursor: pointer; padding: .5rem .8rem; display: flex; flex-wrap: wrap; gap: .25rem .8rem; align-items: baseline }
summary:focus-visible, a:focus-visible { outline: 2px solid var(--mark); outline-offset: 2px }
summary b { min-width: 4rem; font: 600 .85rem ui-monospace, monospace; color: var(--mark) }
code, pre { font: .85rem/1.45 ui-monospace, monospace } summary span { color: var(--quiet) }
details > div { padding: 0 .8rem .8rem; border-top: 1px solid var(--line) }
pre { overflow-x: auto; padding: .6rem; margin: .3rem 0 }
pre { border: 1px solid var(--line); border-radius: .4rem; background: var(--page) }
"""
CREDENTIALS = {
    Access.PUBLIC: "Open to everyone.",
    Access.WORKER: "Needs a worker's token in X-Worker-Token.",
    Access.UPLOAD: "Needs a worker's token in X-Worker-Token, or an attempt's in X-Upload-Token.",
    Access.ANY_USER: "Needs any valid API token.",
}


def page_policy() -> str:
    digest = b64encode(sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def docs_page(table: Sequence[Route], document: dict[str, Any]) -> str:
    groups: dict[str, list[Route]] = {}
    for row in table:
        groups.setdefault(row.tags[0] if row.tags else "other", []).append(row)
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in groups)
    sections = "".join(section(name, rows, document) for name, rows in groups.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>SimpleTuner Fleet API</title><style>{STYLE}</style></head>
<body><main><h1>SimpleTuner Fleet API</h1>
<p>Version {escape(document["info"]["version"])}. For programs: <a href="/openapi.json">/openapi.json</a>.
People and programs send <code>Authorization: Bearer st_…</code> or <code>X-API-Key</code>; workers send
<code>X-Worker-Token</code>. Errors are <code>application/problem+json</code> with a stable <code>code</code>.</p>
<nav aria-label="Groups">{links}</nav>{sections}</main></body></html>
"""


def section(name: str, rows: Sequence[Route], document: dict[str, Any]) -> str:
    return f'<section><h2 id="{escape(name)}">{escape(name)}</h2>{"".join(entry(row, document) for row in rows)}</section>'


def entry(row: Route, document: dict[str, Any]) -> str:
    described = document["paths"][row.path][row.method.lower()]
    parts = [f"<p>{escape(needs(row))}</p>"]
    for parameter in described.get("parameters", ()):
        where, schema = parameter["in"], json_text(parameter["schema"])
        parts.append(
            f"<p>{where} <code>{escape(parameter['name'])}</code>: <code>{escape(schema)}</code></p>"
        )
    if row.body:
        parts.append(
            f"<p>Body, at most {row.max_body_bytes:,} bytes:</p>{schema_text(described['requestBody'], document)}"
        )
    answer = described["responses"][str(row.status)]
    parts.append(f"<p>Answer {row.status}:</p>{schema_text(answer, document)}")
    return (
        f"<details><summary><b>{row.method}</b><code>{escape(row.path)}</code><span>{escape(row.summary)}</span></summary>"
        f"<div>{''.join(parts)}</div></details>"
    )


def needs(row: Route) -> str:
    if isinstance(row.permission, Access):
        return CREDENTIALS[row.permission]
    return f"Needs the permission {row.permission}."


def schema_text(described: dict[str, Any], document: dict[str, Any]) -> str:
    shown = []
    for kind, content in described.get("content", {}).items():
        schema = content["schema"]
        name = schema.get("$ref", "").rpartition("/")[2]
        schema = document["components"]["schemas"].get(name, schema)
        shown.append(f"<pre>{escape(kind)}\n{escape(json_text(schema, indent=2))}</pre>")
    return "".join(shown)


def json_text(value: Any, indent: int = 0) -> str:
    encoded = msgspec.json.encode(value)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
