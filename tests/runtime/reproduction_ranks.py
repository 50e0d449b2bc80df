"""The public reports R19 to R28, as far as they are about a model at run time; one function each."""

from __future__ import annotations

from typing import Any

import torch
from fsdp_migrate import CannotApply, Fsdp2Config, apply_config
from fsdp_migrate.config.fsdp2 import MixedPrecision, Wrap
from torch import nn
from torch.distributed.fsdp import FSDPModule

BF16 = MixedPrecision(param="bfloat16", reduce="bfloat16")


def refusal(model: nn.Module, cfg: Any, **arguments: Any) -> list[tuple[str, str]]:
    """(rule, message and hint) of every error; the model is untouched: no sharded module, same tensors."""
    before = {name: (id(one), one.detach().clone()) for name, one in tensors(model).items()}
    forward = {path: one.forward for path, one in model.named_modules()}
    try:
        apply_config(model, cfg, **arguments)
    except CannotApply as error:
        assert not any(isinstance(one, FSDPModule) for one in model.modules())
        after = tensors(model)
        assert {name: id(one) for name, one in after.items()} == {name: one for name, (one, _) in before.items()}
        assert all(torch.equal(one, before[name][1]) for name, one in after.items() if not one.is_meta)
        assert {path: one.forward for path, one in model.named_modules()} == forward
        return [(one.rule, f"{one.message}; {one.hint}") for one in error.findings if one.severity == "error"]
    raise AssertionError("nothing was refused")


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.block, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.emb(ids)))


def tied_rows_are_all_trained(rank: int, names: tuple[str, ...]) -> dict[str, Any]:
    """R19, with units named so that the tie stays inside the root or goes across units."""
    torch.manual_seed(1)
    model = Tied()
    before = model.emb.weight.detach().clone()
    apply_config(model, Fsdp2Config(wrap=Wrap("names", names=names)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.arange(9)).square().sum().backward()
    optimizer.step()
    after = model.emb.weight.full_tensor()
    return {"moved": int((after != before).any(1).sum()), "tied": model.head.weight is model.emb.weight}


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.temperature


def scalar_parameter(rank: int) -> dict[str, Any]:
    """R20."""
    refused = refusal(Scalar(), {"sharding_strategy": "FULL_SHARD"})
    model = apply_config(Scalar(), Fsdp2Config(scalar_params="ignore"))
    model(torch.randn(2, 4) + rank).sum().backward()
    return {"refused": refused, "plain": type(model.temperature).__name__, "gradient": model.temperature.grad.item()}


def mixed(freeze: bool = False) -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16), nn.LayerNorm(8))
    model[1].requires_grad_(not freeze)
    return model


def mixed_dtypes(rank: int) -> dict[str, Any]:
    """R21."""
    refused = refusal(mixed(), Fsdp2Config(mixed_precision=BF16))
    outcomes = {}
    for word in ("split", "upcast"):
        model = apply_config(mixed(), Fsdp2Config(mixed_precision=BF16, mixed_dtypes=word))
        model(torch.randn(2, 8)).sum().backward()
        outcomes[word] = [str(one.dtype) for one in model.parameters()]
        outcomes[f"{word} units"] = sum(isinstance(one, FSDPModule) for one in model.modules())
    frozen = apply_config(mixed(freeze=True), Fsdp2Config(mixed_precision=BF16))
    frozen(torch.randn(2, 8)).sum().backward()
    return {"refused": refused, **outcomes}


class BlockA(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)


class BlockB(nn.Linear):
    pass


class Layers(nn.Module):
    _no_split_modules = ("BlockA", "BlockB")

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([BlockA(), BlockA()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def classes(rank: int, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """R22 and R25: what is said of user-written classes."""
    return refusal(Layers(), Fsdp2Config(wrap=Wrap("classes", classes=names, classes_from="user")))


def classes_of_the_model(rank: int) -> dict[str, Any]:
    """R25, the list of the model itself."""
    from fsdp_migrate import applied

    model = apply_config(Layers(), Fsdp2Config(wrap=Wrap("classes")))
    findings = [(one.rule, one.severity) for one in applied(model).findings]
    return {"findings": findings, "units": [unit.title for unit in applied(model).plan.units]}


class Seen(nn.Linear):
    dtypes: tuple[torch.dtype, ...] = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.dtypes = (self.weight.dtype, x.dtype)
        return super().forward(x)


def master_weights(rank: int) -> dict[str, Any]:
    """R24: stored and stepped in fp32, computed in bf16, returned in fp32, from an accelerate file."""
    model = nn.Sequential(Seen(4, 4, dtype=torch.bfloat16))
    text = "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_sync_module_states: true\n"
    apply_config(model, text)
    optimizer = torch.optim.AdamW(model.parameters())
    output = model(torch.randn(2, 4))
    output.sum().backward()
    optimizer.step()
    stored = {str(one.dtype) for one in model.parameters()}
    states = {str(value.dtype) for state in optimizer.state.values() for key, value in state.items() if key != "step"}
    return {"stored": stored, "states": states, "seen": [str(one) for one in model[0].dtypes], "out": str(output.dtype)}
