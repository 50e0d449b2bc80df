"""Train a tiny Llama of `transformers`, from random weights, as a config says; the loop is that of train.py.

torchrun --nproc-per-node 2 examples/train_transformers.py CONFIG [--steps N] [--checkpoint FOLDER]
"""

from __future__ import annotations

import torch
from torch import nn
from train import LENGTH, VOCAB, arguments, train
from transformers import LlamaConfig, LlamaForCausalLM


def build() -> nn.Module:
    """No cache of keys and values in training: activation checkpointing would fill it a second time."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, labels=ids).loss


def main() -> None:
    options = arguments("Train a tiny Llama on synthetic data.").parse_args()
    torch.manual_seed(0)
    train(build(), options, loss_of)


if __name__ == "__main__":
    main()
