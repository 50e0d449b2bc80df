"""Checkpoints: FSDP1's load bit by bit and the run goes on as if nothing had happened; what is none is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoint_ranks
import pytest
import torch
from checkpoint_ranks import CONFIG, model_of
from pool import Pool

RANKS = "checkpoint_ranks"
KINDS = ("full", "sharded")


def _same(results: list[Any]) -> Any:
    """What every rank says, which must be one thing."""
    assert all(one == results[0] for one in results), results
    return results[0]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("full", {}),
        ("full", {"orig": False}),
        ("full", {"tied": True}),
        ("sharded", {}),
        ("sharded", {"orig": False}),
        ("sharded", {"mesh": True}),  # written as DTensor, not ShardedTensor
        ("sharded", {"tied": True, "orig": False}),
    ],
    ids=str,
)
def test_what_fsdp1_saved_goes_on_in_fsdp2(two: Pool, tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    for differ, uninterrupted, losses in two.run(RANKS, "from_fsdp1", str(tmp_path), kind, options):
        assert differ == []
        assert losses == uninterrupted
        assert len(set(losses)) == 3
    if kind == "full":  # what only flat units do, and what makes their counters run away
        assert (checkpoint_ranks.shared_steps(tmp_path) > 20) == (not options.get("orig", True))


def test_hybrid_sharding(four: Pool, tmp_path: Path) -> None:
    for differ, uninterrupted, losses in four.run(RANKS, "from_fsdp1", str(tmp_path), "sharded", {"hybrid": True}):
        assert differ == []
        assert losses == uninterrupted


def test_saved_by_two_ranks_loaded_by_four(two: Pool, four: Pool, tmp_path: Path) -> None:
    two.run(RANKS, "from_fsdp1", str(tmp_path), "sharded", {"orig": False})
    for differ, losses in four.run(RANKS, "into_fsdp2", str(tmp_path), {}):
        assert differ == []
        assert len(losses) == 3


NAMES = {
    "full": ["optimizer.bin", "pytorch_model_fsdp.bin"],
    "sharded": ["optimizer_0", "pytorch_model_fsdp_0"],
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_under_the_names_of_accelerate(two: Pool, tmp_path: Path, kind: str, tied: bool) -> None:
    for differ, uninterrupted, losses, names in two.run(RANKS, "round_trip", str(tmp_path), kind, CONFIG, tied):
        assert differ == []
        assert losses == uninterrupted
        assert names == NAMES[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_the_config_says_which_kind(two: Pool, tmp_path: Path, kind: str) -> None:
    config = {
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 1,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": "Block",
            "fsdp_state_dict_type": f"{kind.upper()}_STATE_DICT",
        },
    }
    results = two.run(RANKS, "round_trip", str(tmp_path), None, config, False)
    assert [(differ, names) for differ, _, _, names in results] == [([], NAMES[kind])] * 2


@pytest.mark.parametrize(("kind", "orig"), [("full", True), ("full", False), ("sharded", True)])
def test_back_to_fsdp1(two: Pool, tmp_path: Path, kind: str, orig: bool) -> None:
    for differ, uninterrupted, losses in two.run(RANKS, "into_fsdp1", str(tmp_path), kind, orig):
        assert differ == []
        assert losses == uninterrupted


def test_full_files_are_plain_torch(two: Pool, tmp_path: Path) -> None:
    """One process, torch alone: weights, moments and counters go into a plain model and its optimizer."""
    from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

    two.run(RANKS, "save_parts", str(tmp_path), "full")
    model = model_of(9)
    state = torch.load(tmp_path / "pytorch_model_fsdp.bin", weights_only=True)
    model.load_state_dict(state)
    assert {type(one) for one in state.values()} == {torch.Tensor}
    optimizer = checkpoint_ranks.adamw(model)
    moments = torch.load(tmp_path / "optimizer.bin", weights_only=True)
    set_optimizer_state_dict(model, optimizer, moments)
    for name, one in model.named_parameters():
        assert torch.equal(optimizer.state[one]["exp_avg_sq"], moments["state"][name]["exp_avg_sq"])
        assert optimizer.state[one]["step"].item() == 1
    checkpoint_ranks.train(model, optimizer, 0, range(1))


def test_full_files_hold_nothing_but_the_tensors(two: Pool, tmp_path: Path) -> None:
    """Views into larger storages would be written with all of those."""
    two.run(RANKS, "save_parts", str(tmp_path), "full")
    size = sum(one.numel() * one.element_size() for one in model_of(1).parameters())
    assert size < (tmp_path / "pytorch_model_fsdp.bin").stat().st_size < size + 60_000


@pytest.mark.parametrize("kind", KINDS)
def test_saving_before_the_first_step_changes_nothing(two: Pool, tmp_path: Path, kind: str) -> None:
    for made, losses, reference in two.run(RANKS, "save_untrained", str(tmp_path), kind):
        assert made == 0
        assert losses == reference


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_do_not_keep_the_state_out(two: Pool, tmp_path: Path, kind: str) -> None:
    assert _same(two.run(RANKS, "with_gradients", str(tmp_path), kind)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_after_an_evaluation(two: Pool, tmp_path: Path, kind: str) -> None:
    assert _same(two.run(RANKS, "after_evaluation", str(tmp_path), kind)) == ([], True)


@pytest.mark.parametrize("kind", KINDS)
def test_param_groups(two: Pool, tmp_path: Path, kind: str) -> None:
    differ, decays, said = _same(two.run(RANKS, "two_groups", str(tmp_path), kind))
    assert (differ, decays) == ([], [0.1, 0.0])
    assert "1 made of several param groups: `group 0`" in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_without_state(two: Pool, tmp_path: Path, kind: str) -> None:
    parameters = len(list(model_of(1).parameters()))
    assert _same(two.run(RANKS, "unused_parameter", str(tmp_path), kind)) == ([], parameters - 1)


def test_the_layout_of_torchs_tutorial(two: Pool, tmp_path: Path) -> None:
    assert _same(two.run(RANKS, "save_app", str(tmp_path))) == []


def test_torch_reads_sharded_files(two: Pool, tmp_path: Path) -> None:
    assert _same(two.run(RANKS, "read_by_torch", str(tmp_path))) == []


def test_full_files_need_to_lie_on_rank_0_alone(two: Pool, tmp_path: Path) -> None:
    assert _same(two.run(RANKS, "loads_seen_by_rank_0", str(tmp_path / "it"))) is True


# what is refused, on every rank with the same words


def _refused(pool: Pool, source: Path, *more: Any) -> str:
    said = _same(pool.run(RANKS, "refused", str(source), *more))
    assert said.count("\n") == 0
    assert str(source) in said
    return said


@pytest.mark.parametrize("orig", [True, False])
@pytest.mark.parametrize("how", ["files", "dcp"])
def test_local_state_dict_is_refused(two: Pool, tmp_path: Path, how: str, orig: bool) -> None:
    two.run(RANKS, "save_local", str(tmp_path), how, orig)
    advice = "load it with FSDP1 once and save it as FULL_STATE_DICT"
    sources = [tmp_path] if how == "dcp" else [tmp_path, tmp_path / "pytorch_model_fsdp_rank0.bin"]
    for source in sources:
        said = _refused(two, source)
        assert "FSDP1's LOCAL_STATE_DICT" in said
        assert advice in said


def test_shards_of_one_rank_are_refused(two: Pool, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    two.run(RANKS, "save_shards_by_hand", str(file))
    assert "shards of one rank" in _refused(two, file)


def test_optimizer_keyed_by_numbers_is_refused(two: Pool, tmp_path: Path) -> None:
    model = model_of(1)
    optimizer = checkpoint_ranks.adamw(model)
    checkpoint_ranks.train(model, optimizer, 0, range(1))
    file = tmp_path / "both.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    assert "keyed by parameter numbers" in _refused(two, file, True)
    assert "OptimStateKeyType.PARAM_NAME" in _refused(two, file, True)


@pytest.mark.parametrize("optimizer", [False, True])
def test_nothing_there(two: Pool, tmp_path: Path, optimizer: bool) -> None:
    assert "no such file or folder" in _refused(two, tmp_path / "none", optimizer)
    said = _refused(two, tmp_path, optimizer)
    assert "no model in it; expected pytorch_model_fsdp_0/ (sharded) or pytorch_model_fsdp.bin (full)" in said


def test_errors_of_one_rank_reach_all(two: Pool, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    file.write_bytes(b"rubbish")
    assert "is no torch file" in _same(two.run(RANKS, "refused_on_one_rank", str(file)))


@pytest.mark.parametrize("content", [b"", b"rubbish" * 99, b"PK\x03\x04" + b"\0" * 99, b"\x80\x04."])
def test_rubbish(two: Pool, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.pt"
    file.write_bytes(content)
    assert "is no torch file" in _refused(two, file)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".metadata").write_bytes(content)
    assert "is no metadata of torch.distributed.checkpoint" in _refused(two, folder)


@pytest.mark.parametrize("where", ["file", "pickle", "metadata", "object"])
def test_code_never_runs(two: Pool, tmp_path: Path, where: str) -> None:
    mark, target = tmp_path / "mark", tmp_path / "planted"
    checkpoint_ranks.plant(target, mark, where)
    assert len(_refused(two, target, where == "object")) < 600
    assert not mark.exists()


def test_the_plants_are_live(tmp_path: Path) -> None:
    """Read without restraint, each leaves its mark: the test above is one."""
    import pickle

    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    for where in ("file", "pickle", "metadata", "object"):
        mark, target = tmp_path / f"mark-{where}", tmp_path / where
        checkpoint_ranks.plant(target, mark, where)
        if where == "file":
            torch.load(target, weights_only=False)
        elif where == "object":
            dcp_to_torch_save(target, tmp_path / "out.pt")
        else:
            pickle.loads((target if where == "pickle" else target / ".metadata").read_bytes())
        assert mark.exists(), where


def _damaged(kind: str, folder: Path, change: Any) -> Path:
    """The model of a good checkpoint, changed by name, saved again the same way."""
    import torch.distributed.checkpoint as dcp

    state = model_of(1).state_dict()
    change(state)
    folder.mkdir()
    if kind == "full":
        torch.save(state, folder / "pytorch_model_fsdp.bin")
    else:
        dcp.save({"model": state}, checkpoint_id=folder / "pytorch_model_fsdp_0")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_does_not_fit(two: Pool, tmp_path: Path, kind: str) -> None:
    def less(state: Any) -> None:
        del state["blocks.1.up.weight"]

    def more(state: Any) -> None:
        state["blocks.2.up.weight"] = torch.zeros(3)

    def other(state: Any) -> None:
        state["head.weight"] = torch.zeros(38, 16)

    wrong = {
        "1 missing: `blocks.1.up.weight`": less,
        "1 not in the model: `blocks.2.up.weight`": more,
        "1 of another shape: `head.weight [38, 16] where the model has [37, 16]`": other,
    }
    for number, (words, change) in enumerate(wrong.items()):
        assert words in _refused(two, _damaged(kind, tmp_path / str(number), change))


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_of_another_class(two: Pool, tmp_path: Path, kind: str) -> None:
    two.run(RANKS, "save_parts", str(tmp_path), kind)
    said = _refused(two, tmp_path, True, True)
    assert "saved by another optimizer than SGD: it has" in said


def test_a_wrong_moment(two: Pool, tmp_path: Path) -> None:
    two.run(RANKS, "save_parts", str(tmp_path), "full")
    moments = torch.load(tmp_path / "optimizer.bin", weights_only=True)
    moments["state"]["norm.weight"]["exp_avg"] = torch.zeros(5)
    torch.save(moments, tmp_path / "optimizer.bin")
    assert "`norm.weight.exp_avg [5] where the parameter has [16]`" in _refused(two, tmp_path, True)


def test_parts_that_are_missing(two: Pool, tmp_path: Path) -> None:
    two.run(RANKS, "save_parts", str(tmp_path), "full")
    assert "holds no optimizer" in _refused(two, tmp_path / "pytorch_model_fsdp.bin", True)
    assert "holds an optimizer, no model" in _refused(two, tmp_path / "optimizer.bin")
    (tmp_path / "optimizer.bin").unlink()
    assert "no optimizer in it" in _refused(two, tmp_path, True)


def test_both_kinds_in_one_folder_are_ambiguous(two: Pool, tmp_path: Path) -> None:
    for kind in KINDS:
        two.run(RANKS, "save_parts", str(tmp_path), kind)
    assert "holds the model twice" in _refused(two, tmp_path)


def test_a_sharded_checkpoint_that_lost_a_file(two: Pool, tmp_path: Path) -> None:
    """One rank's reading fails; all of them say so."""
    two.run(RANKS, "save_parts", str(tmp_path), "sharded")
    (tmp_path / "pytorch_model_fsdp_0" / "__1_0.distcp").unlink()
    said = _same(two.run(RANKS, "refused_half_way", str(tmp_path)))
    assert "may be half loaded: FileNotFoundError" in said
    (tmp_path / "pytorch_model_fsdp_0" / ".metadata").unlink()
    assert "its saving was interrupted" in _refused(two, tmp_path / "pytorch_model_fsdp_0" / "..")


# writing


def test_a_save_that_fails_leaves_the_older_files(two: Pool, tmp_path: Path) -> None:
    said, differ, names = _same(two.run(RANKS, "interrupted", str(tmp_path)))
    assert "cannot be written: OSError: [Errno 28] No space left on device" in said
    assert differ == []
    assert names == NAMES["full"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_may_not_be_written(two: Pool, kind: str) -> None:
    said = _same(two.run(RANKS, "save_where_forbidden", kind))
    assert said.startswith("FOLDER")
    assert "cannot be written: PermissionError: [Errno 13] Permission denied" in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_in_the_way(two: Pool, tmp_path: Path, kind: str) -> None:
    (tmp_path / "taken").touch()
    said = _same(two.run(RANKS, "save_into", str(tmp_path / "taken"), kind))
    assert said.startswith(f"BadCheckpoint: {tmp_path / 'taken'}: cannot be written: FileExistsError")


def test_another_kind(two: Pool, tmp_path: Path) -> None:
    said = _same(two.run(RANKS, "save_into", str(tmp_path), "local"))
    assert said == "ValueError: kind is 'local'; it can be 'full' or 'sharded'"


def test_an_optimizer_of_before_sharding(two: Pool, tmp_path: Path) -> None:
    assert _same(two.run(RANKS, "stale_optimizer", str(tmp_path))) == ("FM620", "FM620")
