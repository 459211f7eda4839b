"""What templates compare with is what the software says: a state that is renamed or misspelt shows in no page's absence."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_args, get_type_hints

import pytest
from jinja2 import Environment, nodes

import simpletuner_fleet.web
from simpletuner_fleet.core.jobs.job import Outcome
from simpletuner_fleet.core.jobs.states import JobState
from simpletuner_fleet.core.people.quotas import QuotaAction, QuotaKind
from simpletuner_fleet.core.provisioning.machine import MachineState
from simpletuner_fleet.core.training.checkpoint import ManifestKind
from simpletuner_fleet.core.workers.worker import WorkerStatus
from simpletuner_fleet.http.access.auth import Principal
from simpletuner_fleet.http.api.notices.bodies import EndpointView
from simpletuner_fleet.web.pages.people.users import UserRow
from simpletuner_fleet.web.parts.jobs.train_fields import Kind as FieldKind

TEMPLATES = Path(simpletuner_fleet.web.__file__).with_name("templates")


def said_by(kind: type, field: str) -> frozenset[str]:
    return frozenset(get_args(get_type_hints(kind)[field]))


NAMES = ("status", "state", "outcome", "kind", "action", "code", "phase", "connection", "reason")
"""What a template reads one of a few words from."""
WORDS: dict[tuple[str, str], frozenset[str]] = {
    ("jobs", "status"): frozenset(JobState),
    ("jobs", "outcome"): frozenset(Outcome),
    ("jobs", "kind"): frozenset(get_args(ManifestKind)),
    ("workers", "status"): frozenset(WorkerStatus),
    ("workers", "outcome"): frozenset(Outcome),
    ("machines", "status"): frozenset(MachineState),
    ("training/train.html", "kind"): frozenset(get_args(FieldKind)),
    ("notices/endpoint.html", "status"): said_by(EndpointView, "status"),
    ("access/me.html", "kind"): said_by(Principal, "kind"),
    ("access/users.html", "state"): said_by(UserRow, "state"),
    ("access/quotas.html", "kind"): frozenset(QuotaKind),
    ("access/quotas.html", "action"): frozenset(QuotaAction),
}
"""By folder or template, and by name: whose words they are."""


class Compared(NamedTuple):
    template: str
    line: int
    name: str
    word: str


def comparisons() -> Iterator[Compared]:
    environment = Environment(extensions=["jinja2.ext.i18n"], autoescape=True)
    for file in sorted(TEMPLATES.rglob("*.html")):
        tree = environment.parse(file.read_text(encoding="utf-8"))
        for compare in tree.find_all(nodes.Compare):
            for operand in compare.ops:
                name = getattr(compare.expr, "attr", getattr(compare.expr, "name", ""))
                for constant in operand.expr.find_all(nodes.Const) if name in NAMES else ():
                    yield _compared(file, compare, name, constant)
                if name in NAMES and isinstance(operand.expr, nodes.Const):
                    yield _compared(file, compare, name, operand.expr)


def _compared(file: Path, compare: nodes.Compare, name: str, constant: nodes.Const) -> Compared:
    return Compared(file.relative_to(TEMPLATES).as_posix(), compare.lineno, name, str(constant.value))


def words_of(one: Compared) -> frozenset[str] | None:
    return WORDS.get((one.template, one.name)) or WORDS.get((one.template.split("/")[0], one.name))


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    """Gathered when a test asks for it, not by every process that only lists the tests: it takes two seconds."""
    return sorted(set(comparisons()))


def test_a_template_compares_with_words_that_are_said(compared: list[Compared]) -> None:
    assert compared
    assert [one for one in compared if words_of(one) is None] == [], "say above whose words these are"
    assert [one for one in compared if one.word not in (words_of(one) or ())] == []


def test_all_that_is_listed_is_compared_with(compared: list[Compared]) -> None:
    used = {
        key for one in compared for key in ((one.template, one.name), (one.template.split("/")[0], one.name))
    }
    assert not WORDS.keys() - used
