"""A name that somebody chose is read as a name by every chat: it leads nowhere and calls nobody together."""

import json
from typing import Any

from simpletuner_fleet.core.notices.endpoint import Channel
from simpletuner_fleet.delivery.formats import chat_document
from simpletuner_fleet.delivery.wording import Wording

LURE = "[Approve](https://evil.example) <https://evil.example|here> **now** @everyone"
WORDING = Wording(title=f"Job {LURE} failed", lines=(LURE,), link="https://fleet.example/jobs/j_1")


def sent(channel: Channel) -> Any:
    return json.loads(chat_document(channel, WORDING)[0])


def test_discord_shows_no_link_but_ours() -> None:
    document = sent(Channel.DISCORD)
    assert "](" not in document["content"]
    assert "<https" not in document["content"].replace("\\<", "")
    assert document["content"].count("**") == 2, "the title is bold, and nothing else"
    assert document["content"].endswith("\nhttps://fleet.example/jobs/j_1")
    assert document["allowed_mentions"] == {"parse": []}


def test_teams_reads_nothing_as_markdown() -> None:
    card = sent(Channel.TEAMS)["attachments"][0]["content"]
    assert [block["type"] for block in card["body"]] == ["RichTextBlock", "RichTextBlock"]
    runs = [run for block in card["body"] for run in block["inlines"]]
    assert [(run["type"], run["text"]) for run in runs] == [
        ("TextRun", WORDING.title),
        ("TextRun", LURE),
    ]
    assert [action["url"] for action in card["actions"]] == [WORDING.link]


def test_slack_shows_no_link_but_ours() -> None:
    text = sent(Channel.SLACK)["text"]
    assert text.count("<") == 1
    assert text.endswith("<https://fleet.example/jobs/j_1>")


def test_a_long_digest_in_any_script_is_as_short_as_ntfy_takes_it() -> None:
    """It counts bytes, and answers what is longer with an error: the same digest would be tried for days."""
    lines = tuple(f"ジョブ「{'猫' * 100}{number}」が失敗しました" for number in range(50))
    body, _ = chat_document(Channel.NTFY, Wording(title="50 件", lines=lines))
    assert 3_900 < len(body) <= 4_096
    assert body.decode().endswith("…")
    short, _ = chat_document(Channel.NTFY, Wording(title="1 件", lines=("猫",)))
    assert short.decode() == "猫"
