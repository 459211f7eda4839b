"""Translates an older request into one of ours: another path, other names in the body, other names in the answer.

The row that is meant does the work, with its own permission, its own rules and its own audit entry: there is nothing
that only an older name could do.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import AskedOtherwise
from simpletuner_fleet.http.api.ownership import guarded
from simpletuner_fleet.http.edge.bodies import as_type
from simpletuner_fleet.http.edge.routes import ANY_USER, Answer, Call, Handler, Reply, Route

Wording = dict[str, Any]


class WordedRequest(Struct, frozen=True, kw_only=True):
    """Holds the parts of one request, in the older form or in ours."""

    path: Mapping[str, str]
    body: Wording
    """Empty where there is none."""
    query: Any = None


class Older(Struct, frozen=True, kw_only=True):
    """Maps one request of the older guides to the one of ours that it means."""

    asked: str
    """Method and path."""
    means: str = ""
    """Method and path of ours; the same as `asked` where only the body or the answer is worded otherwise."""
    worded: Callable[[WordedRequest], WordedRequest] | None = None
    """Makes ours of it. Where the path is ours, it is called only if the body was not understood."""
    answered: Callable[[Wording, WordedRequest], Any] | None = None
    """Given our answer and what was asked: the answer under the older names."""
    query: Any = None
    """The type of the older query; ours where it is left out."""
    does: Handler | None = None
    """For a request that means several of ours, or one of a job that it does not name."""
    permission: str = ""
    """Where `does` is given: what the handlers that it calls ask for."""
    status: int = 200
    """The same: what it answers."""
    form: bool = False
    """The fields come as a form, in either of a form's encodings."""
    instead: str = ""
    """What to ask, where this server rightly does it in another way."""


def key_of(row: Route) -> str:
    return f"{row.method} {row.path}"


def understood(rows: Iterable[Route], older: Iterable[Older]) -> list[Route]:
    """Returns our rows, with the older wording added to those that have one."""
    by_key = {one.asked: one for one in older if one.asked == one.means}
    return [_worded(row, by_key[key_of(row)]) if key_of(row) in by_key else row for row in rows]


def older_routes(rows: Iterable[Route], older: Iterable[Older]) -> list[Route]:
    """Returns a row for each older request whose path is not ours."""
    by_key = {key_of(row): row for row in rows}
    return [_route(one, by_key) for one in older if one.asked != one.means]


def _worded(row: Route, one: Older) -> Route:
    if one.worded:
        worded = one.worded
        row = replace(row, reword=lambda body: worded(WordedRequest(path={}, body=body)).body)
    return replace(row, handler=_answering(row.handler, one)) if one.answered else row


def _answering(handler: Handler, one: Older) -> Handler:
    async def answer(call: Call[Any]) -> Answer:
        return _in_older_words(
            await handler(call), one, WordedRequest(path=call.path, body=_plain(call.body), query=call.query)
        )

    return answer


def _route(one: Older, by_key: Mapping[str, Route]) -> Route:
    method, path = one.asked.split(" ")
    if one.instead:
        return Route(method, path, _pointing(one.instead), ANY_USER, older=True)
    if one.does:
        body = bytes if one.form else dict if method != "GET" else None
        return Route(
            method,
            path,
            one.does,
            one.permission,
            body,
            status=one.status,
            query=one.query,
            body_required=False,
            form=one.form,
            in_parts=one.form,
            older=True,
        )
    meant = by_key[one.means]
    return replace(
        meant,
        path=path,
        method=method,
        handler=_meaning(one, guarded(meant)),
        body=dict if meant.body or method in ("POST", "PUT", "PATCH") else None,
        body_required=meant.body_required and meant.body is not None and one.worded is None,
        query=one.query or meant.query,
        prompt=False,
        older=True,
    )


def _pointing(instead: str) -> Handler:
    async def point(call: Call[Any]) -> Answer:
        raise AskedOtherwise(next_step=instead)

    return point


def _meaning(one: Older, meant: Route) -> Handler:
    async def ask(call: Call[Any]) -> Answer:
        asked = WordedRequest(path=call.path, body=call.body or {}, query=call.query)
        ours = one.worded(asked) if one.worded else asked
        body = as_type(ours.body, meant.body) if meant.body and (ours.body or meant.body_required) else None
        return _in_older_words(await meant.handler(on_behalf(call, meant, body, ours)), one, asked)

    return ask


def on_behalf(call: Call[Any], meant: Route, body: Any, ours: WordedRequest) -> Call[Any]:
    """Returns the call that was meant, from the same caller."""
    return Call(
        meant,
        call.app,
        call.principal,
        body,
        ours.query,
        ours.path,
        call.ip,
        call.headers,
        call.secure,
        call.ends,
    )


def _in_older_words(answer: Answer, one: Older, asked: WordedRequest) -> Answer:
    if one.answered is None or not isinstance(answer, Struct) or isinstance(answer, Reply):
        return answer
    shown = one.answered(cast(Wording, msgspec.to_builtins(answer)), asked)
    return shown if isinstance(shown, dict) else Reply(body=shown)


def _plain(body: Any) -> Wording:
    return cast(Wording, msgspec.to_builtins(body)) if isinstance(body, Struct) else {}
