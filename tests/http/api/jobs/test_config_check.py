"""A config is checked against what a worker has told of its trainer; unchecked is said as unchecked."""

from typing import Any

from simpletuner_fleet import __version__
from simpletuner_fleet.core.configs.options import MAX_TRAINERS
from tests.http.api_kit import Running, orchestrator

OPTIONS: dict[str, Any] = {
    "version": "4.10.1",
    "options": [
        {"names": ["model_family"], "kind": "text", "choices": ["sdxl"], "required": True},
        {"names": ["max_train_steps"], "kind": "int"},
    ],
}
CONFIG = {"settings": {"model_family": "sdxl", "max_train_step": 10}}


async def test_a_workers_word_makes_configs_checkable() -> None:
    async with orchestrator() as running:
        unchecked = await running.post("/api/config-check", CONFIG)
        assert (unchecked["checked_against"], unchecked["findings"], unchecked["valid"]) == (None, [], True)
        agent = await running.worker("gpu-1")
        for _ in range(2):
            await agent.call("trainer-options", {"trainer": "simpletuner", "options": OPTIONS})
        older = {**OPTIONS, "version": "4.9.0", "options": OPTIONS["options"][:1]}
        await agent.call("trainer-options", {"trainer": "simpletuner", "options": older})
        reported = await running.post("/api/config-check", CONFIG)
        assert (reported["checked_against"], reported["valid"]) == ("4.10.1", False)
        (finding,) = reported["findings"]
        assert finding["path"] == "$.settings.max_train_step"
        assert finding["next"] == "Did you mean 'max_train_steps'?"
        older_told = await running.post("/api/config-check?version=4.9.0", CONFIG)
        assert older_told["checked_against"] == "4.9.0"
        other = await running.post(
            "/api/config-check", {"trainer": "command", "settings": {"command": ["x"]}}
        )
        assert (other["valid"], other["checked_against"], other["findings"]) == (True, __version__, [])
        demo = await running.post("/api/config-check", {"trainer": "demo", "settings": {"sed": 1}})
        assert (demo["valid"], demo["checked_against"]) == (True, __version__)
        assert demo["findings"][0]["next"] == "Did you mean 'seed'?"


async def test_only_a_worker_tells_options_and_no_more_than_there_can_be() -> None:
    async with orchestrator() as running:
        agent = await running.worker("gpu-1")
        answer = await running.http.post(
            "/api/workers/trainer-options", json={"trainer": "x", "options": OPTIONS}
        )
        assert answer.status_code in (401, 403)
        many = {"version": "1", "options": [{"names": ["a"]}] * 4001}
        await agent.call("trainer-options", {"trainer": "simpletuner", "options": many}, expect=422)
        await agent.call("trainer-options", {"trainer": "../x", "options": OPTIONS}, expect=422)


async def kept_trainers(running: Running) -> set[str]:
    settings = await running.fleet.read(lambda view: view.settings_with_prefix("trainer.options."))
    return {key.removeprefix("trainer.options.") for key in settings}


async def test_a_worker_tells_only_of_trainers_that_it_has() -> None:
    async with orchestrator() as running:
        agent = await running.worker("gpu-1", trainers=["own"])
        refused = await agent.call(
            "trainer-options", {"trainer": "simpletuner", "options": OPTIONS}, expect=422
        )
        assert refused["errors"][0]["path"] == "$.trainer"
        await agent.call("trainer-options", {"trainer": "own", "options": OPTIONS})
        assert await kept_trainers(running) == {"own"}


async def test_however_many_trainers_are_told_of_few_are_kept_and_first_those_that_workers_have() -> None:
    async with orchestrator() as running:
        wide = await running.worker("gpu-1", trainers=["simpletuner", "shared"])
        for trainer in ("simpletuner", "shared"):
            await wide.call("trainer-options", {"trainer": trainer, "options": OPTIONS})
        other = await running.worker("gpu-2", trainers=["shared"])
        for batch in range(2):
            names = [f"own-{batch}-{number}" for number in range(MAX_TRAINERS - 1)]
            await other.register(trainers=["shared", *names])
            for name in names:
                await other.call("trainer-options", {"trainer": name, "options": OPTIONS})
            assert await kept_trainers(running) == {"simpletuner", "shared", *names}


async def test_a_worker_that_invents_releases_is_believed_only_while_it_is_there() -> None:
    async with orchestrator() as running:
        honest, liar = await running.worker("gpu-1"), await running.worker("gpu-2")
        await honest.call("trainer-options", {"trainer": "simpletuner", "options": OPTIONS})
        empty = {"version": OPTIONS["version"], "options": []}
        await liar.call("trainer-options", {"trainer": "simpletuner", "options": empty})
        for number in range(10):
            invented = {"version": f"999999.{number}", "options": [{"names": ["nonsense"], "required": True}]}
            await liar.call("trainer-options", {"trainer": "simpletuner", "options": invented})
        named = await running.post(f"/api/config-check?version={OPTIONS['version']}", CONFIG)
        assert named["findings"][0]["path"] == "$.settings.max_train_step"
        await liar.call("disconnect", {})
        deleted = await running.http.delete(f"/api/admin/workers/{liar.id}")
        assert deleted.status_code == 200
        after = await running.post("/api/config-check", CONFIG)
        assert after["checked_against"] == OPTIONS["version"]
