"""Stores the options that workers report of their trainers, and checks configs against them."""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import msgspec
from msgspec import Struct

from simpletuner_fleet import __version__
from simpletuner_fleet.core.configs.bundle import LAUNCH_SETTINGS, Bundle, check_name
from simpletuner_fleet.core.configs.demo_settings import DEMO, check_demo_settings
from simpletuner_fleet.core.configs.launch_settings import check_launch_settings
from simpletuner_fleet.core.configs.options import (
    MAX_OPTIONS,
    OptionFinding,
    Options,
    ReportedOptions,
    check_settings,
    least_used,
    newest_version,
    with_report,
)
from simpletuner_fleet.core.configs.trainer_names import BUILT_IN, check_trainer
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.kept_settings import OPTIONS_PREFIX, decoded
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.workers.inventory import refuse_other_trainer
from simpletuner_fleet.ports import View


class CheckedOptions(Struct, frozen=True):
    version: str | None
    """The release it was checked against; None where no worker has told of one, and nothing was checked."""
    findings: list[OptionFinding]


async def keep_options(fleet: Fleet, worker_id: str, trainer: str, options: Options) -> None:
    """Stores the options of a trainer that this worker has: of each release once, and no more than may be kept."""
    check_name(trainer, "$.trainer", "trainer's name")
    if len(options.options) > MAX_OPTIONS or not 1 <= len(options.version) <= 64:
        raise Invalid(f"A trainer can report at most {MAX_OPTIONS} options and a version.", path="$.options")

    def step(transaction: Transaction) -> None:
        refuse_other_trainer(transaction.worker_in_memory(worker_id), trainer)
        known = known_options(transaction.tx, trainer)
        report = ReportedOptions(
            version=options.version,
            options=options.options,
            also_read=options.also_read,
            reported_by=worker_id,
        )
        kept = with_report(known, report, transaction.index.roster.workers)
        if kept == known:
            return
        if not known and trainer not in BUILT_IN:
            _make_room(transaction)
        transaction.tx.put_setting(OPTIONS_PREFIX + trainer, msgspec.json.encode(kept).decode())

    await fleet.act(step)


def _make_room(transaction: Transaction) -> None:
    """Deletes the options of trainers that hardly any worker has, or none any more, where there are too many for one more.

    Who still has such a trainer reports its options again at its next start.
    """
    names = {key.removeprefix(OPTIONS_PREFIX) for key in transaction.tx.settings_with_prefix(OPTIONS_PREFIX)}
    workers = transaction.index.roster.workers.values()
    of_workers = Counter(name for worker in workers for name in worker.trainers)
    for name in least_used(names.difference(BUILT_IN), of_workers):
        transaction.tx.delete_setting(OPTIONS_PREFIX + name)


def known_options(view: View, trainer: str) -> dict[str, ReportedOptions]:
    """Returns what was reported of each release; nothing where that cannot be read, until a worker reports it again."""
    text = view.setting(OPTIONS_PREFIX + trainer)
    return {} if text is None else _decoded(OPTIONS_PREFIX + trainer, text) or {}


@lru_cache(maxsize=4)
def _decoded(key: str, text: str) -> dict[str, ReportedOptions] | None:
    """Decodes the options and caches them, since the Train page asks at every keystroke."""
    return decoded(key, text, dict[str, ReportedOptions], None)


async def newest_options(fleet: Fleet, trainer: str) -> Options | None:
    """Returns the options of the newest release that any worker has reported."""
    return await fleet.read(lambda view: _newest(known_options(view, trainer), view.workers()))


def _newest(known: dict[str, ReportedOptions], workers: Iterable[Worker]) -> ReportedOptions | None:
    version = newest_version(known, {worker.id for worker in workers})
    return known[version] if version else None


async def check_config(fleet: Fleet, bundle: Bundle, version: str | None = None) -> CheckedOptions:
    """Checks a config against the named release, or else against the newest that any worker has reported.

    Trainers that every install has are checked against rules of our own.
    """
    return await fleet.read(lambda view: _checked(view, bundle, version))


def _checked(view: View, bundle: Bundle, version: str | None) -> CheckedOptions:
    if bundle.trainer == DEMO:
        return CheckedOptions(__version__, check_demo_settings(bundle))
    if bundle.trainer in LAUNCH_SETTINGS:
        return CheckedOptions(__version__, check_launch_settings(bundle))
    known, workers = known_options(view, bundle.trainer), view.workers()
    misnamed = check_trainer(bundle.trainer, {name for worker in workers for name in worker.trainers})
    options = known.get(version) if version else _newest(known, workers)
    if options is None:
        return CheckedOptions(None, misnamed)
    return CheckedOptions(options.version, [*misnamed, *check_settings(bundle, options)])
