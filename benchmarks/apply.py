"""Steps, sharding, memory and collectives of `apply_config` against the ways to shard by hand, in one run.

    python benchmarks/apply.py [--repeats N] [--steps N]

One transformer is sharded by each contender in fresh processes: two gloo ranks on CPUs, or up to two
GPUs where there are any (one is enough). The contenders take turns; printed are medians, with the
smallest and the largest of the repeats. Ratios are against the hand-written loop of `fully_shard`.

The exit code is 1 if `apply_config` issues other collectives than the hand-written loop, in number or
bytes, or computes another loss. The second table is about memory while rank 0 reads the weights from a
file and the model of every rank starts on the meta device.

Memory is that of the last rank: on CPUs its resident set at the highest, above what it was with all
imports done and one small model sharded; on GPUs what torch's allocator counted. Where weights are
loaded, freed memory goes back to the system at once (MALLOC_MMAP_THRESHOLD_): only then does the
resident set say what is in use.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MIB = 2**20
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
WORLD = min(2, torch.cuda.device_count()) if GPU else 2
LARGE = {"layers": 12, "dim": 1024, "vocab": 16384} if GPU else {"layers": 8, "dim": 384, "vocab": 4096}
STEPPED = LARGE if GPU else {"layers": 6, "dim": 256, "vocab": 1024}
BATCH, LENGTH = (8, 512) if GPU else (2, 32)
CONFIG = {
    "sharding_strategy": "FULL_SHARD",
    "auto_wrap_policy": {"transformer_layer_cls": ["Block"]},
    "mixed_precision": {"param_dtype": "torch.bfloat16", "reduce_dtype": "torch.float32"} if GPU else None,
}


class Block(nn.Module):
    """Attention and MLP."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, d // 64, 64).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, layers: int, dim: int, vocab: int) -> None:
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(vocab, dim), nn.ModuleList(Block(dim) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(sizes: dict[str, int], device: str = "cpu") -> Model:
    torch.manual_seed(0)
    with torch.device(device):
        return Model(**sizes)


def small(sizes: dict[str, int]) -> dict[str, int]:
    """The same with one block: to have everything imported and connected before something is measured."""
    return {**sizes, "layers": 1}


# --- contenders


def by_tool(model: nn.Module, **options: Any) -> nn.Module:
    from fsdp_migrate import apply_config

    extra = {name: options.pop(name) for name in ("cpu_offload",) if name in options}
    return apply_config(model, {**CONFIG, **extra}, **options)


def by_hand(model: nn.Module, offload: bool = False) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    precision: dict[str, Any] = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if GPU else {}
    common = {
        "mesh": init_device_mesh(DEVICE.type, (dist.get_world_size(),), mesh_dim_names=("shard",)),
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
    }
    for block in model.blocks:
        policy = MixedPrecisionPolicy(**precision, cast_forward_inputs=False)
        fully_shard(block, reshard_after_forward=True, mp_policy=policy, **common)
    return fully_shard(model, mp_policy=MixedPrecisionPolicy(**precision), **common)


def by_fsdp1(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if GPU else None
    where = torch.device("cuda", torch.cuda.current_device()) if GPU else DEVICE
    return FullyShardedDataParallel(
        model, auto_wrap_policy=policy, mixed_precision=precision, device_id=where, use_orig_params=True
    )


def by_accelerate(model: nn.Module) -> nn.Module:
    """accelerate's own function, called as its `prepare` does; an `Accelerator` refuses FSDP on CPUs."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
        cpu_offload=False,
    )
    if GPU:
        plugin.set_mixed_precision("bf16")
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision="bf16" if GPU else "no",
        is_main_process=dist.get_rank() == 0,
        device=DEVICE,
    )
    return fsdp2_prepare_model(accelerator, model)


def load_by_hand(sizes: dict[str, int], path: str) -> nn.Module:
    """Shard on meta, allocate, and let torch broadcast what rank 0 read."""
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    model = by_hand(build(sizes, "meta")).to_empty(device=DEVICE)
    state = load_file(path) if dist.get_rank() == 0 else {}
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return model


STEPPING: dict[str, Callable[[nn.Module], nn.Module]] = {
    "`fully_shard` by hand": by_hand,
    "`apply_config`": by_tool,
    "FSDP1": by_fsdp1,
    "accelerate, FSDP2": by_accelerate,
}
if GPU:
    STEPPING["`fully_shard` by hand, CPU offload"] = functools.partial(by_hand, offload=True)
    STEPPING["`apply_config`, CPU offload"] = functools.partial(by_tool, cpu_offload=True)
LOADING: dict[str, Callable[[dict[str, int], str], nn.Module]] = {
    "`set_model_state_dict` by hand": load_by_hand,
    "`apply_config(weights=...)`": lambda sizes, path: by_tool(build(sizes, "meta"), weights=path),
}
GATES = [("`fully_shard` by hand", "`apply_config`")]
if GPU:
    GATES.append(("`fully_shard` by hand, CPU offload", "`apply_config`, CPU offload"))


# --- measuring, on a rank


class Collectives(TorchDispatchMode):
    """Calls of c10d by kind, and bytes of the larger side of each."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("c10d.").lstrip("_")
        kind = next((one for one in ("allgather", "reduce_scatter", "allreduce") if name.startswith(one)), None)
        if str(func).startswith("c10d.") and kind:
            sides = [sum(one.nbytes for one in tree_leaves(side) if isinstance(one, torch.Tensor)) for side in args[:2]]
            self.counts[kind] += 1
            self.bytes += max(sides)
        return func(*args, **(kwargs or {}))


class Peak:
    """The most memory in use since it was made, above what was in use then, in bytes."""

    def __init__(self) -> None:
        gc.collect()
        if GPU:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.start = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: the mark starts anew
            self.start = self._status("VmRSS")

    def read(self) -> int:
        return (torch.cuda.max_memory_allocated() if GPU else self._status("VmHWM")) - self.start

    @staticmethod
    def _status(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def settle() -> float:
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def stepping(name: str, steps: int) -> dict[str, Any]:
    shard = STEPPING[name]
    _one_step(shard(build(small(STEPPED))), 0)
    peak = Peak()
    model = build(STEPPED)
    dist.barrier()
    start = settle()
    model = shard(model)
    sharding = settle() - start
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses: list[float] = []
    seconds = []
    for number in range(steps + 2):
        dist.barrier()
        start = settle()
        losses.append(_one_step(model, number))
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(settle() - start)
    most = peak.read()
    with Collectives() as seen:
        _one_step(model, 0)
    return {
        "step": statistics.median(seconds[2:]),
        "shard": sharding,
        "peak": most,
        "collectives": [seen.counts["allgather"], seen.counts["reduce_scatter"], seen.counts["allreduce"], seen.bytes],
        "loss": losses[-1],
    }


def _one_step(model: nn.Module, number: int) -> float:
    generator = torch.Generator().manual_seed(1000 * number + dist.get_rank())
    ids = torch.randint(STEPPED["vocab"], (BATCH, LENGTH), generator=generator).to(DEVICE)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    return loss.item()


def loading(name: str, files: dict[str, str]) -> dict[str, Any]:
    load = LOADING[name]
    load(small(LARGE), files["small"])
    peak = Peak()
    start = settle()
    model = load(LARGE, files["large"])
    sharded = sum(one._local_tensor.nbytes for one in model.parameters())
    return {"seconds": settle() - start, "peak": peak.read(), "sharded": sharded}


def on_rank(task: dict[str, Any], rank: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    if GPU:
        torch.cuda.set_device(rank)
    backend = "cpu:gloo,cuda:nccl" if GPU else "gloo"
    dist.init_process_group(backend, init_method=f"file://{task['meeting']}", rank=rank, world_size=WORLD)
    done = stepping(task["name"], task["steps"]) if task["kind"] == "step" else loading(task["name"], task["files"])
    dist.barrier()
    dist.destroy_process_group()
    return done


# --- the run


def measure(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the last rank of fresh processes measured."""
    with tempfile.TemporaryDirectory(dir=folder) as meeting:
        text = json.dumps({**task, "meeting": f"{meeting}/point"})
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if task["kind"] == "load":
            environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
        commands = [[sys.executable, __file__, "--rank", str(rank), "--task", text] for rank in range(WORLD)]
        ranks = [
            subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
            for one in commands
        ]
        said = [one.communicate(timeout=600) for one in ranks]
    # gloo sometimes aborts when the interpreter goes, after all work is done: what was printed is what counts
    failed = [error for (out, error), one in zip(said, ranks, strict=True) if one.returncode and not out.strip()]
    if failed:
        sys.exit(f"failed: {task['name']}\n{failed[0]}")
    return json.loads(said[-1][0].splitlines()[-1])


def spread(values: list[float], unit: float, digits: int = 0) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle * unit:.{digits}f} ({low * unit:.{digits}f} to {high * unit:.{digits}f})"


def step_table(found: dict[str, list[dict[str, Any]]]) -> None:
    base = {key: statistics.median(one[key] for one in found["`fully_shard` by hand"]) for key in ("step", "shard")}
    print("| | step, ms | ratio | sharding, ms | ratio | peak, MiB | collectives a step | MiB a step |")
    print("|---|---:|---:|---:|---:|---:|---|---:|")
    for name, runs in found.items():
        gathers, scatters, reduces, volume = runs[0]["collectives"]
        cells = [name]
        for key in ("step", "shard"):
            values = [one[key] for one in runs]
            cells += [spread(values, 1e3), f"{statistics.median(values) / base[key]:.2f}"]
        cells.append(spread([one["peak"] for one in runs], 1 / MIB))
        cells += [f"{gathers} AG, {scatters} RS, {reduces} AR", f"{volume / MIB:.1f}"]
        print(f"| {' | '.join(cells)} |")


def load_table(found: dict[str, list[dict[str, Any]]], unit: int) -> None:
    print("| | seconds | peak, MiB | shards + largest unit, MiB |")
    print("|---|---:|---:|---:|")
    for name, runs in found.items():
        bound = f"{runs[0]['sharded'] / MIB:.1f} + {unit / MIB:.1f} = {(runs[0]['sharded'] + unit) / MIB:.1f}"
        times, peaks = [one["seconds"] for one in runs], [one["peak"] for one in runs]
        print(f"| {name} | {spread(times, 1, 2)} | {spread(peaks, 1 / MIB, 1)} | {bound} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        print(json.dumps(on_rank(json.loads(options.task), options.rank)))
        return
    from safetensors.torch import save_file

    steps: dict[str, list[dict[str, Any]]] = {name: [] for name in STEPPING}
    loads: dict[str, list[dict[str, Any]]] = {name: [] for name in LOADING}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {"small": str(folder / "small.safetensors"), "large": str(folder / "large.safetensors")}
        model = build(LARGE)
        save_file(model.state_dict(), files["large"])
        save_file(build(small(LARGE)).state_dict(), files["small"])
        for _ in range(options.repeats):
            for one in STEPPING:
                steps[one].append(measure({"kind": "step", "name": one, "steps": options.steps}, folder))
            for one in LOADING:
                loads[one].append(measure({"kind": "load", "name": one, "files": files}, folder))
    blocks = sum(one.numel() for one in model.blocks[0].parameters())
    total, stepped = (sum(one.numel() for one in every.parameters()) for every in (model, build(STEPPED)))
    unit = 4 * max(blocks, total - blocks * len(model.blocks))
    where = torch.cuda.get_device_name() if GPU else "CPU"
    print(f"{WORLD} rank{'s' if WORLD > 1 else ''}, {where}, torch {torch.__version__}\n")
    print(f"Steps of a model of {stepped / 1e6:.1f} M parameters:\n")
    step_table(steps)
    print(f"\nWeights of {total / 1e6:.1f} M parameters from a file:\n")
    load_table(loads, unit)
    for hand, tool in GATES:
        for key in ("collectives", "loss"):
            seen = {json.dumps(one[key]) for runs in (steps[hand], steps[tool]) for one in runs}
            if len(seen) > 1:
                sys.exit(f"\n{tool} and {hand} differ in {key}: {', '.join(sorted(seen))}")


if __name__ == "__main__":
    main()
