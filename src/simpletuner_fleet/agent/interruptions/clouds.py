"""Asks each cloud in its own way whether it takes this machine away, and judges which answers to believe."""

import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
from msgspec import Struct

from simpletuner_fleet.agent.interruptions.firmware import AWS, AZURE, GCP
from simpletuner_fleet.agent.interruptions.metadata import MetadataAnswer, MetadataService

AWS_TOKEN_TTL_S = 21_600
AWS_ACTIONS = frozenset({"terminate", "stop", "hibernate"})
GCP_NOTICE_S = 25.0
"""It gives thirty seconds and does not say since when."""
GCP_HANGS_S = 60
AZURE_EVENTS = frozenset({"Preempt", "Terminate"})
AZURE_VERSION = "2020-07-01"
AZURE_FIRST_ANSWER_S = 150.0
"""Its first answer may take two minutes: the service is started by the question."""
OK, UNAUTHORIZED = 200, 401


class EndSeen(Struct, frozen=True, kw_only=True):
    """Describes a cloud's notice that it takes this machine away."""

    source: str
    in_s: float


class CloudWatch(Protocol):
    every_s: float
    answers: bool
    """Whether it has ever answered as this cloud does."""

    async def look(self) -> EndSeen | None: ...


class AwsWatch:
    """Asks AWS's metadata service (IMDSv2) whether this machine is taken away.

    IMDSv2 wants a token first, which a request that was merely reflected or forwarded cannot get.
    """

    every_s = 5.0

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self._token = ""
        self.answers = False

    async def look(self) -> EndSeen | None:
        if not self._token and not await self._fetch_token():
            return None
        headers = {"X-aws-ec2-metadata-token": self._token}
        answer = await self._service.ask("/latest/meta-data/spot/instance-action", headers)
        if answer is None:
            return None
        if answer.status == UNAUTHORIZED:
            self._token = ""
            return None
        self.answers = True
        return aws_end(answer) if answer.status == OK else None

    async def _fetch_token(self) -> bool:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_TTL_S)}
        answer = await self._service.ask("/latest/api/token", headers, method="PUT")
        if answer is not None and answer.status == OK:
            token = answer.content.decode("latin-1").strip()
            self._token = token if token.isascii() and token.isprintable() and " " not in token else ""
        return bool(self._token)


def aws_end(answer: MetadataAnswer) -> EndSeen | None:
    said = _object(answer.content)
    at = _moment(said.get("time"))
    if said.get("action") not in AWS_ACTIONS or at is None:
        return None
    return EndSeen(source=AWS, in_s=at - _now(answer))


class GcpWatch:
    """Asks Google Cloud's metadata service whether this machine is preempted.

    The service holds its answer back until it changes, so that no time is lost.
    """

    every_s = 2.0

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self._etag = ""
        self.answers = False

    async def look(self) -> EndSeen | None:
        # Without the mark of the last answer a change between two questions would be missed.
        wait = f"?wait_for_change=true&timeout_sec={GCP_HANGS_S}&last_etag={self._etag}" if self._etag else ""
        answer = await self._service.ask(
            f"/computeMetadata/v1/instance/preempted{wait}",
            {"Metadata-Flavor": "Google"},
            within_s=GCP_HANGS_S + 10.0 if wait else 2.0,
        )
        if answer is None or answer.headers.get("metadata-flavor") != "Google" or answer.status != OK:
            return None
        self.answers = True
        self._etag = quote(answer.headers.get("etag", ""), safe="")
        if answer.content.strip() != b"TRUE":
            return None
        return EndSeen(source=GCP, in_s=GCP_NOTICE_S)


class AzureWatch:
    """Asks Azure's metadata service for scheduled events that end this machine.

    All machines of a set are told of one another's events: only those that name this machine count.
    """

    every_s = 5.0

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self._name = ""
        self.answers = False

    async def look(self) -> EndSeen | None:
        if not self._name:
            self._name = await self._own_name()
        if not self._name:
            return None
        answer = await self._service.ask(
            f"/metadata/scheduledevents?api-version={AZURE_VERSION}",
            {"Metadata": "true"},
            within_s=5.0 if self.answers else AZURE_FIRST_ANSWER_S,
        )
        if answer is None or answer.status != OK:
            return None
        self.answers = True
        return azure_end(answer, self._name)

    async def _own_name(self) -> str:
        target = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        answer = await self._service.ask(target, {"Metadata": "true"})
        return answer.content.decode("utf-8", "replace").strip() if answer and answer.status == OK else ""


def azure_end(answer: MetadataAnswer, name: str) -> EndSeen | None:
    events = _object(answer.content).get("Events")
    ends = [_azure_in_s(event, name, answer) for event in events] if isinstance(events, list) else []
    soonest = min((in_s for in_s in ends if in_s is not None), default=None)
    return None if soonest is None else EndSeen(source=AZURE, in_s=soonest)


def _azure_in_s(event: Any, name: str, answer: MetadataAnswer) -> float | None:
    if not isinstance(event, dict) or event.get("EventType") not in AZURE_EVENTS:
        return None
    resources = event.get("Resources")
    if not isinstance(resources, list) or name not in resources:
        return None
    if event.get("EventStatus") == "Started":
        return 0.0
    try:
        return parsedate_to_datetime(str(event.get("NotBefore"))).timestamp() - _now(answer)
    except (ValueError, OverflowError):
        return 0.0


def watch_of(cloud: str, service: MetadataService) -> CloudWatch:
    kinds: dict[str, type[AwsWatch] | type[GcpWatch] | type[AzureWatch]] = {
        AWS: AwsWatch,
        GCP: GcpWatch,
        AZURE: AzureWatch,
    }
    return kinds[cloud](service)


def _now(answer: MetadataAnswer) -> float:
    """Returns the time by the clock of whoever answers, where it tells: this machine's may be wrong."""
    return time.time() if answer.at is None else answer.at


def _object(content: bytes) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _moment(text: Any) -> float | None:
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at.replace(tzinfo=at.tzinfo or UTC).timestamp()
