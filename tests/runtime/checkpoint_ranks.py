"""What the ranks do in test_checkpoints: FSDP1 trains and saves, FSDP2 loads and goes on, and back."""

from __future__ import annotations

import os
import pickle
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import models
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_migrate import BadCheckpoint, CannotApply, apply_config, load_checkpoint, save_checkpoint
from fsdp_migrate.runtime import checkpoints
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional as F

CONFIG = {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": {"transformer_layer_cls": ["Block"]}}
CPU = torch.device("cpu")
warnings.filterwarnings("ignore", category=FutureWarning)


def kinds(kind: str) -> tuple[Any, ...]:
    """Arguments of FSDP.state_dict_type, made anew: FSDP1 writes into them."""
    if kind == "full":  # on the CPU, "offload to the CPU" copies nothing: moments would share one buffer
        more = (FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False))
        return (StateDictType.FULL_STATE_DICT, *more)
    if kind == "sharded":
        return (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), ShardedOptimStateDictConfig())
    return (StateDictType.LOCAL_STATE_DICT,)


def model_of(seed: int, tied: bool = False) -> models.Transformer:
    torch.manual_seed(seed)
    return models.Transformer(layers=2, dim=16, vocab=37, tied=tied)  # 37 rows: no world divides them


def adamw(model: Any, lr: float = 1e-2) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)


def old(seed: int = 1, tied: bool = False, orig: bool = True, hybrid: bool = False, mesh: bool = False) -> FSDP:
    """The model under FSDP1."""
    more: dict[str, Any] = {}
    if hybrid:
        more = {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, "device_mesh": _two_by_two()}
    elif mesh:
        more = {"device_mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
    return FSDP(
        model_of(seed, tied),
        auto_wrap_policy=ModuleWrapPolicy({models.Block}),
        device_id=CPU,
        use_orig_params=orig,
        **more,
    )


def new(seed: int = 2, tied: bool = False, hybrid: bool = False, config: Any = None) -> Any:
    """The model under FSDP2, from another seed: what is loaded shows."""
    if hybrid:
        return apply_config(model_of(seed, tied), {**CONFIG, "sharding_strategy": "HYBRID_SHARD"}, mesh=_two_by_two())
    return apply_config(model_of(seed, tied), config or CONFIG)


def _two_by_two() -> Any:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def train(model: Any, optimizer: Any, rank: int, steps: range) -> list[float]:
    losses = []
    for step in steps:
        ids = torch.randint(0, 37, (2, 9), generator=torch.Generator().manual_seed(100 * step + rank))
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def save_old(model: FSDP, optimizer: Any, folder: Path, kind: str) -> None:
    """As accelerate does for FSDP1: same calls, same names."""
    with FSDP.state_dict_type(model, *kinds(kind)):
        state, moments = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "sharded":
        dcp.save({"model": state}, checkpoint_id=folder / "pytorch_model_fsdp_0")
        dcp.save({"optimizer": moments}, checkpoint_id=folder / "optimizer_0")
    elif dist.get_rank() == 0:
        torch.save(state, folder / "pytorch_model_fsdp.bin")
        torch.save(moments, folder / "optimizer.bin")
    dist.barrier()


def full_old(model: FSDP, optimizer: Any) -> dict[str, Any]:
    """Everything FSDP1 holds, full, on every rank: what is expected."""
    with FSDP.state_dict_type(model, *kinds("full")):
        state, moments = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
        box = [moments]
        dist.broadcast_object_list(box, src=0)
    clone = {name: one.clone() for name, one in state.items()}
    return {"model": clone, "optimizer": {name: values for name, values in box[0]["state"].items() if values}}


def full_new(model: Any, optimizer: Any) -> dict[str, Any]:
    """The same of FSDP2, without the code under test."""
    named = list(model.named_parameters())
    state = {
        name: {key: _full(value).clone() for key, value in optimizer.state[one].items()}
        for name, one in named
        if optimizer.state.get(one)
    }
    return {"model": {name: _full(one).clone() for name, one in model.state_dict().items()}, "optimizer": state}


def _full(value: Any) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Where two full states differ in names or in a bit."""
    found = [
        f"names of {part}: {set(one[part]) ^ set(other[part])}" for part in one if set(one[part]) != set(other[part])
    ]
    pairs = [(name, one["model"][name], other["model"].get(name)) for name in one["model"]]
    for name, values in one["optimizer"].items():
        pairs += [(f"{name}.{key}", value, other["optimizer"].get(name, {}).get(key)) for key, value in values.items()]
    return found + [name for name, a, b in pairs if b is None or a.dtype != b.dtype or not torch.equal(a, b)]


def from_fsdp1(
    rank: int, folder: str, kind: str, options: dict[str, Any]
) -> tuple[list[str], list[float], list[float]]:
    """FSDP1 trains, saves and goes on; FSDP2 loads and goes on: differences after loading, and both losses."""
    path = Path(folder)
    model = old(**options)
    optimizer = adamw(model)
    train(model, optimizer, rank, range(2))
    save_old(model, optimizer, path, kind)
    expected = full_old(model, optimizer)
    uninterrupted = train(model, optimizer, rank, range(2, 5))
    if rank == 0:
        torch.save(expected, path / "expected.pt")
    dist.barrier()
    differ, losses = into_fsdp2(rank, folder, options)
    return differ, uninterrupted, losses


def into_fsdp2(rank: int, folder: str, options: dict[str, Any]) -> tuple[list[str], list[float]]:
    path = Path(folder)
    model = new(tied=options.get("tied", False), hybrid=options.get("hybrid", False))
    optimizer = adamw(model, lr=0.5)  # the checkpoint's options count
    load_checkpoint(path, model, optimizer)
    differ = differences(torch.load(path / "expected.pt", weights_only=True), full_new(model, optimizer))
    return differ, train(model, optimizer, rank, range(2, 5))


def shared_steps(folder: Path) -> int:
    """How many parameters share a step counter with another in what FSDP1 saved."""
    state = torch.load(folder / "optimizer.bin", weights_only=True)["state"]
    places = [values["step"].data_ptr() for values in state.values()]
    return len(places) - len(set(places))


def round_trip(
    rank: int, folder: str, kind: str | None, config: Any, tied: bool
) -> tuple[list[str], Any, Any, list[str]]:
    """Save, go on; load into another model, go on."""
    path = Path(folder)
    model = new(tied=tied, config=config)
    optimizer = adamw(model)
    train(model, optimizer, rank, range(2))
    save_checkpoint(path, model, optimizer, kind=kind)
    expected = full_new(model, optimizer)
    uninterrupted = train(model, optimizer, rank, range(2, 4))
    other = new(seed=5, tied=tied, config=config)
    again = adamw(other, lr=0.5)
    load_checkpoint(path, other, again)
    differ = differences(expected, full_new(other, again))
    return differ, uninterrupted, train(other, again, rank, range(2, 4)), sorted(p.name for p in path.iterdir())


def into_fsdp1(rank: int, folder: str, kind: str, orig: bool) -> tuple[list[str], list[float], list[float]]:
    """Rollback: FSDP2 saves, FSDP1 loads with torch's own functions."""
    path = Path(folder)
    model = new()
    optimizer = adamw(model)
    train(model, optimizer, rank, range(2))
    save_checkpoint(path, model, optimizer, kind=kind)
    expected = full_new(model, optimizer)
    uninterrupted = train(model, optimizer, rank, range(2, 4))
    back = old(seed=7, orig=orig)
    again = adamw(back)
    with FSDP.state_dict_type(back, *kinds(kind)):
        if kind == "full":
            state = torch.load(path / "pytorch_model_fsdp.bin", weights_only=True)
            moments = torch.load(path / "optimizer.bin", weights_only=True)
        else:
            train(back, again, rank, range(1))  # so that there is a state to load into
            both = {"model": back.state_dict()}
            dcp.load(both, checkpoint_id=path / "pytorch_model_fsdp_0")
            template = {"optimizer": FSDP.optim_state_dict(back, again)}
            dcp.load(template, checkpoint_id=path / "optimizer_0")
            state, moments = both["model"], template["optimizer"]
        back.load_state_dict(state)
        again.load_state_dict(FSDP.optim_state_dict_to_load(back, again, moments))
    return differences(expected, full_old(back, again)), uninterrupted, train(back, again, rank, range(2, 4))


def save_untrained(rank: int, folder: str, kind: str) -> tuple[int, list[float], list[float]]:
    """Saving before the first step leaves a run as it is; so does loading that."""
    model, reference = new(), new()
    optimizer, its = adamw(model), adamw(reference)
    save_checkpoint(folder, model, optimizer, kind=kind)
    made = len(optimizer.state)
    load_checkpoint(folder, model, optimizer)
    return made, train(model, optimizer, rank, range(3)), train(reference, its, rank, range(3))


def with_gradients(rank: int, folder: str, kind: str) -> list[str]:
    """Loading into an optimizer that has no state yet while there are gradients."""
    model = new()
    optimizer = adamw(model)
    train(model, optimizer, rank, range(2))
    save_checkpoint(folder, model, optimizer, kind=kind)
    other = new(seed=5)
    again = adamw(other)
    other(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    load_checkpoint(folder, other, again)
    return differences(full_new(model, optimizer), full_new(other, again))


def after_evaluation(rank: int, folder: str, kind: str) -> tuple[list[str], bool]:
    """The root's parameters are still gathered when the checkpoint is saved, and when it is loaded."""
    model, ids = new(), torch.arange(8).view(1, 8) + rank
    optimizer = adamw(model)
    train(model, optimizer, rank, range(2))
    with torch.no_grad():
        before = model(ids)
    save_checkpoint(folder, model, optimizer, kind=kind)
    other = new(seed=5)
    again = adamw(other)
    with torch.no_grad():
        other(ids)
    load_checkpoint(folder, other, again)
    with torch.no_grad():
        after = other(ids)
    other.reshard()
    model.reshard()
    return differences(full_new(model, optimizer), full_new(other, again)), torch.equal(before, after)


def two_groups(rank: int, folder: str, kind: str) -> tuple[list[str], list[Any], str]:
    """Groups come back with their options; a target of one group is refused, and left as it was."""
    model = new()
    optimizer = grouped(model)
    train(model, optimizer, rank, range(2))
    save_checkpoint(folder, model, optimizer, kind=kind)
    other = new(seed=5)
    again = grouped(other, decays=(0.7, 0.8))
    load_checkpoint(folder, other, again)
    differ = differences(full_new(model, optimizer), full_new(other, again))
    third = new(seed=6)
    return differ, [group["weight_decay"] for group in again.param_groups], refusal(folder, third, adamw(third))


def grouped(model: Any, decays: tuple[float, float] = (0.1, 0.0)) -> torch.optim.AdamW:
    many = [one for one in model.parameters() if one.ndim > 1]
    few = [one for one in model.parameters() if one.ndim < 2]
    return torch.optim.AdamW(
        [{"params": many, "weight_decay": decays[0]}, {"params": few, "weight_decay": decays[1]}], lr=1e-2
    )


def unused_parameter(rank: int, folder: str, kind: str) -> tuple[list[str], int]:
    """A parameter that never had a gradient has no state, before and after."""
    model = new()
    optimizer = adamw(model)
    for _ in range(2):
        model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
        model.norm.weight.grad = None
        optimizer.step()
        optimizer.zero_grad()
    save_checkpoint(folder, model, optimizer, kind=kind)
    other = new(seed=5)
    again = adamw(other)
    load_checkpoint(folder, other, again)
    return differences(full_new(model, optimizer), full_new(other, again)), len(again.state)


def refusal(source: Any, model: Any, optimizer: Any = None) -> str:
    """What load_checkpoint says, and that it changed nothing."""
    before = {name: _full(one).clone() for name, one in model.state_dict().items()}
    try:
        load_checkpoint(source, model, optimizer)
    except BadCheckpoint as error:
        same = all(torch.equal(before[name], _full(one)) for name, one in model.state_dict().items())
        assert same, "the model was changed"
        assert optimizer is None or not optimizer.state, "the optimizer was changed"
        return str(error)
    raise AssertionError("nothing was refused")


def refused(rank: int, source: str, optimizer: bool = False, sgd: bool = False) -> str:
    del rank
    model = new()
    its = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if sgd else adamw(model)
    return refusal(source, model, its if optimizer else None)


def refused_half_way(rank: int, source: str) -> str:
    """A checkpoint whose description fits, but which cannot be read."""
    del rank
    try:
        load_checkpoint(source, new())
    except BadCheckpoint as error:
        return str(error)
    return "loaded"


def refused_on_one_rank(rank: int, source: str) -> str:
    """Only rank 0 sees the file; the others have another path."""
    return refused(rank, source if rank == 0 else f"{source}-elsewhere")


def loads_seen_by_rank_0(rank: int, folder: str) -> bool:
    """Full files need to lie on rank 0 alone."""
    model = new()
    save_checkpoint(folder, model, kind="full")
    other = new(seed=5)
    load_checkpoint(folder if rank == 0 else f"{folder}-elsewhere", other)
    return all(torch.equal(_full(a), _full(b)) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def save_local(rank: int, folder: str, how: str, orig: bool) -> None:
    """FSDP1's LOCAL_STATE_DICT: a file per rank, as accelerate names them, or through DCP."""
    path = Path(folder)
    model = old(orig=orig)
    with FSDP.state_dict_type(model, *kinds("local")):
        state = model.state_dict()
    path.mkdir(parents=True, exist_ok=True)
    if how == "dcp":
        dcp.save({"model": state}, checkpoint_id=path)
    else:
        torch.save(state, path / f"pytorch_model_fsdp_rank{rank}.bin")
    dist.barrier()


def save_shards_by_hand(rank: int, file: str) -> None:
    """The classic mistake: rank 0 saves its own shards."""
    model = new()
    if rank == 0:
        torch.save(model.state_dict(), file)
    dist.barrier()


def save_parts(rank: int, folder: str, kind: str) -> None:
    """A good checkpoint, to be damaged."""
    model = new()
    optimizer = adamw(model)
    train(model, optimizer, rank, range(1))
    save_checkpoint(folder, model, optimizer, kind=kind)


def save_app(rank: int, folder: str) -> list[str]:
    """The layout of torch's own tutorial: get_state_dict, nested in one folder, with other things beside."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = new()
    optimizer = adamw(model)
    train(model, optimizer, rank, range(2))
    state, moments = get_state_dict(model, optimizer)
    dcp.save({"app": {"model": state, "optim": moments, "epoch": 3}}, checkpoint_id=folder)
    other = new(seed=5)
    again = adamw(other)
    load_checkpoint(folder, other, again)
    return differences(full_new(model, optimizer), full_new(other, again))


def read_by_torch(rank: int, folder: str) -> list[str]:
    """Sharded files load with torch's functions for FSDP2, called as accelerate calls them."""
    from torch.distributed.checkpoint import state_dict as states

    model = new()
    optimizer = adamw(model)
    train(model, optimizer, rank, range(2))
    save_checkpoint(folder, model, optimizer, kind="sharded")
    other = new(seed=5)
    again = adamw(other)
    state = {"model": states.get_model_state_dict(other)}
    dcp.load(state, checkpoint_id=f"{folder}/pytorch_model_fsdp_0")
    states.set_model_state_dict(other, state["model"])
    moments = {"optimizer": states.get_optimizer_state_dict(other, again)}
    dcp.load(moments, checkpoint_id=f"{folder}/optimizer_0")
    states.set_optimizer_state_dict(other, again, moments["optimizer"])
    return differences(full_new(model, optimizer), full_new(other, again))


def interrupted(rank: int, folder: str) -> tuple[str, list[str], list[str]]:
    """A save that fails between the files leaves the older ones, whole, and no rubbish."""
    path = Path(folder)
    model = new()
    optimizer = adamw(model)
    train(model, optimizer, rank, range(1))
    save_checkpoint(path, model, optimizer, kind="full")
    expected = full_new(model, optimizer)
    train(model, optimizer, rank, range(1, 2))
    real, calls = checkpoints.torch.save, []

    def failing(state: Any, file: Any) -> None:
        calls.append(file)
        if len(calls) == 2:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        real(state, file)

    checkpoints.torch.save = failing  # type: ignore[assignment]
    try:
        save_checkpoint(path, model, optimizer, kind="full")
        said = "saved"
    except BadCheckpoint as error:
        said = str(error)
    finally:
        checkpoints.torch.save = real
    other = new(seed=5)
    again = adamw(other)
    load_checkpoint(path, other, again)
    return said, differences(expected, full_new(other, again)), sorted(p.name for p in path.iterdir())


@contextmanager
def _unprivileged() -> Iterator[None]:
    """Root may write everywhere: be nobody for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def save_where_forbidden(rank: int, kind: str) -> str:
    """Into a folder that may be read only; the message, with the folder's name taken out."""
    box = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(box, src=0)
    folder = Path(box[0])
    model = new()
    if rank == 0:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    dist.barrier()
    try:
        with _unprivileged():
            save_checkpoint(folder, model, kind=kind)
        said = "saved"
    except BadCheckpoint as error:
        said = str(error)
    dist.barrier()
    if rank == 0:
        folder.rmdir()  # it is empty: nothing was left in it
    return said.replace(str(folder), "FOLDER")


def save_into(rank: int, target: str, kind: str) -> str:
    del rank
    try:
        save_checkpoint(target, new(), kind=kind)
    except (BadCheckpoint, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


def stale_optimizer(rank: int, folder: str) -> tuple[str, str]:
    """An optimizer of before sharding cannot be saved or loaded."""
    del rank
    plain = model_of(1)
    optimizer = adamw(plain)
    model = apply_config(plain, CONFIG)
    said = []
    for call in (save_checkpoint, load_checkpoint):
        try:
            call(folder, model, optimizer)
        except CannotApply as error:
            said.append(error.findings[0].rule)
    return said[0], said[1]


class Bomb:
    """Unpickled with code allowed, it leaves a folder behind."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (os.mkdir, (self.mark,))


def plant(target: Path, mark: Path, where: str) -> None:
    """Put code into a file, into the metadata of a folder, or into an object that a folder holds."""
    if where == "file":
        torch.save({"tokens.weight": Bomb(str(mark))}, target)
    elif where == "pickle":
        target.write_bytes(pickle.dumps({"tokens.weight": Bomb(str(mark))}))
    elif where == "metadata":
        target.mkdir()
        (target / ".metadata").write_bytes(pickle.dumps(Bomb(str(mark))))
    else:
        dcp.save(
            {"optimizer": {"state": {}, "param_groups": [{"lr": Bomb(str(mark)), "params": []}]}}, checkpoint_id=target
        )
