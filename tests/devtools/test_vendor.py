import io
import shutil
import tarfile
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from devtools import vendor
from devtools.vendor import FOLDER, LOCK, Package


def lucide() -> Package:
    return next(package for package in vendor.read_lock() if package.sprite)


def test_every_shipped_file_is_the_one_that_the_lock_names() -> None:
    assert vendor.complaints() == []


def test_every_package_brings_its_licence() -> None:
    for package in vendor.read_lock():
        licences = [file.name for file in package.files if file.name.endswith(".LICENSE")]
        assert len(licences) == 1, package.name
        assert "Copyright" in (FOLDER / licences[0]).read_text() or package.licence == "0BSD"


def test_the_lock_names_exact_versions_and_no_host() -> None:
    text = (FOLDER / LOCK).read_text(encoding="utf-8")
    assert "://" not in text
    for package in vendor.read_lock():
        assert all(part.isdecimal() for part in package.version.split("."))
        assert len(package.tarball_sha256) == 64


def test_a_changed_a_missing_and_an_unknown_file_are_each_told(tmp_path: Path) -> None:
    folder = tmp_path / "vendor"
    shutil.copytree(FOLDER, folder)
    (folder / "htmx.min.js").write_text("alert(1)")
    (folder / "anser.js").unlink()
    (folder / "more.js").write_text("")
    complaints = vendor.complaints(folder)
    assert [line.partition(":")[0] for line in complaints] == ["anser.js", "htmx.min.js", "more.js"]


def test_the_sprite_holds_every_icon_of_the_lock_and_nothing_that_runs() -> None:
    sprite = lucide().sprite
    assert sprite
    drawing = xml.parse(FOLDER / sprite.name).getroot()
    assert [symbol.attrib["id"] for symbol in drawing] == sprite.icons
    shapes = {element.tag.rpartition("}")[2] for symbol in drawing for element in symbol}
    assert shapes <= {"path", "circle", "rect", "line", "polyline", "polygon", "ellipse"}


def test_pinning_writes_the_hashes_of_one_package_and_touches_no_other() -> None:
    lock = (FOLDER / LOCK).read_text(encoding="utf-8")
    package = lucide()
    assert package.sprite
    pinned = vendor.with_hashes(
        lock, package, b"other", {package.sprite.name: b"drawing", "icons.LICENSE": b"free"}
    )
    changed = [new for old, new in zip(lock.splitlines(), pinned.splitlines(), strict=True) if old != new]
    assert len(changed) == 3
    assert vendor.digest(b"other") in changed[0]
    assert vendor.digest(b"free") in changed[1]
    assert vendor.digest(b"drawing") in changed[2]


def test_a_package_that_is_not_the_pinned_one_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "vendor"
    shutil.copytree(FOLDER, folder)
    monkeypatch.setattr(vendor, "FOLDER", folder)
    monkeypatch.setattr(vendor, "fetch", forged)
    assert len(vendor.install(pin=False)) == len(vendor.read_lock())
    assert vendor.complaints(folder) == []


def forged(package: Package) -> bytes:
    """A package with a file at every path that is asked for, and other content."""
    paths = [file.path for file in package.files]
    if package.sprite:
        paths += [f"{package.sprite.folder}/{name}.svg" for name in package.sprite.icons]
    drawing = (
        b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1" fill="none" stroke="red" stroke-width="2"'
        b' stroke-linecap="round" stroke-linejoin="round"/>'
    )
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path in paths:
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size = len(drawing)
            archive.addfile(entry, io.BytesIO(drawing))
    return made.getvalue()
