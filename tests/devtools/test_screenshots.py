import io

from PIL import Image

from devtools.screenshots import SHOTS, compress


def test_a_picture_keeps_its_rare_colours_and_loses_bytes() -> None:
    picture = Image.effect_noise((400, 300), 60).convert("RGB")
    for at in range(9):
        picture.putpixel((200 + at % 3, 100 + at // 3), (27, 122, 67))
    before = io.BytesIO()
    picture.save(before, "PNG")
    after = compress(before.getvalue())
    assert len(after) < len(before.getvalue()) / 2
    with Image.open(io.BytesIO(after)) as seen:
        kept = seen.convert("RGB").getpixel((201, 101))
    assert isinstance(kept, tuple)
    assert kept[1] > kept[0] + 50


def test_pictures_have_names_of_their_own_and_show_both_themes_and_a_phone() -> None:
    assert len({shot.name for shot in SHOTS}) == len(SHOTS)
    assert {shot.theme for shot in SHOTS} == {"light", "dark"}
    assert min(shot.size[0] for shot in SHOTS) < 400
