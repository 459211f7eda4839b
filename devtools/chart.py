"""Renders the Helm chart in deploy/chart, as far as its templates go: values, pipes, if, else, range.

`python -m devtools.chart` writes the plain manifests in deploy/kubernetes, which are the chart with its usual values. What
templates use beyond this is refused, so that they stay as simple as that.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[1] / "deploy" / "chart"
PLAIN = CHART.parent / "kubernetes" / "fleet.yaml"
NAME = "simpletuner-fleet"
BEGINS = f"""# The chart in deploy/chart with its usual values, by 'python -m devtools.chart'. Say your image, then:
#   kubectl create namespace {NAME}
#   kubectl apply -n {NAME} -f deploy/kubernetes/fleet.yaml
"""
_ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_RANGE = re.compile(r"range (\$\w+), (\$\w+) := (.+)")


class UnknownTemplate(Exception):
    """A template says something that this does not understand."""


def rendered(values: Mapping[str, Any] | None = None, name: str = NAME, namespace: str = NAME) -> str:
    """Returns all manifests. `values` are laid over the chart's own."""
    own = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    scope = {
        ".Values": laid_over(own, values or {}),
        ".Release": {"Name": name, "Namespace": namespace},
    }
    texts = [
        _Template(file.read_text("utf-8")).render(scope)
        for file in sorted((CHART / "templates").glob("*.yaml"))
    ]
    return "---\n" + "\n---\n".join(text.strip("\n") for text in texts if text.strip()) + "\n"


def laid_over(own: Any, given: Any) -> Any:
    if not isinstance(own, dict) or not isinstance(given, Mapping):
        return given
    return {**own, **{key: laid_over(own.get(key), value) for key, value in given.items()}}


class _Template:
    def __init__(self, text: str) -> None:
        self._parts: list[tuple[str, str]] = []
        """Text, or an action, in order."""
        at, trims = 0, False
        for match in _ACTION.finditer(text):
            self._add_text(text[at : match.start()], trims, bool(match[1]))
            self._parts.append(("action", match[2]))
            at, trims = match.end(), bool(match[3])
        self._add_text(text[at:], trims, False)

    def _add_text(self, text: str, left: bool, right: bool) -> None:
        text = text.lstrip() if left else text
        self._parts.append(("text", text.rstrip() if right else text))

    def render(self, scope: dict[str, Any]) -> str:
        written, at = self._block(0, scope, True)
        if at != len(self._parts):
            raise UnknownTemplate(f"an end too many: {self._parts[at]}")
        return written

    def _block(self, at: int, scope: dict[str, Any], shown: bool) -> tuple[str, int]:
        """Returns what the parts from there on give, and where the `else` or `end` stands that closes them."""
        written: list[str] = []
        while at < len(self._parts):
            kind, text = self._parts[at]
            if kind == "text":
                written.append(text)
            elif text in ("else", "end"):
                break
            elif text.startswith(("if ", "range ")):
                inner, at = self._compound(text, at + 1, scope, shown)
                written.append(inner)
            elif shown:
                written.append(_shown(_value(text, scope)))
            at += 1
        return "".join(written) if shown else "", at

    def _compound(self, text: str, at: int, scope: dict[str, Any], shown: bool) -> tuple[str, int]:
        if text.startswith("range "):
            match = _RANGE.fullmatch(text)
            if match is None:
                raise UnknownTemplate(text)
            items = sorted(_value(match[3], scope).items()) if shown else []
            _, end = self._block(at, scope, False)
            turns = [
                self._block(at, {**scope, match[1]: key, match[2]: value}, True)[0] for key, value in items
            ]
            return "".join(turns), self._closed(end)
        holds = shown and bool(_value(text.removeprefix("if "), scope))
        first, end = self._block(at, scope, holds)
        if end < len(self._parts) and self._parts[end][1] == "else":
            second, end = self._block(end + 1, scope, shown and not holds)
            return first + second, self._closed(end)
        return first, self._closed(end)

    def _closed(self, at: int) -> int:
        if at >= len(self._parts) or self._parts[at] != ("action", "end"):
            raise UnknownTemplate("an end is missing")
        return at


def _value(text: str, scope: Mapping[str, Any]) -> Any:
    first, *pipes = [part.strip() for part in text.split("|")]
    words = first.split()
    value = _looked_up(words[-1], scope)
    for pipe in [*([words[0]] if len(words) == 2 else []), *pipes]:
        value = _piped(pipe, value)
    return value


def _looked_up(path: str, scope: Mapping[str, Any]) -> Any:
    for begins, value in scope.items():
        if path == begins:
            return value
        if path.startswith(f"{begins}."):
            for part in path.removeprefix(f"{begins}.").split("."):
                value = value[part]
            return value
    raise UnknownTemplate(path)


def _piped(pipe: str, value: Any) -> Any:
    name, _, argument = pipe.partition(" ")
    if name == "quote":
        return '"' + _shown(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    if name == "toYaml":
        return yaml.safe_dump(value, default_flow_style=False).rstrip("\n")
    if name == "nindent":
        return "".join(f"\n{' ' * int(argument)}{line}" for line in value.split("\n"))
    raise UnknownTemplate(pipe)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def main() -> int:
    PLAIN.parent.mkdir(exist_ok=True)
    PLAIN.write_text(BEGINS + rendered(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
