"""Words at run time: blanks, plurals, scripts, templates."""

import threading

import jinja2
import pytest

from simpletuner_fleet import languages
from simpletuner_fleet.languages import LANGUAGES, for_scripts, spoken_in, translator
from simpletuner_fleet.languages.choosing import PSEUDO
from simpletuner_fleet.languages.pseudo import stretched
from simpletuner_fleet.languages.scripts import sentences
from simpletuner_fleet.languages.templates import install

WAITING = ("%(n)s waiting", "%(n)s waiting")
JOBS = ("'%(called)s' matches %(n)s job", "'%(called)s' matches %(n)s jobs")


def test_blanks_are_filled_in() -> None:
    assert translator("ja").text("there is no job '%(called)s'", called="j_1") == "ジョブ 'j_1' はありません"
    assert translator("en").text("there is no job '%(called)s'", called="j_1") == "there is no job 'j_1'"


def test_a_sentence_that_no_catalogue_knows_stays_as_it_is() -> None:
    assert translator("hi").text("nobody says %(what)s", what="this") == "nobody says this"
    assert translator("hi").gettext("") == ""


@pytest.mark.parametrize(
    ("lang", "singular"),
    [("en", {1}), ("pt-BR", {0, 1}), ("hi", {0, 1}), ("zh-Hans", set[int]()), ("ja", set[int]())],
)
def test_each_language_counts_in_its_own_way(lang: str, singular: set[int]) -> None:
    words = translator(lang)
    many = words.plural(*JOBS, 5, called="j").replace("5", "#")
    for n in (0, 1, 2, 5, 21, 1_000_000):
        text = words.plural(*JOBS, n, called="j").replace(words.number(n), "#")
        assert (text != many) == (n in singular), n


def test_the_language_of_a_block_is_that_blocks_alone() -> None:
    heard: list[str] = []
    with spoken_in(translator("ja")):
        thread = threading.Thread(target=lambda: heard.append(languages._("Idle")))
        thread.start()
        thread.join()
        heard.append(languages._("Idle"))
    heard.append(languages._("Idle"))
    assert heard == ["Idle", "アイドル", "Idle"]


def test_templates_speak_the_language_of_the_block_and_escape_what_is_filled_in() -> None:
    environment = jinja2.Environment(autoescape=True)
    install(environment)
    template = environment.from_string(
        "{{ _('Idle') }} {% trans name=name %}%(name)s is damaged{% endtrans %}".replace(
            "%(name)s", "{{ name }}"
        )
        + " {{ ngettext('%(n)s waiting', '%(n)s waiting', 2000, n=2000) }}"
    )
    with spoken_in(translator("ja")):
        assert template.render(name="<b>") == "アイドル &lt;b&gt; is damaged 2,000 件が待機中"


@pytest.mark.parametrize("lang", [language.code for language in LANGUAGES])
def test_scripts_get_every_sentence_of_theirs(lang: str) -> None:
    script_sentences = for_scripts(lang)
    assert script_sentences["lang"] == lang
    assert set(script_sentences["messages"]) | set(script_sentences["plurals"]) == {
        entry[0] for entry in sentences()
    }
    assert all(script_sentences["messages"].values())
    assert all(1 <= len(forms) <= 2 for forms in script_sentences["plurals"].values())


def test_the_pseudo_language_is_longer_and_keeps_blanks_and_marks() -> None:
    text = "Hello %(name)s, see <b>this</b> at 50 %% or `run it`"
    longer = stretched(text)
    assert len(stretched("Save a checkpoint")) >= 1.4 * len("Save a checkpoint")
    assert all(part in longer for part in ("%(name)s", "<b>", "</b>", "%%", "`run it`"))
    assert translator(PSEUDO).text("there is no job '%(called)s'", called="j_1").count("j_1") == 1
    assert translator(PSEUDO).plural(*WAITING, 3).count("3") == 1
