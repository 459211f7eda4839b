"""Makes a model of SDXL's shape with random weights, and pictures with captions: a training of seconds, no downloads.

Run by the Python that has the trainer: `python tiny.py FOLDER`.
"""

import json
import random
import sys
from pathlib import Path

WIDTH = 32
SIDE = 64
PICTURES = 16
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 220)}


def letters():
    """The printable characters that stand for the 256 bytes in CLIP's vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in plain] + [chr(256 + at) for at in range(256 - len(plain))]


def make_tokenizer(folder):
    """A vocabulary of single letters, within and at the end of a word."""
    from transformers import CLIPTokenizer

    inner = letters()
    words = [
        *inner,
        *(letter + "</w>" for letter in inner),
        "th",
        "the</w>",
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps({word: at for at, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e</w>\n")
    tokenizer = CLIPTokenizer.from_pretrained(str(folder))
    tokenizer.model_max_length = 77
    tokenizer.save_pretrained(folder)
    return len(words)


def text_config(vocabulary):
    from transformers import CLIPTextConfig

    return CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=77,
        projection_dim=WIDTH,
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        pad_token_id=vocabulary - 1,
    )


def make_model(folder):
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
    from transformers import CLIPTextModel, CLIPTextModelWithProjection

    torch.manual_seed(1)
    vocabulary = make_tokenizer(folder / "tokenizer")
    make_tokenizer(folder / "tokenizer_2")
    CLIPTextModel(text_config(vocabulary)).save_pretrained(folder / "text_encoder")
    CLIPTextModelWithProjection(text_config(vocabulary)).save_pretrained(folder / "text_encoder_2")
    UNet2DConditionModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(WIDTH, 2 * WIDTH),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=2 * WIDTH,
        attention_head_dim=(2, 4),
        norm_num_groups=8,
        use_linear_projection=True,
        transformer_layers_per_block=(1, 1),
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + WIDTH,
    ).save_pretrained(folder / "unet")
    AutoencoderKL(
        layers_per_block=1,
        norm_num_groups=8,
        block_out_channels=(8, 16, 16, 32),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        sample_size=SIDE,
        scaling_factor=0.13025,
        force_upcast=False,
    ).save_pretrained(folder / "vae")
    DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, steps_offset=1
    ).save_pretrained(folder / "scheduler")
    parts = {
        "scheduler": ["diffusers", "DDIMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "feature_extractor": [None, None],
        "image_encoder": [None, None],
    }
    index = {"_class_name": "StableDiffusionXLPipeline", "force_zeros_for_empty_prompt": True, **parts}
    (folder / "model_index.json").write_text(json.dumps(index, indent=2))


def make_pictures(folder):
    from PIL import Image, ImageDraw

    chance = random.Random(1)
    folder.mkdir(parents=True)
    for number in range(PICTURES):
        colour = chance.choice(list(COLOURS))
        image = Image.new("RGB", (SIDE, SIDE), (20, 20, 20))
        at = chance.randrange(SIDE // 2)
        ImageDraw.Draw(image).rectangle((at, at, at + SIDE // 3, at + SIDE // 3), fill=COLOURS[colour])
        image.save(folder / f"{number:03}.png")
        (folder / f"{number:03}.txt").write_text(f"a {colour} square\n")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    make_model(target / "model")
    make_pictures(target / "pictures")
