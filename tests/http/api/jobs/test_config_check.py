"""A config is checked against what a worker has told of its trainer; unchecked is said as unchecked."""

from typing import Any

from simpletuner_fleet import __version__
from tests.http.api_kit import orchestrator

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
