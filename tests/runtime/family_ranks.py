"""Real model families from tiny random configs, trained in one process and sharded: what runs on the ranks.

The reference of every run is the plain model in this same process: it takes the gradient of the mean of
the ranks' losses, rank by rank, which is what data parallelism computes. Nothing is downloaded.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fsdp_migrate import CannotApply, applied, apply_config, check_optimizer, full_params, self_test
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

RANKS, STEPS, ROWS, LENGTH, VOCAB = 2, 5, 2, 8, 67
MASK = 3  # the token of a masked position

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Family:
    """How to build a model (seeded by the caller), its batches, its block class, its optimizer.

    idle: parts of the names of parameters whose true gradient is zero. A key bias adds the same number to
    all scores of a query, which softmax takes away again: its gradient is rounding noise.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    block: str
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    idle: tuple[str, ...] = ()


def _adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Where the sharded run computes every gradient exactly as the reference does."""
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Where some gradients are rounding noise (key biases), or carry some (a weight used three times, summed in
    another order): Adam divides a gradient by its size, and would make full steps of noise."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _text(generator: torch.Generator) -> Batch:
    ids = torch.randint(4, VOCAB, (ROWS, LENGTH), generator=generator)
    return {"input_ids": ids, "labels": ids}


def _masked(generator: torch.Generator) -> Batch:
    """As many masked positions in every row: the ranks' mean losses weigh the same."""
    ids = torch.randint(4, VOCAB, (ROWS, LENGTH), generator=generator)
    hidden = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    hidden[:, 1::3] = True
    return {"input_ids": ids.masked_fill(hidden, MASK), "labels": ids.masked_fill(~hidden, -100)}


def _pairs(generator: torch.Generator) -> Batch:
    source, target = torch.randint(4, VOCAB, (2, ROWS, LENGTH), generator=generator)
    return {"input_ids": source, "labels": target}


def _images(generator: torch.Generator) -> Batch:
    pixels = torch.randn(ROWS, 3, 8, 8, generator=generator)
    return {"pixel_values": pixels, "labels": torch.randint(0, 5, (ROWS,), generator=generator)}


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, num_hidden_layers=3, max_position_embeddings=32, **sizes))


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=16, n_embd=16, n_layer=2, n_head=2, **quiet))


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    # larger weights than usual, or attention is so even that queries and keys hardly learn
    more = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}
    return BertForMaskedLM(BertConfig(vocab_size=VOCAB, max_position_embeddings=16, **sizes, **more))


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": VOCAB}
    return T5ForConditionalGeneration(T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0))


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_labels=5, **sizes))


def _mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return MixtralForCausalLM(MixtralConfig(vocab_size=VOCAB, num_hidden_layers=2, **sizes, **experts))


def _qwen2_moe() -> nn.Module:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(vocab_size=VOCAB, num_hidden_layers=2, **sizes, **experts))


def _lora(dropout: float = 0.0) -> nn.Module:
    """A frozen base with adapters; both halves of each adapter random, or the first would not learn at first."""
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=dropout, init_lora_weights=False)
    return get_peft_model(_llama(), adapters)


FAMILIES = {
    "llama": Family(_llama, _text, "LlamaDecoderLayer", _adamw),
    "gpt2": Family(_gpt2, _text, "GPT2Block", _sgd),
    "bert": Family(_bert, _masked, "BertLayer", _sgd, ("attention.self.key.bias",)),
    "t5": Family(_t5, _pairs, "T5Block", _sgd),
    "vit": Family(_vit, _images, "ViTLayer", _sgd, ("k_proj.bias",)),
    "mixtral": Family(_mixtral, _text, "MixtralDecoderLayer", _adamw),
    "qwen2_moe": Family(_qwen2_moe, _text, "Qwen2MoeDecoderLayer", _sgd, ("k_proj.bias",)),
    "lora": Family(_lora, _text, "LlamaDecoderLayer", _adamw),
    "lora_dropout": Family(lambda: _lora(0.3), _text, "LlamaDecoderLayer", _adamw),
}


def build(name: str) -> nn.Module:
    """The model of seed 0, without a cache of keys and values: a checkpointed block would add to it a second
    time when it is recomputed."""
    torch.manual_seed(0)
    model = FAMILIES[name].build().train()
    for module in model.modules():
        if hasattr(module, "config"):
            module.config.use_cache = False
    return model


def batch(name: str, rank: int, step: int) -> Batch:
    """The half of a step's batch that is `rank`'s."""
    return FAMILIES[name].batch(torch.Generator().manual_seed(100 * step + rank))


def loss_of(model: nn.Module, name: str, rank: int, step: int) -> torch.Tensor:
    """The loss of a rank's half; dropout draws from a seed of its own, so that the reference draws the same."""
    torch.manual_seed(1000 + 100 * step + rank)
    return model(**batch(name, rank, step)).loss


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [one for one in model.parameters() if one.requires_grad]


def _reference(model: nn.Module, name: str) -> list[list[float]]:
    """Train in place on all ranks' data; the losses of every rank, step by step."""
    optimizer = FAMILIES[name].optimizer(_trainable(model))
    losses = []
    for step in range(STEPS):
        each = []
        for rank in range(RANKS):
            loss = loss_of(model, name, rank, step)
            (loss / RANKS).backward()
            each.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(each)
    return losses


def _sharded(model: nn.Module, name: str, rank: int) -> list[float]:
    optimizer = FAMILIES[name].optimizer(_trainable(model))
    check_optimizer(model, optimizer)
    losses = []
    for step in range(STEPS):
        loss = loss_of(model, name, rank, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in model.named_parameters(remove_duplicate=False)}


@dataclass(frozen=True)
class Compared:
    """Largest absolute differences to the reference after training, and what the sharded model says of itself.

    moved: of each trainable parameter, its largest change in training; units: the plan's, without the root;
    blocks: paths of the modules of the family's block class; calls: forwards of one block's leaf in one step;
    tied: groups of names that are one parameter, in the reference and in the sharded model.
    """

    loss: float
    parameters: float
    moved: dict[str, float]
    units: tuple[str, ...]
    blocks: tuple[str, ...]
    calls: int
    problems: tuple[str, ...]
    tied: tuple[set[frozenset[str]], set[frozenset[str]]]


def compare(rank: int, name: str, config: Any, no_split: tuple[str, ...] | None = None) -> Compared:
    """Train `name` plain and under `config`. `no_split` replaces the list that the model states of itself."""
    reference = build(name)
    model = copy.deepcopy(reference)
    if no_split is not None:
        model._no_split_modules = list(no_split)
    before = _values(reference)
    expected = _reference(reference, name)
    apply_config(model, config)
    return _compared(model, reference, before, expected, name, rank)


def _compared(
    model: nn.Module,
    reference: nn.Module,
    before: dict[str, torch.Tensor],
    expected: list[list[float]],
    name: str,
    rank: int,
) -> Compared:
    losses = _sharded(model, name, rank)
    tied = (_tied(reference), _tied(model))
    wanted = _values(reference)
    with full_params(model):
        found = _values(model)
    assert found.keys() == wanted.keys()
    blocks = [path for path, one in reference.named_modules() if type(one).__name__ == FAMILIES[name].block]
    calls: list[nn.Module] = []
    leaf = next(one for one in model.get_submodule(blocks[0]).modules() if not list(one.children()))
    leaf.register_forward_hook(lambda module, args, output: calls.append(module))
    tested = self_test(model, lambda: loss_of(model, name, rank, 0).backward())
    trained = [one for one, parameter in reference.named_parameters() if parameter.requires_grad]
    return Compared(
        loss=max(abs(one - each[rank]) for one, each in zip(losses, expected, strict=True)),
        parameters=max(float((found[one] - wanted[one]).abs().max()) for one in wanted),
        moved={one: float((wanted[one] - before[one]).abs().max()) for one in trained},
        units=tuple(unit.title for unit in applied(model).plan.sharding_units if unit.kind != "root"),
        blocks=tuple(blocks),
        calls=len(calls),
        problems=tested.problems,
        tied=tied,
    )


def _tied(model: nn.Module) -> set[frozenset[str]]:
    names: dict[nn.Parameter, list[str]] = {}
    for name, one in model.named_parameters(remove_duplicate=False):
        names.setdefault(one, []).append(name)
    return {frozenset(group) for group in names.values() if len(group) > 1}


def units_of_fsdp1(rank: int, threshold: int) -> list[str]:
    """Paths of the modules that FSDP1's own size policy wraps in Llama, without the root."""
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=threshold)
    model = FullyShardedDataParallel(build("llama"), auto_wrap_policy=policy, device_id=torch.device("cpu"))
    wrapped = [path for path, one in model.named_modules() if isinstance(one, FullyShardedDataParallel) and path]
    return [path.replace("_fsdp_wrapped_module.", "") for path in wrapped]


@dataclass(frozen=True)
class Precision:
    """What a bf16 run showed: its losses on one batch, dtypes by place, bytes of the collectives of a step.

    numel: elements of the blocks and of all, as they are cut: dim 0 filled up to a multiple of the ranks.
    """

    losses: list[float]
    dtypes: dict[str, set[torch.dtype]]
    problems: tuple[str, ...]
    bytes: dict[str, int]
    numel: dict[str, int]


def _cut(module: nn.Module) -> int:
    return sum(math.ceil(one.shape[0] / RANKS) * RANKS * one[0].numel() for one in module.parameters())


def bf16(rank: int, config: Any) -> Precision:
    model = build("llama")
    numel = {"blocks": _cut(model.model.layers), "all": _cut(model)}
    apply_config(model, config)
    optimizer = _adamw(_trainable(model))
    dtypes: dict[str, set[torch.dtype]] = {"gradients": set(), "states": set(), "parameters": set()}

    def look(module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        dtypes["weights in forward"] = {module.weight.dtype}
        dtypes["activations"] = {args[0].dtype, output.dtype}

    handle = model.model.layers[1].mlp.up_proj.register_forward_hook(look)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, "llama", rank, 0)
        loss.backward()
        dtypes["gradients"] |= {one.grad.dtype for one in model.parameters()}
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    handle.remove()
    dtypes["states"] = {one["exp_avg"].dtype for one in optimizer.state.values()}
    dtypes["parameters"] = {one.dtype for one in model.parameters()}
    tested = self_test(model, lambda: loss_of(model, "llama", rank, 0).backward())
    return Precision(losses, dtypes, tested.problems, tested.bytes, numel)


def save_llama(rank: int, path: str) -> None:
    """The reference's initial weights as transformers would publish them."""
    from safetensors.torch import save_file

    if rank == 0:
        save_file(build("llama").state_dict(), path)
    torch.distributed.barrier()


def _rotary(module: nn.Module) -> None:
    """``init_fn``: the inverse frequencies are not in any file; they follow from the model's config."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    if isinstance(module, LlamaRotaryEmbedding):
        frequencies, _ = module.compute_default_rope_parameters(module.config)
        module.inv_freq.copy_(frequencies)
        module.original_inv_freq.copy_(frequencies)


def from_meta(rank: int, config: Any, path: str) -> Compared:
    """As `compare`, the sharded model built on the meta device and its weights read from a file."""
    reference = build("llama")
    before = _values(reference)
    expected = _reference(reference, "llama")
    with torch.device("meta"):
        model = FAMILIES["llama"].build().train()
    apply_config(model, config, weights=Path(path), init_fn=_rotary)
    return _compared(model, reference, before, expected, "llama", rank)


def from_meta_without_init(rank: int, config: Any, path: str) -> str:
    """The error without an `init_fn`, which must name the buffers that no file fills."""
    with torch.device("meta"):
        model = FAMILIES["llama"].build()
    try:
        apply_config(model, config, weights=Path(path))
    except CannotApply as error:
        return str(error)
    return ""


def generate(rank: int, config: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Greedy continuations of each rank's own prompt by the plain and by the sharded model."""
    prompt = batch("llama", rank, 0)["input_ids"]
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "use_cache": True}
    model = build("llama").eval()
    expected = model.generate(prompt, **options)
    apply_config(model, config, forward_methods=("generate",))
    return expected.tolist(), model.generate(prompt, **options).tolist()
