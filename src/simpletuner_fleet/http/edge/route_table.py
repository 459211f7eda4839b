"""Finds the row of the route table that matches a method and a path."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from simpletuner_fleet.core.errors import Invalid, NotFound
from simpletuner_fleet.http.edge.bodies import (
    as_type,
    decode_json,
    parameter_names,
    query_decoder,
    unknown_parameters,
)
from simpletuner_fleet.http.edge.problems import MethodNotAllowed
from simpletuner_fleet.http.edge.refused_fields import unknown_parameter
from simpletuner_fleet.http.edge.routes import Access, Route

WORKER_PATHS = "/api/workers/"
MAX_PATH_PARAMETER_CHARS = 200
MAX_REST_CHARS = 1024
ANY_OBJECT = msgspec.json.Decoder(dict[str, Any])


class CompiledRoute:
    """Holds a row of the route table, with everything prepared that does not depend on the request."""

    __slots__ = (
        "_names",
        "_parameters",
        "answer_head",
        "body_decoder",
        "in_turn",
        "of_workers",
        "only_name",
        "permission",
        "query_decoder",
        "refuses_unknown",
        "row",
        "segments",
    )

    def __init__(self, row: Route) -> None:
        self.row = row
        self.segments = tuple(row.path.split("/")[1:])
        self._names = [(at, part[1:-1]) for at, part in enumerate(self.segments) if part.startswith("{")]
        self.only_name = self._names[0][1] if len(self._names) == 1 and not row.rest else ""
        """The name in its path, where there is one alone that stands for one segment."""
        self.answer_head: bytes | None = None
        """The head of its usual answer, once there was one."""
        self.permission = None if isinstance(row.permission, Access) else row.permission
        """The permission that a caller must have; None where another rule says who may call."""
        self.of_workers = row.path.startswith(WORKER_PATHS)
        self.in_turn = not (self.of_workers or row.prompt or row.pieces or row.permission is Access.PUBLIC)
        """People's calls wait for each other, but for those that last as long as a line is slow, and for strangers'."""
        self.body_decoder = None if row.body in (None, bytes) else msgspec.json.Decoder(row.body)
        self.query_decoder = query_decoder(row.query) if row.query else None
        self._parameters = parameter_names(row.query) if row.query else ()
        self.refuses_unknown = row.path.startswith("/api/") and not (self.of_workers or row.scim or row.older)
        """Workers of other releases, other programs' protocols and links to pages may say more than is known here."""

    def asked(self, query_string: bytes) -> tuple[Any, Sequence[str]]:
        """Returns the query as this row's type, and the parameters of an older request that mean nothing here."""
        query = self.query_decoder(query_string) if self.query_decoder else None
        if not query_string or not (self.refuses_unknown or self.row.older):
            return query, ()
        unknown = unknown_parameters(query_string, self._parameters)
        if unknown and self.refuses_unknown:
            raise unknown_parameter(unknown[0], self._parameters)
        return query, unknown

    def decoded(self, body: bytes) -> Any:
        if self.body_decoder is None:
            return body
        try:
            return decode_json(body, self.body_decoder)
        except Invalid:
            reword = self.row.reword
            if reword is None:
                raise
            return as_type(reword(decode_json(body, ANY_OBJECT)), self.row.body)

    def parameters(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Returns the values of the path's named segments; None where one of them is invalid."""
        parameters: dict[str, str] = {}
        for at, name in self._names:
            takes_rest = self.row.rest and at == len(self.segments) - 1
            value = rest_parameter(segments[at:]) if takes_rest else path_parameter(segments[at])
            if value is None:
                return None
            parameters[name] = value
        return parameters


def rest_parameter(segments: Sequence[str]) -> str | None:
    values = [path_parameter(segment, MAX_REST_CHARS) for segment in segments]
    return None if None in values else "/".join(value for value in values if value)


def path_parameter(segment: str, max_chars: int = MAX_PATH_PARAMETER_CHARS) -> str | None:
    """Decodes a segment once, after the split, so that an encoded slash can never make a path."""
    try:
        value = unquote_to_bytes(segment).decode() if "%" in segment else segment
    except UnicodeDecodeError:
        return None
    unfit = value in ("", ".", "..") or "/" in value or "\\" in value or not value.isprintable()
    return None if unfit or len(value) > max_chars else value


class Branch:
    """A branch is a node in the tree of routes: it knows what may follow after a slash, and the rows that end here."""

    __slots__ = ("any_segment", "by_method", "by_segment", "rest_by_method")

    def __init__(self) -> None:
        self.by_segment: dict[str, Branch] = {}
        self.any_segment: Branch | None = None
        self.by_method: dict[str, CompiledRoute] = {}
        self.rest_by_method: dict[str, CompiledRoute] = {}
        """Rows whose last name takes all that follows."""

    def grow(self, segment: str) -> "Branch":
        if not segment.startswith("{"):
            return self.by_segment.setdefault(segment, Branch())
        self.any_segment = self.any_segment or Branch()
        return self.any_segment

    def find(self, segments: Sequence[str], at: int = 0) -> dict[str, CompiledRoute] | None:
        """Returns the path's rows by method.

        A literal segment takes precedence over a name, and a name over the rest.
        """
        branch = self
        while at < len(segments):
            literal = branch.by_segment.get(segments[at])
            if literal is None or branch.any_segment or branch.rest_by_method:
                return branch._find_otherwise(literal, segments, at + 1)
            branch, at = literal, at + 1
        return branch.by_method or None

    def _find_otherwise(
        self, literal: "Branch | None", segments: Sequence[str], at: int
    ) -> dict[str, CompiledRoute] | None:
        by_method = literal.find(segments, at) if literal else None
        if by_method is None and self.any_segment:
            by_method = self.any_segment.find(segments, at)
        return by_method if by_method is not None else self.rest_by_method or None


class RouteTable:
    def __init__(self, rows: Sequence[Route]) -> None:
        self._literal: dict[str, dict[str, CompiledRoute]] = {}
        self._named: dict[tuple[str, str], tuple[Branch, dict[str, CompiledRoute]]] = {}
        """Rows like `/a/{id}/b`, by what is before and after the name, with the branch where the name may stand."""
        self._root = Branch()
        for row in rows:
            compiled = CompiledRoute(row)
            by_method = self._methods_at(compiled)
            for method in [row.method, *(["HEAD"] if row.method == "GET" and not row.stream else [])]:
                if method in by_method:
                    raise ValueError(f"two rows for {method} {row.path}")
                by_method[method] = compiled

    def _methods_at(self, compiled: CompiledRoute) -> dict[str, CompiledRoute]:
        if "{" not in compiled.row.path:
            return self._literal.setdefault(compiled.row.path, {})
        branch = self._root
        for segment in compiled.segments[:-1]:
            branch = branch.grow(segment)
        if compiled.row.rest:
            return branch.rest_by_method
        by_method = branch.grow(compiled.segments[-1]).by_method
        self._note_named(compiled, by_method)
        return by_method

    def _note_named(self, compiled: CompiledRoute, by_method: dict[str, CompiledRoute]) -> None:
        before, named, last = compiled.segments[:-2], compiled.segments[-2:-1], compiled.segments[-1]
        if not "".join(named).startswith("{") or any("{" in segment for segment in (*before, last)):
            return
        branch = self._root
        for segment in before:
            branch = branch.grow(segment)
        self._named["/" + "/".join(before), last] = branch, by_method

    def find(self, method: str, path: str) -> tuple[CompiledRoute, dict[str, str]]:
        by_method = self._literal.get(path)
        if by_method is not None:
            return pick(by_method, method), {}
        before, _, last = path.rpartition("/")
        prefix, _, value = before.rpartition("/")
        named = self._named.get((prefix, last))
        if named is not None and value not in named[0].by_segment:  # a literal segment takes precedence
            compiled, parameter = named[1].get(method), path_parameter(value)
            if compiled is not None and parameter is not None:
                return compiled, {compiled.only_name: parameter}
        segments = path.split("/")[1:]
        by_method = self._root.find(segments)
        if by_method is not None:
            compiled = by_method.get(method)
            parameters = (compiled or next(iter(by_method.values()))).parameters(segments)
            if parameters is not None:
                return compiled or pick(by_method, method), parameters
        raise NotFound("There is nothing at this path.")


def pick(by_method: Mapping[str, CompiledRoute], method: str) -> CompiledRoute:
    try:
        return by_method[method]
    except KeyError:
        raise MethodNotAllowed(tuple(sorted(by_method))) from None
