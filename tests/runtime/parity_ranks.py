"""The same model twice from one seed: wrapped by torch's FSDP1 and by `apply_config`, from one config."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import models
import torch
from fsdp_migrate import applied, apply_config, clip_grad_norm_, load, no_sync
from fsdp_migrate.runtime.self_test import CountCollectives
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

CPU = torch.device("cpu")
BLOCK = {"transformer_layer_cls": ["Block"]}


@dataclass(frozen=True)
class Parity:
    """One row: a config in torch's own keywords, a model, and how it is trained.

    tolerance: largest absolute difference of any parameter after `steps`, 0 for bitwise; the noise
    floor of FSDP1 against itself where sums are taken in another order.
    accelerate: the text of an accelerate config instead of `config`.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    accelerate: str = ""
    model: str = "Transformer"
    arguments: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "AdamW"
    options: dict[str, Any] = field(default_factory=dict)
    frozen: str = ""
    clip: float | None = None
    micro: int = 1
    accumulate: str = ""  # "no_sync" or "sync"
    world: int = 2
    steps: int = 20
    tolerance: float = 0.0
    same_expert: bool = False


def build(case: Parity) -> nn.Module:
    torch.manual_seed(7)
    model: nn.Module = getattr(models, case.model)(**case.arguments)
    for name, parameter in model.named_parameters():
        if case.frozen and case.frozen in name:
            parameter.requires_grad_(False)
    return model


def fsdp1(case: Parity) -> nn.Module:
    """torch's own wrapper. What a CPU forces: device_id; sync_module_states and cpu_offload cannot be on."""
    model = build(case)
    config = {key: value for key, value in case.config.items() if key not in ("sync_module_states", "cpu_offload")}
    checkpointing = config.pop("activation_checkpointing", False)
    strategy = ShardingStrategy[config.pop("sharding_strategy", "FULL_SHARD")]
    arguments: dict[str, Any] = {"sharding_strategy": strategy}
    classes: tuple[type[nn.Module], ...] = ()
    wrap = config.pop("auto_wrap_policy", None)
    if wrap and "min_num_params" in wrap:
        arguments["auto_wrap_policy"] = functools.partial(
            size_based_auto_wrap_policy, min_num_params=wrap["min_num_params"]
        )
    elif wrap:
        named = wrap["transformer_layer_cls"]
        classes = tuple({type(one) for one in model.modules() if type(one).__name__ in named})
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=set(classes))
        arguments["auto_wrap_policy"] = policy
    precision = dict(config.pop("mixed_precision", {}))
    if precision:
        kept = precision.pop("_module_classes_to_ignore", None)
        words = {key: getattr(torch, v[6:]) if isinstance(v, str) else v for key, v in precision.items()}
        if kept is not None:
            words["_module_classes_to_ignore"] = tuple(getattr(nn, one) for one in kept)
        arguments["mixed_precision"] = MixedPrecision(**words)
    if "backward_prefetch" in config:
        word = config.pop("backward_prefetch")
        arguments["backward_prefetch"] = BackwardPrefetch[word] if word else None
    if "ignored_modules" in config:
        arguments["ignored_modules"] = [model.get_submodule(one) for one in config.pop("ignored_modules")]
    if strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2):
        sizes = config.pop("device_mesh")
        arguments["device_mesh"] = init_device_mesh("cpu", tuple(sizes), mesh_dim_names=("replicate", "shard"))
    wrapped = FullyShardedDataParallel(model, device_id=CPU, **arguments, **config)
    if checkpointing:
        apply_activation_checkpointing(
            wrapped,
            checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            check_fn=lambda one: isinstance(one, classes),
        )
    return wrapped


def by_accelerate(case: Parity, rank: int) -> nn.Module:
    """Wrapped with what accelerate's own plugin makes of the config file; outputs in fp32, as it returns them."""
    from accelerate.utils.operations import convert_outputs_to_fp32
    from oracles.accelerate_probe import worker_plugin

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(case.accelerate, encoding="utf-8")
        plugin, precision = worker_plugin(path)
    model = build(case)
    plugin.set_auto_wrap_policy(model)
    if precision != "no":
        plugin.set_mixed_precision(precision)
    wrapped = FullyShardedDataParallel(
        model,
        sharding_strategy=plugin.sharding_strategy,
        auto_wrap_policy=plugin.auto_wrap_policy,
        mixed_precision=plugin.mixed_precision_policy,
        backward_prefetch=plugin.backward_prefetch,
        forward_prefetch=plugin.forward_prefetch,
        limit_all_gathers=plugin.limit_all_gathers,
        use_orig_params=plugin.use_orig_params,
        device_id=CPU,
    )
    if precision != "no":
        wrapped.forward = convert_outputs_to_fp32(wrapped.forward)
    return wrapped


def fsdp2(case: Parity) -> nn.Module:
    config: Any = case.config or case.accelerate
    if case.config.get("sharding_strategy") == "NO_SHARD":
        config = load(config, no_shard="replicate", world_size=case.world)
    return apply_config(build(case), config)


def batches(case: Parity, rank: int) -> list[tuple[Any, ...]]:
    torch.manual_seed(1000 + rank)
    if case.model == "Conv":
        return [(torch.randn(4, 3, 6, 6),) for _ in range(case.micro)]
    if case.model == "Experts":
        return [(torch.randn(4, 16), 0 if case.same_expert else rank) for _ in range(case.micro)]
    return [(torch.randint(0, 101, (2, 12)),) for _ in range(case.micro)]


def loss_of(case: Parity, output: torch.Tensor, inputs: tuple[Any, ...]) -> torch.Tensor:
    if case.model == "Conv":
        return nn.functional.cross_entropy(output.float(), torch.arange(4) % 5)
    if case.model == "Experts":
        return (output.float() - inputs[0].sin()).square().mean()
    ids = inputs[0]
    return nn.functional.cross_entropy(output[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def train(
    case: Parity, model: nn.Module, rank: int, clip: Callable[[float], Any], pause: Callable[[], Any]
) -> tuple[list[float], dict[str, int]]:
    optimizer = getattr(torch.optim, case.optimizer)(model.parameters(), lr=1e-3, **case.options)
    losses, counts = [], {}
    data = batches(case, rank)
    torch.manual_seed(rank)  # dropout
    for step in range(case.steps):
        counting = CountCollectives() if step == 2 else nullcontext()
        with counting:
            total = 0.0
            for index, inputs in enumerate(data):
                quiet = case.accumulate == "no_sync" and index < len(data) - 1
                with pause() if quiet else nullcontext():
                    loss = loss_of(case, model(*inputs), inputs) / len(data)
                    loss.backward()
                total += loss.item()
        if isinstance(counting, CountCollectives):
            counts = dict(counting.counts)
        if case.clip is not None:
            clip(case.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, counts


def compare(rank: int, case: Parity) -> dict[str, Any]:
    """Train both; the largest difference of parameters, both loss sequences, both collective counts."""
    old = by_accelerate(case, rank) if case.accelerate else fsdp1(case)
    old_losses, old_counts = train(case, old, rank, old.clip_grad_norm_, old.no_sync)
    with FullyShardedDataParallel.summon_full_params(old, writeback=False):
        wanted = {
            name.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", ""): one.detach().clone()
            for name, one in old.named_parameters()
        }
    new = fsdp2(case)
    new_losses, new_counts = train(case, new, rank, lambda bound: clip_grad_norm_(new, bound), lambda: no_sync(new))
    have = {
        name: (one.full_tensor() if hasattr(one, "full_tensor") else one).detach()
        for name, one in new.named_parameters()
    }
    assert set(have) == set(wanted), (sorted(have), sorted(wanted))
    worst = max(float((have[name] - wanted[name]).abs().max()) for name in have if have[name].numel())
    moved = max(
        float((one - start).abs().max())
        for one, start in zip(have.values(), build(case).parameters(), strict=False)
        if one.shape == start.shape
    )
    c = applied(new).plan.collectives
    return {
        "worst": worst,
        "moved": moved,
        "losses": (old_losses, new_losses),
        "counts": (old_counts, new_counts),
        "planned": {"all_gathers": c.all_gathers, "reduce_scatters": c.reduce_scatters, "all_reduces": c.all_reduces},
    }
