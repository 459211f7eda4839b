"""Notices of the clouds, asked of a real server that acts as each of them; who is believed, and who is not asked at all."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.interruptions import metadata
from simpletuner_fleet.agent.interruptions.clouds import AwsWatch, AzureWatch, EndSeen, GcpWatch
from simpletuner_fleet.agent.interruptions.firmware import AZURE_TAG, cloud_of, signaller
from simpletuner_fleet.agent.interruptions.metadata import MetadataService
from simpletuner_fleet.agent.interruptions.remembered import DISTRUST_S, OVERDUE_S, RememberedEnd
from simpletuner_fleet.agent.interruptions.watching import NoticeSettings, watch_for_end
from tests.agent.interruptions.metadata_server import OWN_NAME, CloudFacts, metadata_server
from tests.e2e.processes import wait_until

NO_YEAR = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"


@pytest.fixture(scope="module")
def server() -> Iterator[CloudFacts]:
    with metadata_server() as facts:
        yield facts


@pytest.fixture
def facts(server: CloudFacts) -> CloudFacts:
    server.begin_anew()
    return server


async def becomes(holds: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, holds, what, 30.0)


def in_seconds(seconds: float) -> datetime:
    return datetime.fromtimestamp(time.time() + seconds, UTC)


async def test_aws_is_asked_with_a_token_and_tells_when(facts: CloudFacts) -> None:
    watch = AwsWatch(MetadataService(facts.url))
    assert await watch.look() is None
    assert watch.answers
    facts.tokens.append("another==")
    assert await watch.look() is None, "the token has run out"
    at = in_seconds(110.0).strftime("%Y-%m-%dT%H:%M:%SZ")
    facts.instance_action = json.dumps({"action": "terminate", "time": at})
    seen = await watch.look()
    assert seen is not None
    assert 90.0 < seen.in_s <= 111.0
    assert [one for one in facts.asked if one.startswith("PUT")] == ["PUT /latest/api/token"] * 2


@pytest.mark.parametrize(
    "said",
    [
        "",
        "terminate",
        "[]",
        '{"action": "terminate"}',
        '{"action": "dance", "time": "2030-01-01T00:00:00Z"}',
        '{"action": "stop", "time": "soon"}',
        "[" * 100_000,
        "x" * 300_000,
    ],
)
async def test_nonsense_in_the_place_of_a_notice_is_none(facts: CloudFacts, said: str) -> None:
    facts.instance_action = said
    assert await AwsWatch(MetadataService(facts.url)).look() is None


async def test_gcp_is_told_in_the_moment_and_only_by_its_own_kind(facts: CloudFacts) -> None:
    watch = GcpWatch(MetadataService(facts.url))
    assert await watch.look() is None
    waiting = asyncio.create_task(watch.look())
    await becomes(lambda: any("wait_for_change" in one for one in facts.asked), "it waits for a change")
    facts.preempt()
    assert await waiting == EndSeen(source="gcp", in_s=25.0)
    facts.flavor = "Other"
    assert await GcpWatch(MetadataService(facts.url)).look() is None


async def test_azure_events_count_where_they_name_this_machine(facts: CloudFacts) -> None:
    watch = AzureWatch(MetadataService(facts.url))
    assert await watch.look() is None
    preempt: dict[str, Any] = {
        "EventType": "Preempt",
        "EventStatus": "Scheduled",
        "Resources": ["another-vm"],
        "NotBefore": format_datetime(in_seconds(40.0), usegmt=True),
    }
    facts.events = [preempt, {"EventType": "Freeze", "Resources": [OWN_NAME]}, {}]
    assert await watch.look() is None
    facts.events = [{**preempt, "Resources": [OWN_NAME]}]
    seen = await watch.look()
    assert seen is not None
    assert 20.0 < seen.in_s <= 41.0
    facts.events = [{**preempt, "Resources": [OWN_NAME], "EventStatus": "Started", "NotBefore": ""}]
    assert await watch.look() == EndSeen(source="azure", in_s=0.0)
    facts.events = [{**preempt, "Resources": [OWN_NAME], "NotBefore": NO_YEAR}]
    assert await watch.look() == EndSeen(source="azure", in_s=0.0), "a time that is none is now"


def test_a_date_beyond_all_years_is_none() -> None:
    assert metadata._time_of(NO_YEAR) is None
    assert metadata._time_of("Mon, 01 Jan 2024 00:00:00 GMT") == 1704067200.0


async def test_a_machine_of_no_cloud_and_one_that_is_told_not_to_ask_nobody(
    facts: CloudFacts, tmp_path: Path
) -> None:
    heard: list[EndSeen] = []
    remembered = RememberedEnd(tmp_path, "boot")
    for watch in ("auto", "off"):
        settings = NoticeSettings(watch=watch, metadata_url=facts.url, firmware=tmp_path)
        await watch_for_end(settings, remembered, heard.append)
    assert (facts.asked, heard) == ([], [])


async def test_the_cloud_that_the_firmware_names_is_asked_and_what_it_says_is_told(
    facts: CloudFacts, tmp_path: Path
) -> None:
    (tmp_path / "sys_vendor").write_text("Google\n")
    facts.preempt()
    heard: list[EndSeen] = []
    settings = NoticeSettings(metadata_url=facts.url, firmware=tmp_path)
    await watch_for_end(settings, RememberedEnd(tmp_path, "boot"), heard.append)
    assert heard == [EndSeen(source="gcp", in_s=25.0)]
    assert all("computeMetadata" in one for one in facts.asked)


@pytest.mark.parametrize(
    ("files", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Xen", "board_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": AZURE_TAG}, "azure"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "none"}, None),
        ({"sys_vendor": "Supermicro"}, None),
        ({}, None),
    ],
)
def test_whose_machine_it_is_by_its_firmware(
    tmp_path: Path, files: dict[str, str], cloud: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert cloud_of(tmp_path) == cloud


def test_who_ends_machines_by_a_signal() -> None:
    assert signaller({"SLURM_JOB_ID": "7", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "slurm"
    assert signaller({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "kubernetes"
    assert signaller({"RUNPOD_POD_ID": "p"}) == "runpod"
    assert signaller({"VAST_CONTAINERLABEL": "C.1"}) == "vast"
    assert signaller({"SLURM_JOB_ID": ""}) is None


def test_who_said_wrongly_that_a_machine_ends_is_not_believed_for_a_while(tmp_path: Path) -> None:
    def again(boot: str = "boot") -> RememberedEnd:
        return RememberedEnd(tmp_path, boot)

    now = boottime()
    again().note("aws", now + 100.0)
    assert 100.0 < again().expected_s() <= 100.0 + OVERDUE_S
    assert again("another").expected_s() == 0.0, "the machine was booted anew"
    again().note("aws", now - OVERDUE_S - 5.0)
    assert again().expected_s() == 0.0
    assert not again().believes("aws")
    assert again().believes("gcp")
    assert again("another").believes("aws")
    again().note("aws", now - OVERDUE_S - DISTRUST_S - 5.0)
    assert again().believes("aws")
    (tmp_path / "told_end.json").write_text("{")
    assert again().believes("aws")


async def test_a_notice_that_was_false_is_asked_for_again_and_not_obeyed(
    facts: CloudFacts, tmp_path: Path
) -> None:
    facts.preempt()
    remembered = RememberedEnd(tmp_path, "boot")
    remembered.note("gcp", boottime() - OVERDUE_S - 1.0)
    heard: list[EndSeen] = []
    settings = NoticeSettings(watch="gcp", metadata_url=facts.url)
    watching = asyncio.create_task(watch_for_end(settings, remembered, heard.append))
    await becomes(lambda: len(facts.asked) >= 2, "it is asked again")
    assert heard == []
    remembered.note("gcp", boottime() - OVERDUE_S - DISTRUST_S - 1.0)
    await watching
    assert len(heard) == 1
