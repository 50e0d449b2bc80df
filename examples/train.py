"""Train a small transformer as a config says: any FSDP1 or FSDP2 config that fsdp-migrate reads.

    torchrun --nproc-per-node 2 examples/train.py CONFIG [--steps N] [--block-class NAME] [--checkpoint FOLDER]

Runs on the CPU or on the machine's accelerator. The lines that differ from an FSDP1 script are marked with (*).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from fsdp_migrate import (
    applied,
    apply_config,
    check_optimizer,
    clip_grad_norm_,
    load_checkpoint,
    no_sync,
    save_checkpoint,
)
from torch import nn
from torch.nn import functional as F

VOCAB, LENGTH, ROWS = 64, 16, 8
LEARNING_RATE, MAX_NORM = 3e-3, 0.25


class Block(nn.Module):
    """Causal attention and a feed-forward layer: what a wrap policy makes a unit of."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A language model of `layers` blocks of class `block`."""

    def __init__(self, block: type[Block] = Block, layers: int = 3, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, dim), nn.Embedding(LENGTH, dim)
        self.blocks = nn.ModuleList([block(dim, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def block_class(name: str) -> type[Block]:
    """`Block` under another name, so that a config written for another model finds its class here."""
    return type(name, (Block,), {})


def batch(number: int, rank: int) -> torch.Tensor:
    """Token ids that count on in steps of 1 to 4 from a random start: new on every rank, and learnable."""
    generator = torch.Generator().manual_seed(1000 * number + rank)
    start, stride = torch.randint(VOCAB, (ROWS, 1), generator=generator), 1 + torch.arange(ROWS)[:, None] % 4
    return (start + stride * torch.arange(LENGTH)) % VOCAB


def next_token_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def train(
    model: nn.Module, options: argparse.Namespace, loss_of: Callable[[nn.Module, torch.Tensor], torch.Tensor]
) -> None:
    """Shard, resume, train, save. Every rank brings the same weights: see FSDP1's ``sync_module_states``."""
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    model = apply_config(model, options.config)  # (*) in place of FSDP(model, ...)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    check_optimizer(model, optimizer)
    device = applied(model).mesh.device_type
    if rank == 0:
        print(applied(model), flush=True)

    done = newest(options.checkpoint)
    if done:
        load_checkpoint(options.checkpoint / f"step-{done}", model, optimizer)  # (*)
    for step in range(done + 1, options.steps + 1):
        total = torch.zeros((), device=device)
        for micro in range(options.accumulate):
            last = micro == options.accumulate - 1
            with nullcontext() if last else no_sync(model):  # (*) in place of model.no_sync()
                ids = batch(step * options.accumulate + micro, rank).to(device)
                loss = loss_of(model, ids) / options.accumulate
                loss.backward()
            total += loss.detach()
        norm = clip_grad_norm_(model, MAX_NORM)  # (*) in place of model.clip_grad_norm_(MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item() / world:.6f} norm {norm.item():.4f}", flush=True)
    if options.checkpoint and options.steps > done:
        save_checkpoint(options.checkpoint / f"step-{options.steps}", model, optimizer)  # (*) full or sharded by config
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


def newest(folder: Path | None) -> int:
    """The step of the newest checkpoint in `folder`, 0 without one."""
    saved = folder.glob("step-*") if folder else ()
    return max((int(path.name.removeprefix("step-")) for path in saved), default=0)


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("config", help="an FSDP1 or FSDP2 config file")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps in all, with those of a checkpoint")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches a step")
    parser.add_argument("--checkpoint", type=Path, help="a folder to resume from if it holds step-N, and to save to")
    return parser


def main() -> None:
    parser = arguments("Train a small transformer on synthetic data.")
    parser.add_argument(
        "--block-class",
        default="Block",
        help="class name of the transformer's blocks; give the one that the config wraps, such as LlamaDecoderLayer "
        "(it is not read from the config: one that names a class the model lacks is an error, as in real training)",
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    train(Transformer(block_class(options.block_class)), options, next_token_loss)


if __name__ == "__main__":
    main()
