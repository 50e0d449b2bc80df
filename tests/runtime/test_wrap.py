"""Wrap targets against torch's own recursion, and the messages for what is not found. No ranks needed."""

from __future__ import annotations

import functools
import random

import pytest
import torch
from fsdp_migrate import Fsdp2Config
from fsdp_migrate.config.fsdp2 import MixedPrecision, Wrap
from fsdp_migrate.runtime import wrap
from torch import nn
from torch.distributed.fsdp._wrap_utils import _auto_wrap
from torch.distributed.fsdp.api import MixedPrecision as Fsdp1Precision
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


class Wrapper(nn.Module):
    """Stands in for FullyShardedDataParallel: torch wraps with it what it would wrap."""

    def __init__(self, module: nn.Module, **_: object) -> None:
        super().__init__()
        self.module = module


def random_tree(seed: int) -> nn.Module:
    rng = random.Random(seed)
    pool: list[nn.Module] = []

    def leaf() -> nn.Module:
        kind = rng.randrange(6)
        size = rng.randrange(1, 12)
        if kind == 0:
            return nn.MultiheadAttention(4 * rng.randrange(1, 4), 4)
        if kind == 1:
            return nn.BatchNorm1d(size)
        if kind == 2 and pool:
            return rng.choice(pool)  # a module at two places
        if kind == 3:
            return nn.Dropout()
        made = nn.Linear(size, rng.randrange(1, 12))
        pool.append(made)
        return made

    def tree(depth: int) -> nn.Module:
        if depth == 0 or rng.random() < 0.3:
            return leaf()
        children = [tree(depth - 1) for _ in range(rng.randrange(1, 4))]
        kind = rng.randrange(4)
        if kind == 0:
            return nn.ModuleList(children)
        if kind == 1:
            return nn.ModuleDict({f"c{i}": child for i, child in enumerate(children)})
        made = nn.Sequential(*children)
        if kind == 2:
            made.register_parameter("own", nn.Parameter(torch.zeros(rng.randrange(1, 30))))
        return made

    root = nn.Sequential(tree(3), tree(3), tree(2))
    weights = [one for one in root.modules() if isinstance(one, nn.Linear)]
    if len(weights) > 1 and rng.random() < 0.5:
        weights[0].weight = weights[-1].weight
    return root


def by_torch(root: nn.Module, threshold: int, skip: set[nn.Module], precision: bool) -> set[nn.Module]:
    left_out = {parameter for module in skip for parameter in module.parameters()}
    arguments = {"mixed_precision": Fsdp1Precision(param_dtype=torch.bfloat16) if precision else None}
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=threshold)
    _auto_wrap(root, policy, skip, left_out, arguments, Wrapper)
    return {one.module for one in root.modules() if isinstance(one, Wrapper)}


@pytest.mark.parametrize("precision", [False, True])
def test_size_policy_is_torchs(precision: bool) -> None:
    """The same modules on random trees, thresholds and ignored sets; torch changes the tree, so it comes last."""
    hits = 0
    for seed in range(400):
        root = random_tree(seed)
        rng = random.Random(-seed - 1)
        threshold = rng.choice([0, 1, 5, 20, 60, 150])
        skip: set[nn.Module] = set()
        if rng.random() < 0.4:
            skip = set(rng.choice(list(root.children())).modules())
        config = Fsdp2Config(
            wrap=Wrap("size", min_num_params=threshold),
            mixed_precision=MixedPrecision(
                param="bfloat16" if precision else None, full_precision_classes=("_BatchNorm",) if precision else ()
            ),
        )
        precise = wrap.full_precision(root, config.mixed_precision.full_precision_classes, skip)
        ours = wrap.targets(root, config, skip, []) | precise
        names = dict(root.named_modules())
        theirs = by_torch(root, threshold, skip, precision)
        wanted = {path for path, module in names.items() if module in theirs}
        assert {path for path, module in names.items() if module in ours} == wanted, f"seed {seed}"
        hits += len(wanted)
    assert hits > 500, "the trees hold something to wrap"


def test_no_threshold_is_torchs_default() -> None:
    assert functools.partial(size_based_auto_wrap_policy).func.__defaults__[0] == wrap.SIZE_DEFAULT
