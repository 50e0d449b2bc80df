"""What lint asks of a file beyond what convert had to know: traps that show in the file alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..choices import Choices
from ..config.fsdp2 import Fsdp2Config
from ..config.origin import Origin
from ..dialects.declaration import Declaration
from ..effective import Effective, Engine
from ..releases import holds
from ..report.model import FileReport
from ..rules import Note
from ..text.document import Document


@dataclass(frozen=True)
class Case:
    """One active block: its file, what it asks of FSDP2, what ran with origins, and where it stands."""

    source: Document
    config: Fsdp2Config
    ran: Effective
    at: Origin

    def place(self, field: str) -> Origin:
        """Where the file writes `field`, else the block."""
        source = self.ran.values.get(field)
        return source.origin if source is not None and source.written else self.at

    def text(self, *path: str) -> str:
        """The scalar that the file writes at `path`, empty where there is none."""
        node = self.source.find(path)
        return node.text if node is not None and node.shape == "scalar" else ""


def _size_based(case: Case) -> Iterator[Note]:
    if case.config.wrap.policy == "size":
        yield Note("FM503", case.place("auto_wrap_policy"))


def _offload_with_rank0_loading(case: Case) -> Iterator[Note]:
    if case.config.offload.params and case.config.loading.rank0_only:
        yield Note("FM504", case.place("cpu_offload"))


def _state_dict_left_to_the_release(case: Case) -> Iterator[Note]:
    source = case.ran.values.get("state_dict_type")
    if source is not None and not source.written:
        yield Note("FM505", case.at)


def _checkpointing_draws_again(case: Case) -> Iterator[Note]:
    if case.config.checkpointing.enabled:
        yield Note("FM506", case.place("activation_checkpointing"))


def _strategy_as_number(case: Case) -> Iterator[Note]:
    source = case.ran.values["sharding_strategy"]
    number = case.text(*source.origin.key.split("."))
    if source.written and number.isdigit():
        yield Note("FM507", source.origin, {"value": f"`{number}`", "name": source.value.name})


def _rank0_loading_with_torchao(case: Case) -> Iterator[Note]:
    backend = case.text("fp8_config", "backend") or case.text("fp8_config", "fp8_backend")
    if case.config.loading.rank0_only and backend == "AO" and case.text("mixed_precision").lower() == "fp8":
        yield Note("FM508", case.place("rank0_loading"))


def _full_state_dict_too_early(case: Case) -> Iterator[Note]:
    if case.config.state_dict_type == "full":
        yield Note("FM509", case.place("state_dict_type"))


def _checkpointing_in_two_places(case: Case) -> Iterator[Note]:
    if case.config.checkpointing.enabled and _on(case.text("gradient_checkpointing")):
        yield Note("FM512", case.place("activation_checkpointing"))


def _nothing_loadable(case: Case) -> Iterator[Note]:
    if case.config.state_dict_type == "sharded" and _on(case.text("save_only_model")):
        yield Note("FM514", case.place("state_dict_type"))


def _four_bit_storage(case: Case) -> Iterator[Note]:
    storage = case.text("bnb_4bit_quant_storage") or case.text("bnb_config_kwargs", "bnb_4bit_quant_storage")
    if _on(case.text("load_in_4bit")) and storage.removeprefix("torch.") not in _FLOATING:
        what = f"here it is {storage}" if storage else "without the key it is uint8"
        yield Note("FM515", case.at, {"what": what})


def _four_bit_storage_beside_bf16(case: Case) -> Iterator[Note]:
    """Axolotl stores in bfloat16 by itself (loaders/model.py), so the other half must fit: bf16."""
    storage = case.text("bnb_config_kwargs", "bnb_4bit_quant_storage").removeprefix("torch.") or "bfloat16"
    bf16 = case.text("bf16").lower() in ("auto", "full") or _on(case.text("bf16"))
    fits = storage in _FLOATING and (bf16 or storage != "bfloat16")
    if _on(case.text("load_in_4bit")) and not fits:
        what = f"here it is {storage}, and bf16 is {'on' if bf16 else 'not on'}"
        yield Note("FM515", case.at, {"what": what})


_FLOATING = frozenset(("bfloat16", "float16", "float32"))


def _on(text: str) -> bool:
    return text.lower() in ("true", "yes", "on", "1")


@dataclass(frozen=True)
class Check:
    """`ask` yields notes for an active block of `dialect` and `engine`, in `releases` of its package."""

    dialect: str
    engine: Engine
    releases: str
    ask: Callable[[Case], Iterator[Note]]


CHECKS = (
    # accelerate.utils.fsdp_utils.fsdp2_prepare_auto_wrap_policy, measured on 1.13 to 1.15
    Check("accelerate", "fsdp2", ">=1.7", _size_based),
    # huggingface/accelerate issue 3910; since 1.13 shards go back to the CPU (fsdp_utils.py fsdp2_load_full_state_dict)
    Check("accelerate", "fsdp2", ">=1.6,<1.13", _offload_with_rank0_loading),
    # dataclasses.py, FullyShardedDataParallelPlugin.__post_init__: SHARDED under version 2, FULL under 1
    Check("accelerate", "fsdp2", ">=1.6", _state_dict_left_to_the_release),
    # fsdp_utils.py fsdp2_apply_ac: preserve_rng_state=False, measured on 1.13 and 1.15
    Check("accelerate", "fsdp2", ">=1.8", _checkpointing_draws_again),
    # utils/constants.py FSDP_SHARDING_STRATEGY: the number is its place in that list
    Check("accelerate", "fsdp1", "*", _strategy_as_number),
    # accelerator.py: raises where the fp8 backend is AO and the plugin loads on rank 0
    Check("accelerate", "fsdp2", ">=1.8", _rank0_loading_with_torchao),
    # measured on 1.6.0 and 1.7.0
    Check("accelerate", "fsdp2", ">=1.6,<1.7", _full_state_dict_too_early),
    # Trainer.__init__, measured in 11 releases from 4.40.2 to 5.24.0
    Check("hf-args", "fsdp1", "*", _checkpointing_in_two_places),
    Check("hf-args", "fsdp2", "*", _checkpointing_in_two_places),
    Check("axolotl", "fsdp1", "*", _checkpointing_in_two_places),
    Check("axolotl", "fsdp2", "*", _checkpointing_in_two_places),
    # huggingface/accelerate issues 3983 and 3987; TRL's keys beside the TrainingArguments
    Check("hf-args", "fsdp2", "*", _four_bit_storage),
    Check("axolotl", "fsdp2", "*", _four_bit_storage_beside_bf16),
    # trainer.py, _validate_args 4.57.6 to 5.24.0
    Check("hf-args", "fsdp1", ">=4.57", _nothing_loadable),
    Check("hf-args", "fsdp2", ">=4.57", _nothing_loadable),
)


def checks(declared: Declaration, choices: Choices, case: Case) -> Iterator[Note]:
    """The notes of every check that holds in the release that runs the file."""
    at = choices.runs_on.get(declared.package) or choices.came_from.get(declared.package, declared.newest)
    for check in CHECKS:
        if (check.dialect, check.engine) == (declared.name, case.ran.engine) and holds(check.releases, at):
            yield from check.ask(case)


def pending(report: FileReport, at: Origin) -> Note:
    """That a file asks for FSDP1, and what convert, whose report this is, would make of it."""
    return Note("FM510", at, {"outcome": becomes(report)})


def becomes(report: FileReport) -> str:
    """What convert, whose report this is, makes of FSDP1 settings, in a clause."""
    grave = [one.rule for one in report.findings if one.severity == "error"]
    warned = [one.rule for one in report.findings if one.severity == "warning"]
    rules = ", ".join(dict.fromkeys(grave or warned))
    if grave:
        return f"convert refuses it as it stands ({rules})"
    if warned:
        return f"it converts, with {len(warned)} warning{'s' if len(warned) != 1 else ''} ({rules})"
    return "it converts without a warning"
