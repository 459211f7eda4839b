"""Checks a config's settings against the options that the trainer itself reports."""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.bounds import Amount, Name, Remark
from simpletuner_fleet.core.configs.bundle import MOST_TOLD_CHARS, Bundle
from simpletuner_fleet.core.configs.spelling import nearest
from simpletuner_fleet.core.cutting import excerpt

MAX_OPTIONS = 4000
MAX_VERSIONS = 8
MAX_VERSIONS_OF_ONE = 2
"""So many releases are kept by one worker's word: it has one at a time, and had another before."""
MAX_KEPT_BYTES = 4 * 1024 * 1024
"""Of all kept releases of one trainer together: whoever fills in a form reads them at every keystroke."""
MAX_TRAINERS = 8
"""So many trainers' options are kept, beside those of every install."""
MOST_FINDINGS = 100
MOST_GUESSES = 20
Kind = Literal["text", "int", "float", "switch", "other"]
Level = Literal["error", "warning"]
OURS = frozenset(
    {"cwd", "num_processes", "num_machines", "dynamo_backend", "accelerate_config", "accelerate_extra_args"}
)
"""Settings that say how the trainer is launched; its parser never sees them."""
SPOKEN = ("true", "false")


class Option(Struct, frozen=True, kw_only=True):
    names: tuple[Name, ...]
    kind: Kind = "other"
    choices: tuple[Remark, ...] = ()
    several: bool = False
    required: bool = False
    help: Remark = ""
    default: Name = ""
    """As it would be written; empty where there is none, or none that could be written."""
    least: Amount | None = None
    most: Amount | None = None
    """What the trainer's own form takes. Its parser may take more."""


class Options(Struct, frozen=True, kw_only=True):
    """Lists all options that one release of a trainer accepts."""

    version: Name
    options: tuple[Option, ...]
    also_read: tuple[Name, ...] = ()
    """Names of older releases that it still takes, or leaves out without a word."""


class ReportedOptions(Options, frozen=True, kw_only=True):
    reported_by: Name = ""
    """The worker; empty where that was not kept."""


class OptionFinding(Struct, frozen=True, kw_only=True):
    path: str
    level: Level
    detail: str
    next: str | None = None


def read_options(document: Any) -> Options:
    return msgspec.convert(document, Options)


def version_order(version: str) -> tuple[tuple[int, str], ...]:
    """Returns a sort key: 4.10.1 comes after 4.9, and a part that is no number comes before one that is."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in version.split("."))


def newest_version(releases: Mapping[str, ReportedOptions], workers: Container[str]) -> str | None:
    """Returns the newest release that a worker of the fleet has reported; those of others count only where it has none."""
    present = [version for version, one in releases.items() if _is_vouched_for(one, workers)]
    return max(present or releases, key=version_order, default=None)


def with_report(
    releases: Mapping[str, ReportedOptions], report: ReportedOptions, workers: Container[str]
) -> dict[str, ReportedOptions]:
    """Returns the releases to keep after a worker's report.

    What another worker of the fleet has reported of the same release stays, and of the worker's own no more than a few:
    one that invents releases drives out neither those that others have nor what they take.
    """
    known = releases.get(report.version)
    if known and known.reported_by != report.reported_by and known.reported_by in workers:
        return dict(releases)
    others = {version: one for version, one in releases.items() if version != report.version}
    own = sorted(
        (version for version, one in others.items() if one.reported_by == report.reported_by),
        key=version_order,
        reverse=True,
    )
    for version in own[MAX_VERSIONS_OF_ONE - 1 :]:
        del others[version]
    return newest_releases({**others, report.version: report}, workers)


def _is_vouched_for(release: ReportedOptions, workers: Container[str]) -> bool:
    return not release.reported_by or release.reported_by in workers


def newest_releases(
    releases: Mapping[str, ReportedOptions], workers: Container[str]
) -> dict[str, ReportedOptions]:
    """Returns the releases to keep: the newest, and those before it as far as they fit beside it.

    Those of workers that are gone come last.
    """

    def rank(version: str) -> tuple[bool, tuple[tuple[int, str], ...]]:
        return _is_vouched_for(releases[version], workers), version_order(version)

    kept: dict[str, ReportedOptions] = {}
    room = MAX_KEPT_BYTES
    for version in sorted(releases, key=rank, reverse=True)[:MAX_VERSIONS]:
        room -= len(msgspec.json.encode(releases[version]))
        if kept and room < 0:
            break
        kept[version] = releases[version]
    return kept


def least_used(others: Collection[str], of_workers: Mapping[str, int]) -> list[str]:
    """Returns which other trainers make room for one more: those that the fewest workers have.

    `of_workers` says how many have each trainer.
    """
    ranked = sorted(others, key=lambda name: (of_workers.get(name, 0), name))
    return ranked[: max(0, len(ranked) + 1 - MAX_TRAINERS)]


def check_settings(bundle: Bundle, options: Options) -> list[OptionFinding]:
    """Returns what the trainer would complain about, or would silently do otherwise than its user thinks."""
    return first_of(_findings(bundle, options))


def first_of(findings: Iterable[OptionFinding], worst: Level = "error") -> list[OptionFinding]:
    """Returns no more than somebody reads: a config may hold a hundred thousand settings, and each takes time.

    `worst` is what the rest may hold: what was not checked is not called right.
    """
    first = list(islice(findings, MOST_FINDINGS + 1))
    if len(first) <= MOST_FINDINGS:
        return first
    more = OptionFinding(
        path="$.settings",
        level=worst,
        detail=f"These are the first {MOST_FINDINGS} findings; what follows was not checked.",
    )
    return [*first[:MOST_FINDINGS], more]


def _findings(bundle: Bundle, options: Options) -> Iterator[OptionFinding]:
    by_name = {name: option for option in options.options for name in option.names}
    spelling = Spelling(by_name)
    seen: dict[str, str] = {}
    for key, value in bundle.settings.items():
        name = key.lstrip("-").replace("-", "_")
        path = f"$.settings.{excerpt(key, MOST_TOLD_CHARS)}"
        shown = excerpt(name, MOST_TOLD_CHARS)
        if seen.setdefault(name, key) != key:
            first, second = (excerpt(one, MOST_TOLD_CHARS) for one in (seen[name], key))
            twice = f"'{shown}' is set twice: as {first} and as {second}."
            yield OptionFinding(path=path, level="warning", detail=twice)
        if name in OURS or name in options.also_read or name.startswith("__") or value is None:
            continue
        option = by_name.get(name)
        if option is None:
            detail = f"SimpleTuner {options.version} has no option '{shown}'."
            yield OptionFinding(path=path, level="error", detail=detail, next=spelling.guess(name))
        else:
            yield from _complaints(name, path, value, option)
            yield from _beyond(name, path, value, option, options.version)
    yield from _together(bundle, set(seen), options)


class Spelling:
    """Guesses what was meant by the first few unknown names; whoever has more of them has another mistake."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._left = MOST_GUESSES

    def guess(self, name: str) -> str | None:
        if not self._left:
            return None
        self._left -= 1
        near = nearest(name, self._names, 0.75)
        return f"Did you mean '{near}'?" if near else None


def _complaints(name: str, path: str, value: Any, option: Option) -> Iterator[OptionFinding]:
    if isinstance(value, dict):
        return
    for item in value if isinstance(value, list | tuple) else (value,):
        if option.kind in ("int", "float") and not _is_number(item, whole=option.kind == "int"):
            what = "a whole number" if option.kind == "int" else "a number"
            yield OptionFinding(
                path=path, level="error", detail=f"'{name}' must be {what}, not {_shown(item)}."
            )
        elif option.kind == "switch" and not _is_switch(item):
            yield OptionFinding(
                path=path, level="error", detail=f"'{name}' must be true or false, not {_shown(item)}."
            )
        elif option.choices and not isinstance(item, bool) and str(item) not in option.choices:
            near = nearest(str(item), option.choices)
            yield OptionFinding(
                path=path,
                level="error",
                detail=f"'{name}' must be one of {', '.join(option.choices[:20])}, not {_shown(item)}.",
                next=f"Did you mean '{near}'?" if near else None,
            )


def _beyond(name: str, path: str, value: Any, option: Option, version: str) -> Iterator[OptionFinding]:
    """Yields warnings only: the bounds are those of the trainer's form.

    The form is stricter than the trainer itself, and some bounds mean no more than "unusual".
    """
    for item in value if isinstance(value, list | tuple) else (value,):
        if option.kind not in ("int", "float") or not _is_number(item, whole=False):
            continue
        number = float(item)
        if option.least is not None and number < option.least:
            yield OptionFinding(
                path=path,
                level="warning",
                detail=f"SimpleTuner {version} expects '{name}' to be at least {_plain(option.least)}, not {_shown(item)}.",
            )
        elif option.most is not None and number > option.most:
            yield OptionFinding(
                path=path,
                level="warning",
                detail=f"SimpleTuner {version} expects '{name}' to be at most {_plain(option.most)}, not {_shown(item)}.",
            )


def _is_number(value: Any, *, whole: bool) -> bool:
    """Tells whether it is a number in the way the trainer's own parser does: from its text."""
    if isinstance(value, bool):
        return False
    try:
        (int if whole else float)(str(value))
    except ValueError:
        return False
    return True


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool) or value in (0, 1) or str(value).lower() in (*SPOKEN, "")


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:60]


def _together(bundle: Bundle, names: set[str], options: Options) -> Iterator[OptionFinding]:
    """Yields what the settings lack as a whole.

    The orchestrator provides the output folder, and the dataloader may be the bundle's own.
    """
    given = names | {"output_dir"} | ({"data_backend_config"} if bundle.dataloader is not None else set())
    for option in options.options:
        if option.required and not given & set(option.names):
            yield OptionFinding(
                path="$.settings",
                level="error",
                detail=f"SimpleTuner {options.version} needs '{option.names[0]}'.",
            )
    settings = {key.lstrip("-").replace("-", "_"): value for key, value in bundle.settings.items()}
    if settings.get("lora_type") == "lycoris" and not settings.get("lycoris_config"):
        yield OptionFinding(
            path="$.settings.lora_type", level="error", detail="lora_type 'lycoris' needs a lycoris_config."
        )
    if (
        _is_on(settings.get("push_to_hub"))
        and not {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} & bundle.secrets.keys()
    ):
        yield OptionFinding(
            path="$.settings.push_to_hub",
            level="warning",
            detail="push_to_hub needs the worker's own Hugging Face Hub login, or a secret HF_TOKEN.",
        )


def _is_on(value: Any) -> bool:
    return value is True or str(value).lower() == "true"
