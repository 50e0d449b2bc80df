"""Model families as `transformers` and `peft` build them: sharded training is the plain model's training.

Differences to the reference: none at all, bit for bit, where both compute the same sums in the same order.
On two ranks the mean of two gradients has only one order, and division by two is exact, so that is the
rule. The tolerance allows for what may differ elsewhere: T5 adds up three gradients of its shared embedding
(measured 2.4e-7 in parameters, 4.8e-7 in losses), and another build of torch may choose other kernels. A few
units in the last place of numbers below eight are 1e-6; a gradient that is missing, doubled, or of the wrong
rank shows in the third digit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from family_ranks import FAMILIES, Compared, Precision
from fsdp_migrate import Fsdp2Config
from fsdp_migrate.config.fsdp2 import Wrap
from pool import Pool

TOLERANCE = 1e-6


def _named(*classes: str, **more: Any) -> dict[str, Any]:
    return {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": {"transformer_layer_cls": list(classes)}, **more}


# what accelerate's questionnaire writes, and no class: the model's own list counts
OWN_CLASSES = {
    "distributed_type": "FSDP",
    "fsdp_config": {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_use_orig_params": True,
    },
    "mixed_precision": "no",
    "num_machines": 1,
    "num_processes": 8,
}


def _same(result: Compared, name: str) -> None:
    assert result.loss <= TOLERANCE
    assert result.parameters <= TOLERANCE
    assert result.tied[0] == result.tied[1]
    assert not result.problems
    # the comparison means something: every parameter has been trained by far more than the tolerance
    idle = [one for one in result.moved if one.endswith(FAMILIES[name].idle or ("(none)",))]
    assert len(idle) == len(result.blocks) * len(FAMILIES[name].idle)
    still = [one for one, change in result.moved.items() if change < 10 * TOLERANCE and one not in idle]
    assert not still


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_named_by_the_user(two: Pool, name: str) -> None:
    for result in two.run("family_ranks", "compare", name, _named(FAMILIES[name].block)):
        _same(result, name)
        assert result.units == result.blocks


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_from_the_models_own_list(two: Pool, name: str) -> None:
    more = {"vit": {"vit.embeddings"}}  # its list names the embeddings too
    for result in two.run("family_ranks", "compare", name, OWN_CLASSES):
        _same(result, name)
        assert set(result.units) == set(result.blocks) | more.get(name, set())


def test_blocks_from_the_models_own_list_without_a_file(two: Pool) -> None:
    for result in two.run("family_ranks", "compare", "llama", Fsdp2Config(wrap=Wrap("classes"))):
        _same(result, "llama")
        assert result.units == result.blocks


def test_an_embeddings_class_in_the_list_leaves_a_tied_decoder_tied(two: Pool) -> None:
    """BERT ties the word embeddings to the decoder, and the decoder's bias to the module around it: no unit can
    hold one tie without cutting the other, so both go to the root."""
    for result in two.run("family_ranks", "compare", "bert", _named("BertLayer"), ("BertEmbeddings", "BertLayer")):
        _same(result, "bert")
    for result in two.run("family_ranks", "compare", "bert", OWN_CLASSES, ("BertEmbeddings", "BertLayer")):
        _same(result, "bert")
        assert result.units == result.blocks
        assert len(result.tied[1]) == 2


def test_experts_as_units_inside_their_blocks(two: Pool) -> None:
    for result in two.run("family_ranks", "compare", "mixtral", _named("MixtralDecoderLayer", "MixtralExperts")):
        _same(result, "mixtral")
        assert set(result.units) == {*result.blocks, *(f"{path}.mlp.experts" for path in result.blocks)}


@pytest.mark.parametrize("name", ["llama", "lora_dropout", "t5"])
def test_activation_checkpointing_repeats_dropout(two: Pool, name: str) -> None:
    config = _named(FAMILIES[name].block, activation_checkpointing=True)
    for result in two.run("family_ranks", "compare", name, config):
        _same(result, name)
        assert result.calls == 2


@pytest.mark.parametrize("threshold", [100, 300, 700, 1200])
def test_size_based_policy_makes_the_units_of_fsdp1(two: Pool, threshold: int) -> None:
    policy = {"policy": "size_based_auto_wrap_policy", "min_num_params": threshold}
    config = {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": policy}
    expected = two.run("family_ranks", "units_of_fsdp1", threshold)
    for result, units in zip(two.run("family_ranks", "compare", "llama", config), expected, strict=True):
        _same(result, "llama")
        assert set(result.units) == set(units)


def test_bf16_with_fp32_reduction_trains_in_the_right_dtypes(two: Pool) -> None:
    precision = {"param_dtype": "torch.bfloat16", "reduce_dtype": "torch.float32"}
    results: list[Precision] = two.run("family_ranks", "bf16", _named("LlamaDecoderLayer", mixed_precision=precision))
    for result in results:
        assert all(late < early for early, late in zip(result.losses, result.losses[1:], strict=False))
        assert result.dtypes == {
            "weights in forward": {torch.bfloat16},
            "activations": {torch.bfloat16},
            "gradients": {torch.float32},
            "states": {torch.float32},
            "parameters": {torch.float32},
        }
        assert not result.problems
        # blocks are gathered twice, the root once, at two bytes; gradients are reduced at four
        assert result.bytes["all_gathers"] == 2 * (result.numel["all"] + result.numel["blocks"])
        assert result.bytes["reduce_scatters"] == 4 * result.numel["all"]


def test_from_the_meta_device_with_weights(two: Pool, tmp_path: Path) -> None:
    weights = str(tmp_path / "model.safetensors")
    two.run("family_ranks", "save_llama", weights)
    for result in two.run("family_ranks", "from_meta", OWN_CLASSES, weights):
        _same(result, "llama")
        assert result.units == result.blocks
    for error in two.run("family_ranks", "from_meta_without_init", OWN_CLASSES, weights):
        assert "rotary_emb.inv_freq" in error


def test_generate_gathers_parameters(two: Pool) -> None:
    results = two.run("family_ranks", "generate", _named("LlamaDecoderLayer"))
    for expected, found in results:
        assert found == expected
    assert results[0] != results[1]
