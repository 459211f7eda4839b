"""`./dev words`: gathers every sentence for people from the sources, brings the catalogues up to date and compiles them."""

import io
import json
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.pofile import read_po, write_po

from devtools.languages.sentences import detail_sentences, error_sentences, heading_sentences
from simpletuner_fleet.languages.choosing import FOLDERS
from simpletuner_fleet.languages.details import SENTENCES as DETAILS
from simpletuner_fleet.languages.scripts import SENTENCES
from simpletuner_fleet.languages.words import DOMAIN, LOCALES

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "simpletuner_fleet"
TEMPLATES = SOURCE / "web" / "templates"
SCRIPTS = SOURCE / "web" / "static"
TRANSLATED_FOLDERS = tuple(folder for folder in FOLDERS.values() if folder)
PYTHON_MARKS = {
    "_": None,
    "N_": None,
    "gettext": None,
    "text": None,
    "ngettext": (1, 2),
    "plural": (1, 2),
    "pgettext": ((1, "c"), 2),
}
MARKED_CALL = re.compile(rf"\b(?:{'|'.join(PYTHON_MARKS)})\(")
"""Whatever the formatter has been over has the parenthesis beside the name."""
TEMPLATE_MARKS = {**PYTHON_MARKS, "npgettext": ((1, "c"), 2, 3)}
SCRIPT_MARKS = {"t": None, "tn": (1, 2)}
TEMPLATE_OPTIONS = {"newstyle_gettext": "true", "silent": "false", "trimmed": "true", "extensions": ""}
PLURALS = {
    "pt_BR": "nplurals=2; plural=(n > 1);",
    "hi": "nplurals=2; plural=(n > 1);",
    "zh_Hans": "nplurals=1; plural=0;",
    "ja": "nplurals=1; plural=0;",
}
"""Zero takes the singular in Portuguese and Hindi; Babel has it otherwise for Hindi."""

MO_MAGIC = 0x950412DE


class Sentence(NamedTuple):
    where: str
    msgid: str | tuple[str, str]
    context: str | None = None


def main() -> int:
    """Writes every catalogue; the exit status is 1 when a translation is missing."""
    sentences = list(all_sentences())
    SENTENCES.write_text(scripts_text(), "utf-8")
    DETAILS.write_text(details_text(), "utf-8")
    missing = 0
    for folder in TRANSLATED_FOLDERS:
        path = catalogue_path(folder)
        catalogue = updated_catalogue(folder, sentences)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(po_bytes(folder, catalogue))
        path.with_suffix(".mo").write_bytes(mo_bytes(read(folder)))
        untranslated = [message for message in catalogue if message.id and not is_translated(message)]
        missing += len(untranslated)
        print(f"{folder:8} {len(list(catalogue)) - 1} sentences, {len(untranslated)} not translated")
        if "--missing" in sys.argv:
            for message in untranslated:
                print("   ", json.dumps(message.id, ensure_ascii=False))
    return 1 if missing else 0


def all_sentences() -> Iterator[Sentence]:
    for path in sorted(SOURCE.rglob("*.py")):
        if MARKED_CALL.search(path.read_text("utf-8")):
            yield from _sentences_in_file(path, "python", PYTHON_MARKS)
    for path in sorted(TEMPLATES.rglob("*.html")):
        yield from _sentences_in_file(path, "jinja2.ext:babel_extract", TEMPLATE_MARKS, TEMPLATE_OPTIONS)
    yield from script_sentences()
    for sentence in (*error_sentences(SOURCE), *detail_sentences(SOURCE)):
        yield Sentence("errors", sentence)
    for heading in heading_sentences(SOURCE):
        yield Sentence("headings", heading)


def script_sentences() -> Iterator[Sentence]:
    for path in sorted(SCRIPTS.rglob("*.js")):
        if "vendor" not in path.parts:
            yield from _sentences_in_file(path, "javascript", SCRIPT_MARKS)


def _sentences_in_file(
    path: Path, method: str, marks: dict[str, Any], options: dict[str, str] | None = None
) -> Iterator[Sentence]:
    where = str(path.relative_to(ROOT))
    text = io.BytesIO(path.read_bytes())
    for _line, msgid, _comments, context in extract(method, text, marks, (), options or {}):
        yield Sentence(where, msgid if isinstance(msgid, str) else (msgid[0], msgid[1]), context)


def scripts_text() -> str:
    entries = {(s.msgid,) if isinstance(s.msgid, str) else s.msgid for s in script_sentences()}
    return json.dumps(sorted(entries), ensure_ascii=False, indent=1) + "\n"


def details_text() -> str:
    return json.dumps(detail_sentences(SOURCE), ensure_ascii=False, indent=1) + "\n"


def catalogue_path(folder: str) -> Path:
    return LOCALES / folder / "LC_MESSAGES" / f"{DOMAIN}.po"


def read(folder: str) -> Catalog:
    path = catalogue_path(folder)
    return read_po(io.BytesIO(path.read_bytes()) if path.exists() else io.BytesIO(), locale=folder)


def updated_catalogue(folder: str, sentences: list[Sentence]) -> Catalog:
    """Returns a catalogue of what the sources say now, with the translations there are; the rest is dropped."""
    old = read(folder)
    new = Catalog(locale=folder)
    for sentence in sentences:
        translation = old.get(_id_of(sentence.msgid), sentence.context)
        text = translation.string if translation else ""
        new.add(sentence.msgid, text, [(sentence.where, 0)], context=sentence.context)
    return new


def _id_of(msgid: str | tuple[str, str]) -> str:
    return msgid if isinstance(msgid, str) else msgid[0]


def is_translated(message: Any) -> bool:
    forms = message.string if isinstance(message.string, tuple | list) else (message.string,)
    return bool(forms) and all(forms)


def po_bytes(folder: str, catalogue: Catalog) -> bytes:
    """Returns always the same bytes for the same sentences: no dates, no line numbers."""
    buffer = io.BytesIO()
    write_po(buffer, catalogue, width=0, omit_header=True, sort_output=True, include_lineno=False)
    header = "".join(f'"{line}\\n"\n' for line in header_lines(folder))
    return f'msgid ""\nmsgstr ""\n{header}\n'.encode() + buffer.getvalue()


def header_lines(folder: str) -> tuple[str, ...]:
    return (
        f"Language: {folder}",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=utf-8",
        "Content-Transfer-Encoding: 8bit",
        f"Plural-Forms: {PLURALS[folder]}",
    )


def mo_bytes(catalogue: Catalog) -> bytes:
    """Returns the catalogue as gettext reads it at run time: two sorted tables of lengths and offsets, then the strings."""
    folder = str(catalogue.locale)
    pairs = [(b"", "".join(f"{line}\n" for line in header_lines(folder)).encode())]
    pairs += [
        (_key(message), _value(message)) for message in catalogue if message.id and is_translated(message)
    ]
    pairs.sort()
    count, table_start = len(pairs), 28
    keys_start = table_start + 16 * count
    offsets, blob = [], b""
    for part in (0, 1):
        for pair in pairs:
            offsets.append((len(pair[part]), keys_start + len(blob)))
            blob += pair[part] + b"\0"
    head = struct.pack("<7I", MO_MAGIC, 0, count, table_start, table_start + 8 * count, 0, 0)
    return head + b"".join(struct.pack("<2I", *entry) for entry in offsets) + blob


def _key(message: Any) -> bytes:
    forms = message.id if isinstance(message.id, tuple | list) else (message.id,)
    key = "\0".join(forms)
    return (f"{message.context}\x04{key}" if message.context else key).encode()


def _value(message: Any) -> bytes:
    forms = message.string if isinstance(message.string, tuple | list) else (message.string,)
    return "\0".join(forms).encode()


if __name__ == "__main__":
    sys.exit(main())
