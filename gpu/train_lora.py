"""A small transformer whose LoRA adapters are trained with accelerate on made-up text: something real to measure."""

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, RANK = 8192, 1024, 16, 12, 512, 16


class LoraLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.base.weight.requires_grad_(False)
        self.down = nn.Linear(inputs, RANK, bias=False)
        self.up = nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x)) * 2.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = LoraLinear(WIDTH, 3 * WIDTH), LoraLinear(WIDTH, WIDTH)
        self.wide, self.narrow = LoraLinear(WIDTH, 4 * WIDTH), LoraLinear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.narrow(nn.functional.gelu(self.wide(self.second(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for frozen in (self.words, self.places, self.norm):
            frozen.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.words.weight.T


def batch_of(step: int, size: int, device: torch.device) -> torch.Tensor:
    """Arithmetic progressions modulo the vocabulary: easy enough to be learnt, and made where they are used."""
    chance = torch.Generator(device).manual_seed(step)
    start = torch.randint(VOCABULARY, (size, 1), generator=chance, device=device)
    stride = torch.randint(1, 4, (size, 1), generator=chance, device=device)
    return (start + stride * torch.arange(LENGTH, device=device)) % VOCABULARY


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """As trainers leave checkpoints: the guard comes last, and says that all else is there."""
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    torch.save(state, checkpoint / "state.pt")
    (checkpoint / ".guard").touch()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    accelerator = Accelerator(mixed_precision="bf16")
    torch.manual_seed(7)
    model = Model()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    args.out.mkdir(parents=True, exist_ok=True)
    done = 0
    resumed = os.environ.get("SIMPLETUNER_RESUME_FROM")
    if resumed:
        state = torch.load(Path(resumed) / "state.pt", map_location=accelerator.device)
        model.load_state_dict(state["adapters"], strict=False)
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
        print(f"goes on from step {done}", flush=True)
    warm = done + args.warm_up
    begun = 0.0
    with (args.out / "metrics.jsonl").open("a") as metrics:
        for step in range(done + 1, args.steps + 1):
            if step == warm + 1:
                torch.cuda.synchronize()
                begun = time.monotonic()
            tokens = batch_of(step, args.batch, accelerator.device)
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 10 == 0:
                value = loss.item()
                assert math.isfinite(value)
                metrics.write(json.dumps({"step": step, "total": args.steps, "loss": value}) + "\n")
                metrics.flush()
                print(f"step {step}/{args.steps} loss {value:.4f}", flush=True)
            if args.save_every and step % args.save_every == 0:
                state = {"adapters": adapters_of(model), "optimizer": optimizer.state_dict(), "step": step}
                save(args.out, step, state)
    torch.cuda.synchronize()
    rate = (args.steps - warm) / (time.monotonic() - begun) if begun else None
    torch.save(adapters_of(model), args.out / "lora.pt")
    print(json.dumps({"steps_per_s": rate, "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}), flush=True)


def adapters_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in model.state_dict().items() if ".up." in name or ".down." in name}


if __name__ == "__main__":
    main()
