"""Determines what an hour of a GPU costs: as set for a worker, told by it, or by a rule on labels and GPUs."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.money.amounts import DEFAULT_CURRENCY, MAX_MICROS
from simpletuner_fleet.core.placement.label_match import labels_match
from simpletuner_fleet.core.workers.worker import Gpu, Worker, WorkerType

MAX_GLOB_CHARS = 256


class PriceRule(Struct, frozen=True, kw_only=True):
    """A price rule sets the hourly price of GPUs.

    It applies to a GPU where everything that it names matches; one that names nothing applies to every GPU.
    """

    id: str
    price_micros: int
    """Of one GPU for an hour, in millionths of the currency's unit."""
    label: str = ""
    """The name of a label, where the worker must have one."""
    value: str = ""
    """A glob that the label's value fits."""
    gpu: str = ""
    """A glob that the GPU's name fits, in whatever case."""
    worker_type: WorkerType | None = None
    created_at: float = 0.0

    @property
    def names(self) -> int:
        """Returns how many conditions the rule has: one with more conditions goes before one with fewer."""
        return bool(self.label) + bool(self.gpu) + (self.worker_type is not None)


class PriceList(Struct, frozen=True, kw_only=True):
    currency: str = DEFAULT_CURRENCY
    rules: tuple[PriceRule, ...] = ()


NO_PRICES = PriceList()


def checked_price(micros: int, path: str = "$.price_micros") -> int:
    if not 0 <= micros <= MAX_MICROS:
        raise Invalid("A price is 0 or more, in whole millionths of the currency's unit.", path=path)
    return micros


def checked_price_rule(rule: PriceRule) -> PriceRule:
    checked_price(rule.price_micros)
    if bool(rule.label) != bool(rule.value):
        raise Invalid("A rule about a label names the label and a glob of its value.", path="$.label")
    if max(map(len, (rule.label, rule.value, rule.gpu))) > MAX_GLOB_CHARS:
        raise Invalid(f"A glob has at most {MAX_GLOB_CHARS} characters.", path="$.gpu")
    return rule


def in_order(rules: Iterable[PriceRule]) -> tuple[PriceRule, ...]:
    """Returns the rules in the order in which they apply: more conditions first, then the one set last."""
    return tuple(sorted(rules, key=lambda rule: (-rule.names, -rule.created_at, rule.id)))


def gpu_price(prices: PriceList, worker: Worker, gpu: Gpu) -> int | None:
    """Returns what an hour of this GPU costs, in millionths; None where nobody has said."""
    said = worker.price_micros if worker.price_micros is not None else worker.reported_price_micros
    if said is not None or not prices.rules:
        return said
    return next((rule.price_micros for rule in prices.rules if _holds(rule, worker, gpu)), None)


def hourly_price(prices: PriceList, worker: Worker, gpus: Iterable[Gpu]) -> int | None:
    """Returns what an hour of these GPUs together costs; None where the price of one of them is not known."""
    total = 0
    for gpu in gpus:
        price = gpu_price(prices, worker, gpu)
        if price is None:
            return None
        total += price
    return total


def _holds(rule: PriceRule, worker: Worker, gpu: Gpu) -> bool:
    return (
        (not rule.label or labels_match(((rule.label, rule.value),), worker.effective_labels))
        and (not rule.gpu or fnmatchcase(gpu.name.casefold(), rule.gpu.casefold()))
        and (rule.worker_type is None or rule.worker_type is worker.worker_type)
    )
