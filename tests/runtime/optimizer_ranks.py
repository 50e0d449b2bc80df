"""What the ranks do in test_optimizers: optimizers built before sharding, and every class against a plain run."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import models
import torch
import torch.distributed as dist
from fsdp_migrate import CannotApply, apply_config, check_optimizer
from torch import nn
from torch.nn import functional as F

CONFIG = {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": {"transformer_layer_cls": ["Block"]}}
SMALL = {"sharding_strategy": "FULL_SHARD"}

MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-1, momentum=0.9, nesterov=True),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=1e-1, momentum=0.9, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-1, initial_accumulator_value=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Muon": lambda p: torch.optim.Muon([one for one in p if one.ndim == 2], lr=1e-2),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-2),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=1e-2),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=1e-1, momentum=0.9, fused=True),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=1e-2),
}


def model_of(seed: int = 1) -> models.Transformer:
    torch.manual_seed(seed)
    return models.Transformer(layers=2, dim=16, vocab=37)


def small(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))  # no world divides these rows


def run(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Every rank has the same data: gradients are those of one process."""
    losses = []
    for step in steps:
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x[:, :3].sin()).square().mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())  # type: ignore[attr-defined]
    return losses


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, scheduler: Any = None) -> list[float]:
    losses = []
    for step in steps:
        ids = torch.randint(0, 37, (2, 9), generator=torch.Generator().manual_seed(step))
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


def each(rank: int, name: str) -> tuple[str, list[float], list[float]]:
    """Train with one class: what goes wrong, the losses of the plain run and of the sharded one."""
    del rank
    plain = small()
    reference = run(plain, MAKERS[name](plain.parameters()), range(4)) if name != "SparseAdam" else []
    model = apply_config(small(), SMALL)
    try:
        optimizer = MAKERS[name](list(model.parameters()))
        losses = run(model, optimizer, range(4))
        weights = [one.full_tensor() for one in model.parameters()]
    except Exception as error:
        return f"{type(error).__name__}: {error}", reference, []
    worst = max((a - b).abs().max().item() for a, b in zip(weights, plain.parameters(), strict=True))
    # Muon multiplies in bfloat16; were shards taken for matrices, weights would be some 1e-2 apart
    near = 2e-3 if name == "Muon" else 1e-5
    return "" if worst < near else f"weights differ by {worst}", reference, losses


def said(call: Callable[[], Any]) -> list[str]:
    """The rules and messages of a refusal."""
    try:
        call()
    except CannotApply as error:
        return [f"{one.rule} {one.message}" for one in error.findings if one.severity == "error"]
    return []


def refused_by_name(rank: int, name: str) -> tuple[list[str], list[str], bool]:
    """Passed to apply_config, and shown to check_optimizer; whether the model stayed as it was."""
    del rank
    model = small()
    optimizer = MAKERS[name](list(model.parameters()))
    before = said(lambda: apply_config(model, SMALL, optimizer=optimizer))
    plain = not any(hasattr(one, "placements") for one in model.parameters())
    apply_config(model, SMALL)
    try:
        later = MAKERS[name](list(model.parameters()))
    except Exception as error:
        return before, [f"{type(error).__name__}"], plain
    return before, said(lambda: check_optimizer(model, later)), plain


def moved(rank: int, name: str, before: int) -> dict[str, Any]:
    """Train `before` steps plainly, shard with the optimizer, go on; against one that was never sharded."""
    del rank
    plain, model = model_of(), model_of()
    its, optimizer = MAKERS[name](list(plain.parameters())), MAKERS[name](list(model.parameters()))
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    groups = list(optimizer.param_groups)
    train(plain, its, range(before))
    train(model, optimizer, range(before))
    apply_config(model, CONFIG, optimizer=optimizer)
    check_optimizer(model, optimizer)
    named = dict(model.named_parameters())
    held = [one for group in optimizer.param_groups for one in group["params"]]
    start = [one.full_tensor().clone() for one in held]
    states = {type(value).__name__ for values in optimizer.state.values() for value in values.values()}
    steps = [values["step"] for values in optimizer.state.values() if isinstance(values.get("step"), torch.Tensor)]
    losses, reference = train(model, optimizer, range(before, before + 3)), train(plain, its, range(before, before + 3))
    return {
        "sharded": all(hasattr(one, "placements") for one in held),
        "same": all(any(one is other for other in named.values()) for one in held),
        "options": options == [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups],
        "groups": all(one is other for one, other in zip(groups, optimizer.param_groups, strict=True)),
        "changed": not any(torch.equal(a, b.full_tensor()) for a, b in zip(start, held, strict=True)),
        "own steps": len({one.data_ptr() for one in steps}) == len(steps),
        "states": states,
        "losses": losses,
        "reference": reference,
    }


def moved_is_exact(rank: int) -> tuple[list[float], list[float]]:
    """Bit by bit like a model that was sharded from the beginning: the same shards, the same steps."""
    del rank
    model = apply_config(model_of(), CONFIG)
    reference = train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), range(4))
    other = model_of()
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
    apply_config(other, CONFIG, optimizer=optimizer)
    return train(other, optimizer, range(4)), reference


def groups_and_scheduler(rank: int) -> tuple[list[list[float]], list[list[float]], list[float], list[float], bool]:
    """Two groups by weight decay and a scheduler, all built before sharding."""
    del rank

    def build() -> tuple[Any, Any, Any]:
        model = model_of()
        many = [one for one in model.parameters() if one.ndim > 1]
        few = [one for one in model.parameters() if one.ndim < 2]
        groups = [{"params": many, "weight_decay": 0.5}, {"params": few, "weight_decay": 0.0, "lr": 3e-2}]
        optimizer = torch.optim.AdamW(groups, lr=1e-2)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    plain, its, schedule = build()
    model, optimizer, scheduler = build()
    apply_config(model, CONFIG, optimizer=optimizer)
    losses, rates, reference, expected = [], [], [], []
    for step in range(4):
        losses += train(model, optimizer, range(step, step + 1), scheduler)
        reference += train(plain, its, range(step, step + 1), schedule)
        rates.append([group["lr"] for group in optimizer.param_groups])
        expected.append([group["lr"] for group in its.param_groups])
    few = [one.ndim for one in optimizer.param_groups[1]["params"]]
    return rates, expected, losses, reference, set(few) == {1}


def hybrid(rank: int) -> tuple[list[float], list[float], set[str]]:
    """Populated state moved onto a mesh of replicas and shards."""
    del rank
    from torch.distributed.device_mesh import init_device_mesh

    plain, model = model_of(), model_of()
    its, optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2), torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(plain, its, range(2))
    train(model, optimizer, range(2))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    apply_config(model, {**CONFIG, "sharding_strategy": "HYBRID_SHARD"}, mesh=mesh, optimizer=optimizer)
    placed = {str(values["exp_avg"].placements) for values in optimizer.state.values()}
    return train(model, optimizer, range(2, 5)), train(plain, its, range(2, 5)), placed


def tied(rank: int) -> tuple[list[float], list[float], int]:
    del rank
    both = []
    for shard in (False, True):
        torch.manual_seed(1)
        model = models.Transformer(layers=1, dim=16, vocab=37, tied=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(model, optimizer, range(2))
        if shard:
            apply_config(model, CONFIG, optimizer=optimizer)
        both.append(train(model, optimizer, range(2, 5)))
    unique = len({one for group in optimizer.param_groups for one in group["params"]})
    return both[1], both[0], unique - len(list(model.parameters()))


def on_meta(rank: int, name: str) -> tuple[list[str], bool, list[float], list[float]]:
    """A model without values and its optimizer: parameters are known by identity, values come from weights."""
    del rank
    weights = {key: value.clone() for key, value in model_of().state_dict().items()}
    plain = model_of()
    reference = train(plain, MAKERS[name](list(plain.parameters())), range(3))
    with torch.device("meta"):
        model = models.Transformer(layers=2, dim=16, vocab=37)
    optimizer = MAKERS[name](list(model.parameters()))
    refusal = said(lambda: apply_config(model, CONFIG, optimizer=optimizer, weights=weights))
    if refusal:
        return refusal, True, [], reference
    held = {id(one) for group in optimizer.param_groups for one in group["params"]}
    same = held == {id(one) for one in model.parameters()}
    return [], same, train(model, optimizer, range(3)), reference


def foreign(rank: int) -> tuple[list[str], bool]:
    """An optimizer that also holds parameters of another model."""
    del rank
    model, other = model_of(), model_of(2)
    optimizer = torch.optim.AdamW([*model.parameters(), *other.blocks[0].parameters()])
    refusal = said(lambda: apply_config(model, CONFIG, optimizer=optimizer))
    return refusal, not any(hasattr(one, "placements") for one in model.parameters())


class Factored(torch.optim.SGD):
    """Keeps a row of statistics that is not of the parameter's shape."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one]["row"] = torch.zeros(one.shape[0] + 1)
        return super().step(closure)


def strange_state(rank: int) -> list[str]:
    del rank
    model = model_of()
    optimizer = Factored(model.parameters(), lr=0.1)
    train(model, optimizer, range(1))
    return said(lambda: apply_config(model, CONFIG, optimizer=optimizer))


def other_dtype(rank: int) -> tuple[set[str], list[float]]:
    """State follows parameters that sharding stores in another dtype."""
    del rank
    model = small().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.ones(2, 5, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    config = {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "fsdp_config": {"fsdp_version": 1, "fsdp_auto_wrap_policy": "NO_WRAP"},
    }
    apply_config(model, config, optimizer=optimizer)
    kinds = {f"{one.dtype} {optimizer.state[one]['exp_avg'].dtype}" for one in model.parameters()}
    return kinds, run(model, optimizer, range(2))


def checked(rank: int) -> dict[str, list[str]]:
    """check_optimizer: before, after, in the middle."""
    del rank
    model = model_of()
    early = torch.optim.AdamW(model.parameters())
    start = {name: one.clone() for name, one in model.state_dict().items()}
    apply_config(model, CONFIG)
    found = {"built before": said(lambda: check_optimizer(model, early))}
    train(model, early, range(2))
    trained = any(not torch.equal(start[name], one.full_tensor()) for name, one in model.named_parameters())
    found["the stale one trains"] = [str(trained)]
    late = torch.optim.AdamW(model.parameters())
    found["built after"] = said(lambda: check_optimizer(model, late))
    with torch.no_grad():
        model(torch.zeros(1, 4, dtype=torch.long))
    gathered = not hasattr(model.head.weight, "placements")
    found["the root is gathered"] = [str(gathered)]
    amid = torch.optim.AdamW(model.parameters())
    found["after an evaluation"] = said(lambda: check_optimizer(model, late))
    found["built while gathered"] = said(lambda: check_optimizer(model, amid))
    part = torch.optim.AdamW(model.blocks.parameters())
    found["of some parameters"] = said(lambda: check_optimizer(model, part))
    return found


def memory(rank: int) -> tuple[int, int, int, int]:
    """Full parameters and moments alive after apply_config, and when the last unit is sharded."""
    del rank
    import fsdp_migrate.runtime.sharding as applying

    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(model, optimizer, range(1))
    of_blocks = [weakref.ref(one) for one in model.blocks.parameters()]
    parameters = [weakref.ref(one) for one in model.parameters()]
    moments = [weakref.ref(values["exp_avg"]) for values in optimizer.state.values()]
    at_root = []
    real = applying._fully_shard

    def watching(unit: Any, *rest: Any) -> None:
        if unit.kind == "root":
            at_root.append(_alive(of_blocks))
        real(unit, *rest)

    applying._fully_shard = watching
    try:
        apply_config(model, CONFIG, optimizer=optimizer)
    finally:
        applying._fully_shard = real
    train(model, optimizer, range(1, 2), scheduler)
    return len(parameters), _alive(parameters), _alive(moments), at_root[0]


def _alive(references: list[Any]) -> int:
    gc.collect()
    return sum(one() is not None for one in references)


def mixed_fast(rank: int, fast: str) -> tuple[list[str], str]:
    """A group of sharded and plain parameters with foreach or fused: what is said, and what torch does."""
    del rank
    torch.manual_seed(1)
    model = nn.Sequential(small(), nn.Linear(3, 3))
    apply_config(model, {**SMALL, "ignored_modules": ["1"]})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **{fast: True})
    told = said(lambda: check_optimizer(model, optimizer))
    model(torch.ones(2, 5)).sum().backward()
    try:
        optimizer.step()
    except Exception as error:
        return told, type(error).__name__
    finally:
        dist.barrier()
    return told, ""
