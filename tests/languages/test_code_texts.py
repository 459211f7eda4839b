"""Codes with parameters, told in five languages; English is word for word what the API says."""

from typing import Any, Literal

import httpx2
import pytest

from simpletuner_fleet.core.jobs import failure
from simpletuner_fleet.core.jobs.job import EndReason, Stopping
from simpletuner_fleet.core.placement import matching, reason_sentences, reasons
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.http.views.stopping import DOING, _doing_now
from simpletuner_fleet.languages import LANGUAGES, names, translator
from simpletuner_fleet.languages.code_texts import (
    fix_texts,
    funnel_texts,
    groups_text,
    kind_text,
    problem_detail,
    problem_next,
    problem_title,
    reason_label,
    reason_text,
    refusal_text,
)
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.providers.kubernetes.api import KubernetesRefused
from simpletuner_fleet.providers.vendor_http import VendorAnswer, VendorApi

PARAMS: dict[str, Any] = {
    "workers": 3,
    "gpus": 16,
    "largest": 8,
    "min_vram_gb": 80.0,
    "nodes": 4,
    "largest_nodes": 2,
    "largest_gb": 24.5,
    "accelerator": "rocm",
    "trainer": "demo",
    "labels": {"team": "nlp"},
    "unmatched": ["team", "place"],
    "asked": ["team=nlp", "place=here"],
    "have": ["gpu-1: team=vision"],
    "bytes": 3_000_000_000,
    "largest_bytes": 1_500_000_000,
    "wait_s": 12.4,
    "starts": "2026-11-18 22:00 UTC",
    "worker": "gpu-1",
    "ago_s": 8.2,
    "depends_on": ["j_1", "j_2"],
    "quota": "q_1",
    "kind": "gpus",
    "whose": "team vision",
    "used": 8,
    "ceiling": 8.0,
    "state": "running",
    "pool": "runpod",
    "machine": "1 x A100 80 GB",
    "provider": "RunPod",
    "price": "1.89 USD",
    "allowed": "1.50 USD",
    "left": "0.05 USD",
    "least_s": 120.0,
    "unpriced": ["gpu-1", "gpu-2"],
    "since_s": 40.0,
    "used_percent": 75,
    "share_percent": 20,
    "teams_ahead": 2,
    "settings": ["quota:q_1", "limits"],
}
others = pytest.mark.parametrize("lang", [language.code for language in LANGUAGES if language.code != "en"])


def explanation(code: str, params: dict[str, Any] = PARAMS) -> dict[str, Any]:
    return {
        "code": code,
        "params": params,
        "sentence": reason_sentences.sentence(code, params),
        "fixes": list(reason_sentences.fixes(code, params)),
    }


@others
@pytest.mark.parametrize("code", list(Code))
def test_every_reason_is_told_in_every_language_with_its_parameters(lang: str, code: Code) -> None:
    explained = explanation(code)
    words = translator(lang)
    assert reason_text(words, explained) != explained["sentence"]
    assert "%(" not in reason_text(words, explained)
    assert len(fix_texts(words, explained)) == len(explained["fixes"])
    assert all(text not in explained["fixes"] for text in fix_texts(words, explained))


@others
@pytest.mark.parametrize("code", list(Code))
def test_every_reason_has_a_label_in_every_language(lang: str, code: Code) -> None:
    english = reason_label(translator("en"), code)
    assert english == reasons.REASONS[code].label
    assert reason_label(translator(lang), code) != english


@others
def test_every_step_that_helps_is_told_in_every_language(lang: str) -> None:
    words = translator(lang)
    for row in reasons.REASONS.values():
        assert all(words.gettext(step) != step for step in (*row.fixes, *row.advice)), row.code


@pytest.mark.parametrize("code", list(Code))
def test_english_reasons_are_those_of_the_api(code: Code) -> None:
    explained = explanation(code)
    assert reason_text(translator("en"), explained) == explained["sentence"]
    assert fix_texts(translator("en"), explained) == explained["fixes"]


def test_the_parameters_stand_in_the_sentence() -> None:
    assert "16" in reason_text(translator("hi"), explanation("GPU_COUNT_TOO_LARGE"))
    differ = reason_text(translator("ja"), explanation("LABELS_MATCH_NONE"))
    assert "team=nlp, place=here" in differ
    assert "gpu-1: team=vision" in differ
    together = explanation("LABELS_MATCH_NONE", {"unmatched": [], "asked": ["a=1", "b=2"], "have": []})
    said = reason_text(translator("pt-BR"), together)
    assert said == "nenhum worker tem a combinação de labels pedida: a=1, b=2"
    assert "12" in reason_text(translator("zh-Hans"), explanation("RETRY_BACKOFF"))


def test_what_another_version_of_the_server_says_stays_in_its_own_words() -> None:
    newer = {"code": "SOMETHING_NEW", "params": {"a": 1}, "sentence": "the moon is full", "fixes": ["wait"]}
    assert reason_text(translator("ja"), newer) == "the moon is full"
    assert fix_texts(translator("ja"), newer) == ["wait"]
    older = {"code": "GPU_COUNT_TOO_LARGE", "params": {}, "sentence": "too many GPUs"}
    assert reason_text(translator("ja"), older) == "too many GPUs"
    assert reason_text(translator("ja"), {"code": "SOMETHING_NEW"}) == "SOMETHING_NEW"
    assert reason_label(translator("ja"), "SOMETHING_NEW") == "SOMETHING_NEW"


@others
def test_refusals_failures_events_and_states_have_names_in_every_language(lang: str) -> None:
    words = translator(lang)
    for refusal in matching.Refusal:
        assert refusal_text(words, refusal.name.lower()) != refusal.value
    for code, advice in failure.ADVICE.items():
        assert code in names.FAILURES
        assert words.gettext(advice) != advice
    for table in (names.WORKER_STATUSES, names.JOB_STATUSES, names.FAILURES, names.EVENTS, names.ROLES):
        assert all(words.gettext(name) for name in table.values())
    assert kind_text(words, "admin") != "an administrator must act"


def test_a_code_without_a_name_is_shown_as_it_is() -> None:
    words = translator("ja")
    assert names.event_name(words, "moon.rose") == "moon.rose"
    assert names.status_name(words, "job", "asleep") == "asleep"
    assert refusal_text(words, "moody") == "moody"
    assert kind_text(words, "luck") == "luck"


def test_the_funnel_says_how_many_went_at_each_step() -> None:
    funnel = [
        {"step": "workers", "left": 5, "rule": "5 workers have joined"},
        {"step": "busy", "left": 2, "rule": "3 is busy"},
        {"step": "moody", "left": 1, "rule": "1 is moody"},
    ]
    assert funnel_texts(translator("en"), funnel) == [
        (5, "5 workers have joined"),
        (2, "3 ruled out: is busy"),
        (1, "1 is moody"),
    ]
    assert funnel_texts(translator("ja"), funnel)[1] == (2, "3 台除外: 実行中")


def test_a_problem_is_told_in_the_readers_language() -> None:
    problem = {
        "title": "This credential lacks a permission.",
        "detail": "This credential lacks the permission 'admin.workers'.",
        "next": "Try again.",
    }
    words = translator("pt-BR")
    assert problem_title(words, problem) == "Esta credencial não tem uma permissão necessária."
    assert problem_detail(words, problem) == "Esta credencial não tem a permissão 'admin.workers'."
    assert problem_next(words, problem) == "Tente de novo."
    assert problem_detail(translator("en"), problem) == problem["detail"]
    assert problem_detail(words, {}) == ""


@pytest.mark.parametrize(
    ("english", "japanese"),
    [
        ("There is no job j_1.", "ジョブ j_1 はありません。"),
        ("Set a or b, not both.", "a か b のどちらか一方を指定してください。"),
        ("There is no config '100 % ''real'''.", "学習設定 '100 % ''real''' はありません。"),
        ("attempt 2, resumed from step 1,200 on gpu-1", "試行 2、gpu-1 でステップ 1,200 から再開"),
        ("the trainer ended with exit code 1", "トレーナーが終了コード 1 で終了しました"),
        ("no heartbeat for 121 s", "121 秒間ハートビートがありません"),
        ("the provider answered 429: slow down", "プロバイダーの応答は 429: slow down"),
        ("ssh cannot be started: No such file", "ssh を起動できません: No such file"),
        ("Nobody wrote this sentence down.", "Nobody wrote this sentence down."),
        ("", ""),
    ],
)
def test_details_are_known_again_by_their_words(english: str, japanese: str) -> None:
    assert detail_text(translator("ja"), english) == japanese
    assert detail_text(translator("en"), english) == english


def test_what_a_provider_refuses_is_told_in_every_language_with_its_own_words() -> None:
    said = [
        str(KubernetesRefused(403, "Forbidden", 'jobs is forbidden: User "u"')),
        str(KubernetesRefused(422, "Invalid", "Job is invalid")),
    ]
    api = VendorApi(httpx2.AsyncClient(), "https://api.example", "key", lambda answer: "no credit")
    said += [api.complaint(VendorAnswer(status, "application/json", b"{}", "")) for status in (401, 402)]
    for language in LANGUAGES[1:]:
        for sentence, words in zip(
            said, ("jobs is forbidden", "Job is invalid", "no credit", "no credit"), strict=True
        ):
            translated = detail_text(translator(language.code), sentence)
            assert translated != sentence
            assert words in translated


@pytest.mark.parametrize("reason", ["cancelled", "drained"])
@pytest.mark.parametrize(("save_s", "stored"), [(None, None), (30.0, None), (30.0, 1_200)])
def test_what_a_stopping_job_does_is_told_in_every_language(
    reason: Literal["cancelled", "drained"], save_s: float | None, stored: int | None
) -> None:
    stopping = Stopping(reason=EndReason(reason), asked_at=1.0, grace_s=5.0, save_s=save_s)
    sentence = f"{DOING[reason]}: {_doing_now(stopping, stored)}"
    for language in LANGUAGES[1:]:
        assert detail_text(translator(language.code), sentence) != sentence


def test_what_groups_do_for_jobs_is_told_in_every_language_with_what_is_lacking() -> None:
    labels = {"cgroup": "kill+pids", "job_pids": "77", "cgroup_lacks": "no-controller"}
    assert groups_text(translator("en"), labels) == (
        "kill, no memory limit, at most 77 processes and threads for each job: the controller is not there"
    )
    for lang in ("pt-BR", "hi", "zh-Hans", "ja"):
        sentence = groups_text(translator(lang), labels)
        assert "77" in sentence
        assert "memory limit" not in sentence
    assert groups_text(translator("ja"), {}) == "", "an older agent does not say"
