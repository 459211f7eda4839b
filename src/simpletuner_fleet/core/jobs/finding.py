"""Defines how jobs are searched: their order in lists, where a page begins, and their tags and notes.

An order is total, since equal values are told apart by the number of the job: a page can begin after any job, in either
direction, and nothing is shown twice or left out while others come and go.
"""

import base64
import binascii
import unicodedata
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from simpletuner_fleet.core.bounds import Count, Whole
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.job import Job, JobState
from simpletuner_fleet.core.policy import MAX_LABELS

NOT_YET = 1e12
"""A job that has not started, or not ended, is listed as if it would do so after all others."""
MAX_TAGS = 20
MAX_TAG_CHARS = 50
MAX_NOTE_CHARS = 4_000
TAG_PUNCTUATION = frozenset("-_.:/+@#")

SortValue = int | float | str
StoredText = Annotated[str, Meta(pattern=r"\A[^\x00]*\Z")]
"""No database stores a NUL, and one of them refuses to look for it."""
SearchWord = Annotated[str, Meta(max_length=200)]


class JobSort(StrEnum):
    CREATED = "created"
    STARTED = "started"
    FINISHED = "finished"
    PRIORITY = "priority"
    NAME = "name"
    CONFIG = "config"
    ATTEMPTS = "attempts"
    QUEUE = "queue"
    """The order in which waiting jobs start."""


FIRST_LARGEST = frozenset(
    {JobSort.CREATED, JobSort.STARTED, JobSort.FINISHED, JobSort.PRIORITY, JobSort.ATTEMPTS}
)
"""Those of which people first want to see the newest or the most."""


class JobOrder(Struct, frozen=True, kw_only=True):
    sort: JobSort = JobSort.CREATED
    descending: bool = True

    @property
    def turned(self) -> "JobOrder":
        return JobOrder(sort=self.sort, descending=not self.descending)

    @property
    def text(self) -> str:
        """Returns it as written in an address: the name, with a minus before it for the other direction than usual."""
        return str(self.sort) if self.descending is (self.sort in FIRST_LARGEST) else f"-{self.sort}"


NEWEST_FIRST = JobOrder()
IN_START_ORDER = JobOrder(sort=JobSort.QUEUE, descending=False)


class JobPlace(Struct, frozen=True, array_like=True):
    """Marks a position between two jobs of a list, where a page begins or ends; a cursor encodes one."""

    order: str
    value: Whole | float | StoredText
    seq: Whole
    shown: Count
    """The number of jobs before it, as the page that it comes from counted them."""
    backwards: bool = False
    """The page ends here instead of beginning here."""


def read_order(text: str) -> JobOrder:
    name = text.removeprefix("-")
    try:
        sort = JobSort(name)
    except ValueError:
        raise Invalid(f"sort must be one of {', '.join(JobSort)}.", path="$.sort") from None
    return JobOrder(sort=sort, descending=(sort in FIRST_LARGEST) is not text.startswith("-"))


def sort_value(job: Job, sort: JobSort) -> SortValue:
    match sort:
        case JobSort.STARTED:
            return NOT_YET if job.started_at is None else job.started_at
        case JobSort.FINISHED:
            return NOT_YET if job.finished_at is None else job.finished_at
        case JobSort.PRIORITY:
            return job.priority
        case JobSort.NAME:
            return job.name or job.config_name
        case JobSort.CONFIG:
            return job.config_name
        case JobSort.ATTEMPTS:
            return job.attempts
        case JobSort.QUEUE:
            return job.rank
        case _:
            return job.seq


def in_order(jobs: Sequence[Job], order: JobOrder) -> list[Job]:
    return sorted(jobs, key=lambda job: (sort_value(job, order.sort), job.seq), reverse=order.descending)


def write_place(place: JobPlace) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def read_place(cursor: str, order: JobOrder) -> JobPlace:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        place = msgspec.json.decode(text, type=JobPlace)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise Invalid("This cursor was not issued by this server.", path="$.cursor") from None
    if place.order != order.text or isinstance(place.value, str) is not _is_text(order.sort):
        raise Invalid("This cursor belongs to a list in another order.", path="$.cursor")
    return place


def _is_text(sort: JobSort) -> bool:
    return sort in (JobSort.NAME, JobSort.CONFIG)


def check_tags(tags: Sequence[str], path: str = "$.tags") -> tuple[str, ...]:
    """Returns the tags sorted, each once and in lower case, or raises what is wrong with one."""
    read = sorted({check_tag(tag, path) for tag in tags})
    if len(read) > MAX_TAGS:
        raise Invalid(f"A job can have at most {MAX_TAGS} tags.", path=path)
    return tuple(read)


def check_tag(tag: str, path: str = "$.tags") -> str:
    text = unicodedata.normalize("NFC", tag.strip()).lower()
    fitting = all(char.isalnum() or char in TAG_PUNCTUATION or _joins(char) for char in text)
    if not 1 <= len(text) <= MAX_TAG_CHARS or not fitting:
        raise Invalid(
            f"'{tag[:MAX_TAG_CHARS]}' cannot be a tag: a tag has 1 to {MAX_TAG_CHARS} letters, digits or "
            "-_.:/+@#, and no spaces.",
            path=path,
        )
    return text


def _joins(char: str) -> bool:
    """Tells whether a character combines with the letter before it, as the vowel signs of Hindi do."""
    return unicodedata.category(char) in ("Mn", "Mc")


def check_note(note: str) -> str:
    text = note.replace("\r\n", "\n").strip()
    if len(text) > MAX_NOTE_CHARS:
        raise Invalid(f"A note can have at most {MAX_NOTE_CHARS} characters.", path="$.note")
    return text


class JobSearch(Struct, kw_only=True):
    """Describes a search for jobs as a person writes it: names or ids, and times that may count back from now."""

    status: list[JobState] = []
    """May be repeated."""
    owner: SearchWord | None = None
    """The name or id of a user or a token."""
    worker: SearchWord | None = None
    """The name or id of the worker on which it runs or last ran."""
    config: SearchWord | None = None
    trainer: SearchWord | None = None
    dataset: SearchWord | None = None
    """The id of a dataset that it names, sha256:… ."""
    label: list[SearchWord] = []
    """key=value: a label that it asks of its worker, as it was submitted; may be repeated."""
    tag: list[SearchWord] = []
    """May be repeated: it has all of them."""
    reason: SearchWord | None = None
    """Why it waits (a code such as ALL_MATCHING_BUSY, what it takes: wait, change or admin, or
    impossible) or why it ended (such as
    gpu_out_of_memory, poison or results_missing)."""
    since: SearchWord | None = None
    """Submitted since: RFC 3339, seconds since 1970, or counted back from now as in 24h or 7d."""
    until: SearchWord | None = None
    ended_since: SearchWord | None = None
    ended_until: SearchWord | None = None
    q: SearchWord | None = None
    """Part of its name, its config's name or its id."""


def read_labels(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Returns each label once, or raises what is wrong with one: no job has more than there can be."""
    labels = tuple(dict.fromkeys(read_label(text) for text in texts if text))
    if len(labels) > MAX_LABELS:
        raise Invalid(f"There can be at most {MAX_LABELS} labels.", path="$.label")
    return labels


def read_label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Invalid(f"'{text}' is not a label: write key=value.", path="$.label")
    return key.strip(), value.strip()
