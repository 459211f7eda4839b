"""Finds the row that a method and a path belong to."""

from collections.abc import Mapping, Sequence
from urllib.parse import unquote_to_bytes

import msgspec

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.http.edge.bodies import query_decoder
from simpletuner_fleet.http.edge.problems import MethodNotAllowed
from simpletuner_fleet.http.edge.routes import Access, Route

WORKER_PATHS = "/api/workers/"
MAX_PATH_PARAMETER_CHARS = 200
MAX_REST_CHARS = 1024


class CompiledRoute:
    """A row with everything prepared that does not depend on the request."""

    __slots__ = ("body_decoder", "in_turn", "of_workers", "query_decoder", "row", "segments")

    def __init__(self, row: Route) -> None:
        self.row = row
        self.segments = tuple(row.path.split("/")[1:])
        self.of_workers = row.path.startswith(WORKER_PATHS)
        self.in_turn = not (self.of_workers or row.prompt or row.pieces or row.permission is Access.PUBLIC)
        """People's calls wait for each other, but for those that last as long as a line is slow, and for strangers'."""
        self.body_decoder = None if row.body in (None, bytes) else msgspec.json.Decoder(row.body)
        self.query_decoder = query_decoder(row.query) if row.query else None

    def parameters(self, segments: Sequence[str]) -> dict[str, str] | None:
        if not self.row.rest:
            return self._matched(segments)
        fixed = len(self.segments) - 1
        parameters = self._matched([*segments[:fixed], "rest"]) if len(segments) > fixed else None
        tail = [path_parameter(segment, MAX_REST_CHARS) for segment in segments[fixed:]]
        if parameters is None or None in tail:
            return None
        return {**parameters, self.segments[-1][1:-1]: "/".join(segment for segment in tail if segment)}

    def _matched(self, segments: Sequence[str]) -> dict[str, str] | None:
        parameters = {}
        for pattern, segment in zip(self.segments, segments, strict=True):
            if pattern.startswith("{"):
                value = path_parameter(segment)
                if value is None:
                    return None
                parameters[pattern[1:-1]] = value
            elif pattern != segment:
                return None
        return parameters


def path_parameter(segment: str, max_chars: int = MAX_PATH_PARAMETER_CHARS) -> str | None:
    """Decoded once, after the split, so that an encoded slash can never make a path."""
    try:
        value = unquote_to_bytes(segment).decode() if "%" in segment else segment
    except UnicodeDecodeError:
        return None
    unfit = value in ("", ".", "..") or "/" in value or "\\" in value or not value.isprintable()
    return None if unfit or len(value) > max_chars else value


class RouteTable:
    def __init__(self, rows: Sequence[Route]) -> None:
        self._literal: dict[str, dict[str, CompiledRoute]] = {}
        self._patterns: dict[int, dict[tuple[str, ...], dict[str, CompiledRoute]]] = {}
        self._rests: dict[tuple[str, ...], dict[str, CompiledRoute]] = {}
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
        shape = tuple("{}" if part.startswith("{") else part for part in compiled.segments)
        if compiled.row.rest:
            return self._rests.setdefault(shape, {})
        return self._patterns.setdefault(len(shape), {}).setdefault(shape, {})

    def find(self, method: str, path: str) -> tuple[CompiledRoute, dict[str, str]]:
        by_method = self._literal.get(path)
        if by_method is not None:
            return pick(by_method, method), {}
        segments = path.split("/")[1:]
        for by_method in (*self._patterns.get(len(segments), {}).values(), *self._rests.values()):
            parameters = next(iter(by_method.values())).parameters(segments)
            if parameters is not None:
                chosen = pick(by_method, method)
                return chosen, chosen.parameters(segments) or parameters
        raise NotFound("There is nothing at this path.")


def pick(by_method: Mapping[str, CompiledRoute], method: str) -> CompiledRoute:
    try:
        return by_method[method]
    except KeyError:
        raise MethodNotAllowed(tuple(sorted(by_method))) from None
