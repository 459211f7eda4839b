"""Which pictures are whole, and which are new."""

import os
from pathlib import Path

from simpletuner_fleet.agent.ship.sample_watch import SampleWatch
from simpletuner_fleet.core.training.samples import MAX_BYTES, MOST


class Studio:
    """A folder in which a trainer draws, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 100.0
        self.watch = SampleWatch(clock=lambda: self.now)

    def draw(self, name: str, content: bytes = b"picture", at: int = 1) -> None:
        path = self.root / name
        path.write_bytes(content)
        os.utime(path, (at, at))

    def look(self, *, last: bool = False) -> list[str]:
        pictures = self.watch.look(lambda: sorted(self.root.iterdir()), self.root, last=last)
        return [one.path.name for one in pictures]


def test_a_picture_is_whole_when_it_stayed_the_same_between_two_looks(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    studio.draw("a.png", b"ha", at=1)
    assert studio.look() == []
    studio.draw("a.png", b"half", at=2)
    assert studio.look() == []
    assert studio.look() == ["a.png"]
    studio.watch.were_sent()
    assert studio.look() == []
    studio.draw("a.png", b"anew", at=3)
    assert (studio.look(), studio.look()) == ([], ["a.png"])


def test_at_the_end_all_are_whole(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    studio.draw("a.png")
    assert studio.look(last=True) == ["a.png"]


def test_the_newest_go_first_and_no_more_than_are_shown(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    for number in range(MOST + 6):
        studio.draw(f"step_{number}.png", at=1000 + number)
    pictures = studio.look(last=True)
    assert pictures == [f"step_{number}.png" for number in range(MOST + 5, 5, -1)]
    studio.watch.were_sent()
    assert studio.look(last=True) == [], "those left out are no news"


def test_what_is_empty_too_large_or_leads_elsewhere_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    studio = Studio(tmp_path / "output")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (studio.root / "link.png").symlink_to(tmp_path / "secret.png")
    (studio.root / "folder.png").mkdir()
    studio.draw("empty.png", b"")
    with (studio.root / "huge.png").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    studio.draw("good.png")
    assert studio.look(last=True) == ["good.png"]
    outside = studio.watch.look(
        lambda: [tmp_path / "secret.png", tmp_path / "gone.png"], studio.root, last=True
    )
    assert outside == []


def test_looks_and_sendings_keep_their_distance(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    studio.draw("a.png")
    assert studio.watch.is_due()
    studio.look()
    assert not studio.watch.is_due()
    studio.now += 2.0
    assert studio.watch.is_due()
    studio.look()
    studio.watch.were_sent()
    studio.now += 9.0
    assert not studio.watch.is_due()
    studio.now += 1.0
    assert studio.watch.is_due()


def test_a_folder_that_takes_long_to_look_through_is_looked_at_rarely(tmp_path: Path) -> None:
    studio = Studio(tmp_path)

    def slowly() -> list[Path]:
        studio.now += 3.0
        return []

    studio.watch.look(slowly, tmp_path)
    studio.now += 50.0
    assert not studio.watch.is_due()
    studio.now += 10.0
    assert studio.watch.is_due()
