"""Where values come from: the first rank, files, initialisers. A refusal reaches every rank and changes nothing."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import weight_ranks as ranks
from pool import Pool
from safetensors.torch import save_file

ACCELERATE = """\
distributed_type: FSDP
mixed_precision: 'no'
num_processes: 2
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_auto_wrap_policy: {wrap}
  fsdp_cpu_ram_efficient_loading: {efficient}
  fsdp_sync_module_states: {sync}
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_use_orig_params: true
"""
TRANSFORMER = "TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: Block"


def accelerate_file(folder: Path, *, sync: bool, efficient: bool = False, wrap: str = "NO_WRAP") -> str:
    path = folder / "accelerate.yaml"
    text = ACCELERATE.format(wrap=wrap, sync=str(sync).lower(), efficient=str(efficient).lower())
    path.write_text(text, encoding="utf-8")
    return str(path)


def loaded(results: list[dict[str, Any]], *rules: str) -> None:
    """Every rank holds the expected values and found exactly `rules`."""
    for one in results:
        assert one["errors"] == {}
        assert one["wrong"] == []
        assert set(one["rules"]) == set(rules)


def refused(results: list[dict[str, Any]], rule: str, *words: str) -> None:
    """Every rank raised with `rule` alone, and its model is as it was."""
    for one in results:
        assert set(one["errors"]) == {rule}
        assert one["untouched"]
        for word in words:
            assert word in one["errors"][rule]


# --- the first rank's values


def test_sync_module_states_gives_every_rank_the_first_ones_values(two: Pool, tmp_path: Path) -> None:
    for one in two.run("weight_ranks", "linear_of_rank", accelerate_file(tmp_path, sync=True)):
        assert one["weight"] == [1, 1, 1, 1]
        assert "FM629" not in one["rules"]


@pytest.mark.parametrize("dialect", ["accelerate", "torch"])
def test_without_it_ranks_that_differ_are_told_and_kept(two: Pool, tmp_path: Path, dialect: str) -> None:
    cfg = accelerate_file(tmp_path, sync=False) if dialect == "accelerate" else ranks.WHOLE
    results = two.run("weight_ranks", "linear_of_rank", cfg)
    for rank, one in enumerate(results):
        assert one["own"] == [rank + 1, rank + 1]
        assert "ranks 1 hold other values" in one["rules"]["FM629"]
    assert len(results[0]["said"]) == 1
    assert "FM629" in results[0]["said"][0]
    assert results[1]["said"] == []


def test_both_axes_of_a_mesh_carry_the_first_ranks_values(four: Pool) -> None:
    cfg = {"sharding_strategy": "HYBRID_SHARD", "auto_wrap_policy": None, "sync_module_states": True}
    cfg["device_mesh"] = [2, 2]
    for one in four.run("weight_ranks", "linear_of_rank", cfg):
        assert one["weight"] == [1, 1, 1, 1]


def test_every_buffer_is_broadcast_and_ignored_parameters_are_not(two: Pool) -> None:
    """As FSDP1's _sync_module_params_and_buffers does: all buffers, and the parameters that are not ignored."""
    cfg = {**ranks.WHOLE, "sync_module_states": True, "ignored_modules": ["expert"]}
    for rank, one in enumerate(two.run("weight_ranks", "odd_buffers", cfg)):
        assert len(one["buffers"]) == 12
        assert set(one["buffers"].values()) == {0.0}
        assert one["even"]
        assert one["shared"]
        assert one["inner"] == 0
        assert one["expert"] == 16 * rank
        assert one["rules"] == []


@pytest.mark.parametrize("init", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_on_the_first_rank_and_meta_elsewhere(two: Pool, tmp_path: Path, init: bool, tied: bool) -> None:
    """`init`: FSDP1's usual ``param_init_fn`` on the other ranks, which only allocates."""
    cfg = accelerate_file(tmp_path, sync=True, efficient=True, wrap=TRANSFORMER)
    results = two.run("weight_ranks", "real_on_first_rank", cfg, init, tied)
    for one in results:
        assert one["errors"] == {}
        assert one["wrong"] == []
        assert one["table"] == [0, 1, 2, 3]
        assert one["tied"] is tied


def test_meta_on_other_ranks_is_filled_even_where_nothing_asks_for_a_broadcast(two: Pool) -> None:
    for one in two.run("weight_ranks", "real_on_first_rank", ranks.BLOCKS, False, False):
        assert one["errors"] == {}
        assert one["wrong"] == []


# --- weights=


def _write(folder: Path, form: str, state: dict[str, torch.Tensor]) -> str:
    """`state` in one of the forms in which weights come; what to pass as ``weights``."""
    names = sorted(state)
    if form == "safetensors":
        save_file(state, folder / "weights.safetensors")
        return str(folder / "weights.safetensors")
    if form in ("index", "folder of index"):
        for number, part in enumerate((names[::2], names[1::2])):
            save_file({name: state[name] for name in part}, folder / f"model-{number}.safetensors")
        files = {name: f"model-{position % 2}.safetensors" for position, name in enumerate(names)}
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": files}), encoding="utf-8")
        return str(index if form == "index" else folder)
    if form == "folder":
        save_file(state, folder / "model.safetensors")
        return str(folder)
    if form == "torch index":
        for number, part in enumerate((names[::2], names[1::2])):
            torch.save({name: state[name] for name in part}, folder / f"pytorch_model-{number}.bin")
        files = {name: f"pytorch_model-{position % 2}.bin" for position, name in enumerate(names)}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}), encoding="utf-8")
        return str(folder)
    content: Any = {
        "torch": state,
        "torch of 2019": state,
        "nested": {"epoch": 3, "model": state, "optimizer": {"state": {}}},
        "DDP": {f"module.{name}": one for name, one in state.items()},
        "compiled": {f"_orig_mod.{name}": one for name, one in state.items()},
        "compiled blocks": {name.replace("blocks.0.", "blocks.0._orig_mod."): one for name, one in state.items()},
        "FSDP1": {name.replace("blocks.1.", "blocks.1._fsdp_wrapped_module."): one for name, one in state.items()},
    }[form]
    torch.save(content, folder / "weights.pt", _use_new_zipfile_serialization=form != "torch of 2019")
    return str(folder / "weights.pt")


FORMS = (
    "safetensors",
    "index",
    "folder of index",
    "folder",
    "torch index",
    "torch",
    "torch of 2019",
    "nested",
    "DDP",
    "compiled",
    "compiled blocks",
    "FSDP1",
)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_on_meta_takes_its_values_from(two: Pool, tmp_path: Path, form: str) -> None:
    weights = _write(tmp_path, form, ranks.transformer().state_dict())
    loaded(two.run("weight_ranks", "from_weights", weights))


def test_only_the_first_rank_needs_the_weights(two: Pool, tmp_path: Path) -> None:
    state = ranks.transformer().state_dict()
    loaded(
        two.run(
            "weight_ranks", "from_weights", _write(tmp_path, "safetensors", state), ranks.BLOCKS, True, False, None, 0
        )
    )
    loaded(two.run("weight_ranks", "from_changed_state", "nothing"))
    loaded(two.run("weight_ranks", "from_changed_state", "wrapped"))


def test_a_real_model_takes_weights_too(two: Pool, tmp_path: Path) -> None:
    weights = _write(tmp_path, "safetensors", ranks.transformer().state_dict())
    loaded(two.run("weight_ranks", "from_weights", weights, ranks.BLOCKS, False))


@pytest.mark.parametrize("kept", ["tokens.weight", "head.weight"])
def test_tied_weights_need_one_name_in_the_file(two: Pool, tmp_path: Path, kept: str) -> None:
    state = ranks.transformer(tied=True).state_dict()
    del state["head.weight" if kept == "tokens.weight" else "tokens.weight"]
    results = two.run("weight_ranks", "from_weights", _write(tmp_path, "torch", state), ranks.BLOCKS, True, True)
    loaded(results)
    assert all(one["tied"] for one in results)
    assert {one["parameters"] for one in results} == {len(list(ranks.transformer(tied=True).parameters()))}


def test_a_change_of_dtype_is_told(two: Pool, tmp_path: Path) -> None:
    weights = _write(tmp_path, "safetensors", ranks.transformer().state_dict())
    results = two.run("weight_ranks", "from_weights", weights, ranks.BLOCKS, True, False, torch.bfloat16)
    loaded(results, "FM626")
    assert "float32 to bfloat16" in results[0]["rules"]["FM626"]


def test_a_missing_parameter_on_meta_is_an_error(two: Pool) -> None:
    refused(two.run("weight_ranks", "from_changed_state", "missing"), "FM624", "`blocks.1.up.weight`")


def test_a_missing_parameter_of_a_real_model_stays_as_it_was(two: Pool) -> None:
    results = two.run("weight_ranks", "from_changed_state", "missing", False)
    loaded(results, "FM641")
    assert "`blocks.1.up.weight`" in results[0]["rules"]["FM641"]


def test_what_the_weights_leave_out_is_compared_between_ranks(two: Pool) -> None:
    """A new head, say, that each rank initialised from another seed."""
    for one in two.run("weight_ranks", "from_changed_state", "missing", False, True):
        assert set(one["rules"]) == {"FM641", "FM629"}


def test_an_unexpected_name_is_a_warning(two: Pool) -> None:
    results = two.run("weight_ranks", "from_changed_state", "unexpected")
    loaded(results, "FM625")
    assert "`blocks.7.up.weight`" in results[0]["rules"]["FM625"]


@pytest.mark.parametrize("meta", [True, False])
def test_a_wrong_shape_is_an_error(two: Pool, meta: bool) -> None:
    results = two.run("weight_ranks", "from_changed_state", "shape", meta)
    refused(results, "FM639", "`head.weight` is [24, 16], not [23, 16]")


@pytest.mark.parametrize("change", ["meta", "sparse", "text keys"])
def test_a_state_dict_of_something_else_is_an_error(two: Pool, change: str) -> None:
    refused(two.run("weight_ranks", "from_changed_state", change), "FM635")


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_a_model_may_have_a_child_named_module(two: Pool, prefix: str) -> None:
    """Only what DDP added is taken off."""
    loaded(two.run("weight_ranks", "module_of_that_name", prefix))


class Hostile:
    """Unpickling it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (self.folder,)


def _spoil(folder: Path, what: str) -> Any:
    """Weights that cannot or must not be read."""
    state = ranks.transformer().state_dict()
    inside = folder / "weights"
    inside.mkdir()
    index = inside / "model.safetensors.index.json"
    if what == "nowhere":
        return str(inside / "weights.safetensors")
    if what == "empty folder":
        return str(inside)
    if what in ("garbage.safetensors", "garbage.pt", "garbage.index.json"):
        (inside / what).write_bytes(bytes(range(256)) * 4)
    elif what == "empty.pt":
        (inside / what).write_bytes(b"")
    elif what == "cut.safetensors":
        save_file(state, inside / what)
        (inside / what).write_bytes((inside / what).read_bytes()[:-100])
    elif what == "cut.pt":
        torch.save(state, inside / what)
        (inside / what).write_bytes((inside / what).read_bytes()[:-100])
    elif what == "pickle.pt":
        (inside / what).write_bytes(pickle.dumps({"head.weight": Hostile(folder / "ran")}))
    elif what == "hostile.pt":
        torch.save({**state, "head.weight": Hostile(folder / "ran")}, inside / what)
    elif what == "module.pt":
        torch.save(ranks.transformer(), inside / what)
    elif what == "list.pt":
        torch.save(list(state.values()), inside / what)
    elif what == "unsigned.safetensors":
        save_file({**state, "head.weight": torch.zeros(24, 16, dtype=torch.uint16)}, inside / what)
    elif what == "a number":
        return 7
    else:
        save_file(state, folder / "outside.safetensors")
        target = {
            "outside": "../outside.safetensors",
            "absolute": str(folder / "outside.safetensors"),
            "missing part": "not-here.safetensors",
            "itself": index.name,
            "number": 3,
        }[what]
        index.write_text(json.dumps({"weight_map": dict.fromkeys(state, target)}), encoding="utf-8")
        return str(index)
    return str(inside / what)


SPOILT = (
    "nowhere",
    "empty folder",
    "garbage.safetensors",
    "garbage.pt",
    "garbage.index.json",
    "empty.pt",
    "cut.safetensors",
    "cut.pt",
    "pickle.pt",
    "hostile.pt",
    "module.pt",
    "list.pt",
    "a number",
    "outside",
    "absolute",
    "missing part",
    "itself",
    "number",
)


@pytest.mark.parametrize("meta", [True, False])
@pytest.mark.parametrize("what", SPOILT)
def test_bad_weights_are_an_error_on_every_rank(two: Pool, tmp_path: Path, what: str, meta: bool) -> None:
    refused(two.run("weight_ranks", "from_weights", _spoil(tmp_path, what), ranks.BLOCKS, meta), "FM635")
    assert not (tmp_path / "ran").exists()


def test_a_dtype_of_newer_safetensors_is_read(two: Pool, tmp_path: Path) -> None:
    """Unsigned integers came late to the format; here they are only cast."""
    results = two.run("weight_ranks", "from_weights", _spoil(tmp_path, "unsigned.safetensors"))
    for one in results:
        assert one["errors"] == {}
        assert one["wrong"] == ["head.weight"]
        assert "uint16 to float32" in one["rules"]["FM626"]


def test_weights_on_the_wrong_rank_are_an_error(two: Pool, tmp_path: Path) -> None:
    weights = _write(tmp_path, "safetensors", ranks.transformer().state_dict())
    results = two.run("weight_ranks", "from_weights", weights, ranks.BLOCKS, True, False, None, 1)
    refused(results, "FM635", "another rank than the first")


# --- initialisation


def test_a_buffer_that_nothing_fills_is_an_error(two: Pool) -> None:
    for one in two.run("weight_ranks", "tables", None):
        assert set(one["errors"]) == {"FM623"}
        assert "`table`" in one["errors"]["FM623"]
        assert "`kept`" not in one["errors"]["FM623"]
        assert one["untouched"]


def test_an_initialiser_that_only_allocates_fills_nothing(two: Pool) -> None:
    refused(two.run("weight_ranks", "tables", "allocate"), "FM623", "`table`")


def test_an_initialiser_may_compute_a_buffer(two: Pool) -> None:
    results = two.run("weight_ranks", "tables", "recompute")
    loaded(results)
    for one in results:
        assert one["table"] == [0, 1, 2, 3]
        assert one["kept"] == [0, 1, 2, 3]


@pytest.mark.parametrize("own", [True, False], ids=["param_init_fn", "reset_parameters"])
@pytest.mark.parametrize(("policy", "units"), [("classes", 3), ("size", 7), ("none", 1)])
def test_initial_values_are_those_of_fsdp1_bit_by_bit(two: Pool, policy: str, units: int, own: bool) -> None:
    assert two.run("weight_ranks", "initialised", policy, own) == [([], units)] * 2


def test_ties_survive_materialising(two: Pool) -> None:
    count = len(list(ranks.Transformer(layers=1, dim=16, vocab=24, tied=True).parameters()))
    assert two.run("weight_ranks", "tied_on_meta") == [(True, count, False)] * 2


def test_ignored_modules_on_meta_get_the_same_values_everywhere(two: Pool) -> None:
    first, second = two.run("weight_ranks", "ignored_on_meta")
    assert first["plain"]
    assert not first["meta"]
    assert first["values"] == second["values"]


@pytest.mark.parametrize(("init", "name"), [(None, "`gain`"), ("forgetful", "`gain`")])
def test_a_parameter_without_a_value_is_an_error(two: Pool, init: str | None, name: str) -> None:
    for one in two.run("weight_ranks", "without_value", init):
        assert set(one["errors"]) == {"FM624"}
        assert name in one["errors"]["FM624"]
        assert one["untouched"] or "build the model anew" in one["text"]


# --- memory


@pytest.mark.parametrize("source", ["initialise", "state", "file", "first rank"])
def test_the_receiving_rank_holds_its_shards_and_one_unit(two: Pool, tmp_path: Path, source: str) -> None:
    from models import Transformer

    torch.manual_seed(2)
    path = tmp_path / "model.safetensors"
    save_file(Transformer(layers=4, dim=64, vocab=64, scale=False).state_dict(), path)
    held = two.run("weight_ranks", "memory", source, str(path))[1]
    slack = 1024
    assert held["wrong"] == 0
    assert held["left"] <= held["sharded"] + slack
    assert held["unit"] <= held["peak"] <= held["sharded"] + held["unit"] + slack
    # the bound says something: whole weights would be above it
    assert held["full"] > held["sharded"] + held["unit"] + slack
