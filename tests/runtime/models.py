"""Small models with the features that matter: blocks, ties, norms, buffers, dropout, experts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Pre-norm causal attention and MLP."""

    def __init__(self, dim: int = 32, heads: int = 4, hidden: int = 72, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        # no bias: that of the keys has no true gradient, and Adam would amplify its rounding noise
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, table: torch.Tensor | None = None) -> torch.Tensor:
        b, t, d = x.shape
        if table is not None:  # as a rotary table: whether it arrives in fp32 shows in the product
            x = (x.float() * table.float()).to(x.dtype)
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    """Embeddings, blocks, final norm, head; `tied` shares the embedding with the head, `table` hands an fp32
    tensor to every block."""

    def __init__(
        self,
        layers: int = 3,
        dim: int = 32,
        vocab: int = 101,
        tied: bool = False,
        dropout: float = 0.0,
        scale: bool = True,
        table: bool = False,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(16, dim)
        self.blocks = nn.ModuleList([Block(dim, dropout=dropout) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        if scale:
            self.register_buffer("scale", torch.tensor(1.37))
        self.register_buffer("table", 1 + torch.rand(dim) if table else None)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x) if self.table is None else block(x, self.table)
        x = self.norm(x)
        return self.head(x * self.scale if hasattr(self, "scale") else x)


class Conv(nn.Module):
    """Convolutions with batch norms, which FSDP1 keeps in full precision."""

    def __init__(self) -> None:
        super().__init__()
        stages = [nn.Conv2d(width, 8, 3, padding=1) for width in (3, 8)]
        self.body = nn.ModuleList([nn.Sequential(stage, nn.BatchNorm2d(8), nn.ReLU()) for stage in stages])
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = 1.37 * x  # in the dtype in which the root gets it
        for part in self.body:
            x = part(x)
        return self.head(x.mean((2, 3)))


class Experts(nn.Module):
    """Blocks in which each rank sends everything to the expert of its own number."""

    def __init__(self, dim: int = 16, experts: int = 2) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.experts = nn.ModuleList([nn.Linear(dim, dim) for _ in range(experts)])

    def forward(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        return self.outer(torch.tanh(self.experts[expert](torch.tanh(self.inner(x)))))
