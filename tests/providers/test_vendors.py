"""RunPod and Vast.ai, against servers of our own that hold to what the vendors publish, with their quirks."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.provisioning.offers import MachineOffer
from simpletuner_fleet.providers.contract import (
    MachineOrder,
    MachineProvider,
    ProviderRefused,
    ProviderSurroundings,
    ProviderUnsure,
)
from simpletuner_fleet.providers.registry import make_provider
from simpletuner_fleet.providers.vendor_http import vendor_client
from tests.core.provisioning.provisioning_kit import a_pool
from tests.e2e.processes import wait_until
from tests.providers.vendors.runpod_server import RunPodServer
from tests.providers.vendors.vast_server import VastServer
from tests.providers.vendors.vendor_server import KEY, VendorServer

NAME = "stf-f1-m1"
CLIENTS: list[httpx2.AsyncClient] = []
UNUSED_TLS = ssl.create_default_context()
"""Every client would make its own, at 50 ms each."""
SERVERS: dict[str, type[VendorServer]] = {"runpod": RunPodServer, "vast": VastServer}


@pytest.fixture(autouse=True)
async def client() -> AsyncIterator[None]:
    async with vendor_client(30.0, UNUSED_TLS) as made:
        CLIENTS.append(made)
        yield
        CLIENTS.pop()


@pytest.fixture(params=sorted(SERVERS))
def vendor(request: pytest.FixtureRequest) -> Iterator[VendorServer]:
    with SERVERS[request.param]() as server:
        yield server


def kind_of(vendor: VendorServer) -> str:
    return next(kind for kind, type_ in SERVERS.items() if isinstance(vendor, type_))


def provider_of(
    vendor: VendorServer,
    *,
    key: str | None = KEY,
    currency: str = "USD",
    settings: Any = None,
    **request: Any,
) -> MachineProvider:
    given = {"image": "ghcr.io/x/worker:1", "api_url": vendor.url, **(settings or {})}
    pool = a_pool(provider=kind_of(vendor), secret="key", settings=given, **request)
    return make_provider(
        ProviderSurroundings(
            pool=pool,
            key=key,
            folder=Path("/nonexistent"),
            environment={},
            http=CLIENTS[-1],
            currency=currency,
        )
    )


async def an_order(provider: MachineProvider, name: str = NAME) -> MachineOrder:
    offer = (await provider.offers())[0]
    return MachineOrder(name=name, offer=offer, environment={"SIMPLETUNER_WORKER_TOKEN": "jt_1"})


async def test_a_machine_is_made_listed_by_its_name_and_ended(vendor: VendorServer) -> None:
    provider = provider_of(vendor)
    order = await an_order(provider)
    created = await provider.create(order)
    (machine,) = vendor.costing()
    assert (machine.name, machine.environment) == (NAME, order.environment)
    (shown,) = await provider.machines()
    assert (shown.provider_id, shown.name, shown.runs) == (created.provider_id, NAME, True)
    assert shown.hourly_micros == order.offer.hourly_micros
    assert isinstance(await provider.boot_log(created.provider_id), str)
    await provider.destroy(created.provider_id)
    await provider.destroy(created.provider_id)
    assert (vendor.costing(), await provider.machines()) == ([], [])


async def test_what_is_not_ours_is_not_even_shown(vendor: VendorServer) -> None:
    vendor.make("somebody's", 9.0, {}, "")
    vendor.make("", 9.0, {}, "")
    assert await provider_of(vendor).machines() == []


@pytest.mark.parametrize("fault", ["lost answer", "500 after"])
async def test_what_became_of_a_lost_answer_the_list_tells(vendor: VendorServer, fault: str) -> None:
    provider = provider_of(vendor)
    order = await an_order(provider)
    vendor.faults["create"].append(fault)
    with pytest.raises(ProviderUnsure):
        await provider.create(order)
    assert [one.name for one in await provider.machines()] == [NAME]
    assert vendor.count("create") == 1


@pytest.mark.parametrize(
    "fault", ["lost request", "not json", "another's 404", "redirect", "huge", "500 after"]
)
async def test_only_the_vendors_own_words_are_a_refusal(vendor: VendorServer, fault: str) -> None:
    provider = provider_of(vendor)
    order = await an_order(provider)
    vendor.faults["create"].append(fault)
    with pytest.raises(ProviderUnsure):
        await provider.create(order)
    vendor.faults["create"].append("400")
    with pytest.raises(ProviderRefused, match="it is said so"):
        await provider.create(order)
    vendor.faults["list"].append(fault)
    with pytest.raises(ProviderUnsure):
        await provider.machines()
    assert vendor.count("elsewhere") == 0


async def test_a_429_without_a_time_is_kept_to_and_makes_nothing(vendor: VendorServer) -> None:
    provider = provider_of(vendor)
    order = await an_order(provider)
    vendor.faults["list"].append("429")
    with pytest.raises(ProviderUnsure, match="429"):
        await provider.machines()
    calls = len(vendor.calls)
    with pytest.raises(ProviderUnsure, match="asked for fewer calls"):
        await provider.machines()
    with pytest.raises(ProviderRefused, match="asked for fewer calls"):
        await provider.create(order)
    with pytest.raises(ProviderUnsure):
        await provider.destroy("1")
    assert len(vendor.calls) == calls


async def test_a_429_that_says_for_how_long_is_believed_within_reason(vendor: VendorServer) -> None:
    provider = provider_of(vendor)
    vendor.faults["list"].append("429 for an hour")
    with pytest.raises(ProviderUnsure, match="429"):
        await provider.machines()
    with pytest.raises(ProviderUnsure, match=r"in [1-6]\d s"):
        await provider.machines()


async def test_a_wrong_or_missing_key_is_told_and_never_shown(vendor: VendorServer) -> None:
    with pytest.raises(ProviderUnsure, match="refuses the key") as wrong:
        await provider_of(vendor, key="wrong-key").machines()
    assert "wrong-key" not in str(wrong.value)
    with pytest.raises(ProviderUnsure, match="cannot be read"):
        await provider_of(vendor, key=None).offers()


async def test_what_a_vendor_remembers_of_one_account_is_not_shown_with_the_key_of_another(
    vendor: VendorServer,
) -> None:
    """One client is there for all pools: by a cookie an account's session would see and pay for another's machines."""
    await provider_of(vendor).machines()
    with pytest.raises(ProviderUnsure):
        await provider_of(vendor, key="another-0123456789").machines()
    assert vendor.cookies == []


async def test_settings_are_checked_before_anything_is_called(vendor: VendorServer) -> None:
    def refused(**settings: str) -> str:
        with pytest.raises(Invalid) as error:
            provider_of(vendor, settings=settings)
        return error.value.detail

    for url in (
        "http://10.0.0.1",
        "ftp://127.0.0.1",
        "https://a:b@c",
        "https://",
        "http://[",
        "https://x/?q=1",
    ):
        assert "https://" in refused(api_url=url)
    assert "image" in refused(image="")
    assert "counts" in refused(counts="0")
    assert "min_cuda" in refused(min_cuda="12")
    assert "no setting imgae" in refused(imgae="x")
    with pytest.raises(Invalid, match="needs a key"):
        make_provider(
            ProviderSurroundings(
                pool=a_pool(provider=kind_of(vendor), settings={"image": "x"}),
                key=None,
                folder=Path("/nonexistent"),
                environment={},
                http=CLIENTS[-1],
            )
        )
    assert vendor.calls == []


async def test_dollars_become_the_fleets_money_at_the_rate_that_was_said(vendor: VendorServer) -> None:
    with pytest.raises(Invalid, match="counts in EUR"):
        provider_of(vendor, currency="EUR")
    dollars = (await provider_of(vendor).offers())[0].hourly_micros
    euros = (await provider_of(vendor, currency="EUR", settings={"dollar": "0.5"}).offers())[0].hourly_micros
    assert euros * 2 == dollars


async def test_a_price_that_changes_is_seen_and_a_stopped_machine_keeps_its_last_one(
    vendor: VendorServer,
) -> None:
    provider = provider_of(vendor)
    await provider.create(await an_order(provider))
    (machine,) = vendor.costing()
    machine.dollars = 2.5
    assert [(one.runs, one.hourly_micros) for one in await provider.machines()] == [(True, 2_500_000)]
    machine.state = "stopped"
    assert [(one.runs, one.hourly_micros) for one in await provider.machines()] == [(False, None)]


async def test_an_id_cannot_lead_a_call_astray(vendor: VendorServer) -> None:
    for id in ("", "../../v2/account", "1/../2", "x?y"):
        with pytest.raises(ProviderRefused):
            await provider_of(vendor).destroy(id)
    assert vendor.calls == []


# Each vendor's own


@pytest.fixture
def runpod() -> Iterator[RunPodServer]:
    with RunPodServer() as server:
        yield server


@pytest.fixture
def vast() -> Iterator[VastServer]:
    with VastServer() as server:
        yield server


async def test_runpod_offers_what_is_in_stock_where_the_pool_wants_it(runpod: RunPodServer) -> None:
    (offer,) = await provider_of(runpod).offers()
    assert offer == MachineOffer(
        id="NVIDIA A100 80GB PCIe|1|",
        hourly_micros=1_890_000,
        gpu_name="A100 80GB",
        gpus=1,
        vram_gb=80.0,
        disk_gb=120.0,
    )
    several = await provider_of(runpod, settings={"counts": "2,16"}, regions=("EU-SE-1", "US-KS-2")).offers()
    assert [(one.gpus, one.region, one.hourly_micros) for one in several] == [(2, "EU-SE-1", 3_780_000)]
    runpod.stock = "NONE"
    assert await provider_of(runpod).offers() == []


async def test_runpods_spot_is_rented_by_a_bid_and_a_refusal_there_is_one(runpod: RunPodServer) -> None:
    provider = provider_of(runpod, market="spot")
    (offer,) = await provider.offers()
    assert (offer.spot, offer.hourly_micros) == (True, 950_000)
    order = MachineOrder(name=NAME, offer=offer, environment={"A": "b"})
    created = await provider.create(order)
    assert runpod.machines[created.provider_id].environment == {"A": "b"}
    await provider.destroy(created.provider_id)
    runpod.spot_price = 3.0
    with pytest.raises(ProviderRefused, match="your bid is too low"):
        await provider.create(order)
    both = await provider_of(runpod, market="spot_first").offers()
    assert [one.spot for one in both] == [False, True]


async def test_runpods_boot_log_is_read_from_its_stream(runpod: RunPodServer) -> None:
    provider = provider_of(runpod)
    created = await provider.create(await an_order(provider))
    assert await provider.boot_log(created.provider_id) == "pulling the image"


async def test_vast_is_asked_for_what_fits_and_a_bid_always_names_its_price(vast: VastServer) -> None:
    wanted = {"min_cuda": "12.4", "reliability": "0.98", "disk_gb": "200"}
    provider = provider_of(vast, market="spot_first", settings=wanted)
    spot, firm = await provider.offers()
    assert (spot.spot, spot.hourly_micros, firm.hourly_micros) == (True, 220_000, 500_000)
    assert (spot.region, spot.vram_gb, spot.cuda, spot.reliability) == ("SE", 23.0, "12.8", 0.991)
    search = vast.searches[0]
    assert (search["cuda_max_good"], search["reliability"]) == ({"gte": 12.4}, {"gte": 0.98})
    await provider.create(MachineOrder(name="stf-f1-a", offer=spot, environment={}))
    await provider.create(MachineOrder(name="stf-f1-b", offer=firm, environment={}))
    asked = [body for kind, body in vast.bodies if kind == "create"]
    assert [body.get("price") for body in asked] == [0.22, None]
    vast.min_bid = 0.4
    with pytest.raises(ProviderRefused, match="below the least"):
        await provider.create(MachineOrder(name="stf-f1-c", offer=spot, environment={}))


async def test_vast_offers_single_machines_and_none_with_gpus_that_nobody_asked_for(vast: VastServer) -> None:
    provider = provider_of(vast, settings={"counts": "1,2"})
    vast.gpus = 2
    assert [(one.gpus, one.single) for one in await provider.offers()] == [(2, True)]
    for count in (3, 10**9, 0, -1):
        vast.gpus = count
        assert await provider.offers() == []


async def test_vasts_list_is_read_to_its_last_page_or_not_at_all(vast: VastServer) -> None:
    for number in range(60):
        vast.make(f"stf-f1-m{number}", 0.5, {}, "")
    provider = provider_of(vast)
    assert len(await provider.machines()) == 60
    assert vast.count("list") == 3
    vast.faults["list"].extend(["", "500 after"])
    with pytest.raises(ProviderUnsure):
        await provider.machines()


async def test_a_list_that_vast_says_it_could_not_make_is_not_an_empty_one(vast: VastServer) -> None:
    vast.make(NAME, 0.5, {}, "")
    vast.list_fails = "try again later"
    provider = provider_of(vast)
    with pytest.raises(ProviderUnsure, match="try again later"):
        await provider.machines()
    vast.list_fails = ""
    assert [one.name for one in await provider.machines()] == [NAME]


async def test_an_instance_whose_worker_ends_ends_its_own_bill_with_the_key_it_was_given(
    vast: VastServer,
) -> None:
    vast.boots = True
    provider = provider_of(vast, settings={"command": "true"})
    created = await provider.create(await an_order(provider))
    await asyncio.to_thread(wait_until, lambda: not vast.costing(), "it ends itself", 100.0)
    assert ("destroy", f"own-{created.provider_id}") in vast.keys
    assert ("destroy", KEY) not in vast.keys
