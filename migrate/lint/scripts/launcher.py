"""``accelerate launch``: its flags, the file it is given, and the environment that stands for both.

Flags become the file that says the same, and that goes through the pipeline as any other. Flags win over the
file, also those of engines (accelerate 1.15.0, commands/launch.py, _validate_launch_command).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ...choices import Choices
from ...dialects.declaration import declaration
from ...pipeline import Conversion
from ...rules import Note
from ..engine import engine_of
from .found import Beside, Found, beside, converted, fsdp1, shortened, shown, unseen
from .shell import Assignment, Piece, Script, Word

_SWITCHES = frozenset(
    ("help", "quiet", "cpu", "multi_gpu", "tpu", "enable_cpu_affinity", "dynamo_use_fullgraph", "dynamo_use_dynamic",
     "dynamo_use_regional_compilation", "use_deepspeed", "use_fsdp", "use_parallelism_config", "use_megatron_lm",
     "same_network", "module", "no_python", "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo", "downcast_bf16",
     "fp8_use_autocast_during_eval", "debug", "m", "q", "h")
)  # fmt: skip
_VALUED = (
    "config_file", "mixed_precision", "num_", "dynamo_", "gpu_ids", "machine_rank", "main_", "tee", "log_dir", "role",
    "rdzv_", "max_restarts", "monitor_interval", "deepspeed_", "zero", "offload_", "gradient_", "fsdp_", "megatron_lm_",
    "fp8_", "parallelism_config_", "mpirun_", "fork_launched",
)  # fmt: skip
_OTHERS = ("multi_gpu", "tpu", "use_deepspeed", "use_megatron_lm", "cpu")
_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_WORDS = {**dict.fromkeys(("y", "yes", "t", "true", "on", "1"), "true"),
          **dict.fromkeys(("n", "no", "f", "false", "off", "0"), "false")}  # fmt: skip

ENVIRONMENT = {
    "FSDP_VERSION": "fsdp_version",
    "FSDP_SHARDING_STRATEGY": "fsdp_sharding_strategy",
    "FSDP_RESHARD_AFTER_FORWARD": "fsdp_reshard_after_forward",
    "FSDP_OFFLOAD_PARAMS": "fsdp_offload_params",
    "FSDP_BACKWARD_PREFETCH": "fsdp_backward_prefetch",
    "FSDP_FORWARD_PREFETCH": "fsdp_forward_prefetch",
    "FSDP_STATE_DICT_TYPE": "fsdp_state_dict_type",
    "FSDP_AUTO_WRAP_POLICY": "fsdp_auto_wrap_policy",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "fsdp_transformer_layer_cls_to_wrap",
    "FSDP_MIN_NUM_PARAMS": "fsdp_min_num_params",
    "FSDP_USE_ORIG_PARAMS": "fsdp_use_orig_params",
    "FSDP_SYNC_MODULE_STATES": "fsdp_sync_module_states",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "fsdp_cpu_ram_efficient_loading",
    "FSDP_ACTIVATION_CHECKPOINTING": "fsdp_activation_checkpointing",
    "FSDP_IGNORED_MODULES": "fsdp_ignored_modules",
}
# what the plugin takes where a variable is absent and no launcher has filled it
_PLUGIN = dict.fromkeys(
    ("fsdp_use_orig_params", "fsdp_sync_module_states", "fsdp_cpu_ram_efficient_loading"), "false"
)  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """A flag with its value; `at` is its own word, `value` None for a switch."""

    name: str
    at: Word
    value: Word | None = None

    @property
    def seen(self) -> bool:
        return self.value is None or not self.value.opaque


@dataclass
class Launch:
    """A call of the launcher: its flags, words that may be more of them, and what the training script is given."""

    flags: dict[str, Flag] = field(default_factory=dict)
    hidden: list[Word] = field(default_factory=list)
    rest: Sequence[Word] = ()

    @property
    def settings(self) -> dict[str, Flag]:
        """The FSDP options among the flags."""
        return {name: flag for name, flag in self.flags.items() if name in _keys()}


@lru_cache(maxsize=1)
def _keys() -> frozenset[str]:
    block = declaration("accelerate").blocks[0]
    return frozenset(spelling.path[-1] for option in block.options for spelling in option.spellings
                     if not spelling.outside and spelling.path[-1].startswith("fsdp_"))  # fmt: skip


def launch(words: Sequence[Word]) -> Launch | None:
    """What a command hands to the launcher; None where it does not call it."""
    start = _start(words)
    if start is None:
        return None
    made = Launch()
    here = start
    while here < len(words):
        word, text = words[here], words[here].text
        here += 1
        if word.opaque and not text.startswith("--"):
            made.hidden.append(word)
            continue
        if not text.startswith("-"):
            made.rest = words[here:]
            return made
        name, equals, _ = text.partition("=")
        bare = name.lstrip("-").replace("-", "_")
        if made.hidden and bare not in _SWITCHES and not bare.startswith(_VALUED):
            made.rest = words[here - 1 :]  # the training script is among the words that are not seen
            return made
        if equals:
            made.flags[bare] = Flag(bare, word, word.part(len(name) + 1))
        elif bare in _SWITCHES:
            made.flags[bare] = Flag(bare, word)
        else:
            value = words[here] if here < len(words) else None
            here += 1
            made.flags[bare] = Flag(bare, word, value)
    return made


def _start(words: Sequence[Word]) -> int | None:
    for number, word in enumerate(words):
        name = word.text.rpartition("/")[2]
        after = words[number + 1].text if number + 1 < len(words) else ""
        if name in ("accelerate", "accelerate.commands.accelerate_cli") and after == "launch":
            return number + 2
        if name in ("accelerate-launch", "accelerate.commands.launch"):
            return number + 1
    return None


def judge(call: Launch, script: str, choices: Choices) -> Iterator[Found]:
    """Findings about a call of the launcher."""
    settings = call.settings
    if "use_fsdp" not in call.flags and (not settings or any(one in call.flags for one in _OTHERS)):
        return
    named = call.flags.get("config_file")
    file = None
    if named is not None and named.value is not None:
        file = Beside(named.value.text, None) if named.value.opaque else beside(script, named.value.text)
    given = file.data if file is not None and file.data is not None else {}
    if "use_fsdp" not in call.flags and given.get("distributed_type") != "FSDP":
        if file is not None and file.data is None and named is not None and named.value is not None:
            yield unseen(named.value, "--config_file", "it says whether FSDP runs, and which")
        return
    in_file = {key if key.startswith("fsdp") else f"fsdp_{key}": value for key, value in _mapping(given, "fsdp_config")}
    if file is not None:
        yield from _beaten(call, {**in_file, "mixed_precision": given.get("mixed_precision")}, file.name)
    version = settings.get("fsdp_version")
    blind = call.hidden[0] if call.hidden else None
    if blind is None and version is not None and not version.seen:
        blind = version.value
    if blind is None and version is None and file is not None and file.data is None and named is not None:
        blind = named.value
    if blind is not None:
        yield unseen(blind, blind.text, "it may say which FSDP runs")
        return
    data = _as_file(call, given, in_file)
    done = converted(data, "accelerate", choices)
    engine = engine_of(done)
    if engine == "fsdp2":
        yield from _dead(done.notes, {f"--{name}": flag.at for name, flag in settings.items()}, _flag)
    elif engine == "fsdp1":
        after = json.loads(done.text)
        yield from _fsdp1(call, data, after, in_file, by_file=given.get("distributed_type") == "FSDP", done=done)


def _mapping(data: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    inner = data.get(key)
    return [(str(name), value) for name, value in inner.items()] if isinstance(inner, dict) else []


def _as_file(call: Launch, given: Mapping[str, Any], in_file: Mapping[str, Any]) -> dict[str, Any]:
    """The file that says what flags and file say together; values that are not seen are left out."""
    flags = {name: flag.value.text for name, flag in call.settings.items() if flag.value is not None and flag.seen}
    hidden = {name for name, flag in call.settings.items() if not flag.seen}
    block = {name: value for name, value in {**in_file, **flags}.items() if name not in hidden}
    data: dict[str, Any] = {"distributed_type": "FSDP", "fsdp_config": block}
    for name in ("mixed_precision", "num_processes", "num_machines"):
        flag = call.flags.get(name)
        value: Any = given.get(name)
        if flag is not None and flag.value is not None:
            value = None if flag.value.opaque else _number(flag.value.text)
        if value is not None:
            data[name] = value
    # the switch drops the mesh of the file
    mesh = {} if "use_fsdp" in call.flags else dict(_mapping(given, "parallelism_config"))
    for name, flag in call.flags.items():
        if name.startswith("parallelism_config_") and flag.value is not None and flag.value.text.isdigit():
            mesh[name] = _number(flag.value.text)
    if mesh:
        data["parallelism_config"] = mesh
    return data


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _beaten(call: Launch, in_file: Mapping[str, Any], file: str) -> Iterator[Found]:
    """Flags that say otherwise than the file."""
    known = {**call.settings}
    if "mixed_precision" in call.flags:
        known["mixed_precision"] = call.flags["mixed_precision"]
    for name, flag in known.items():
        other = in_file.get(name)
        if flag.value is None or flag.value.opaque or other is None or isinstance(other, (dict, list)):
            continue
        if _plain(name, flag.value.text) != _plain(name, shown(other)):
            args = {"stated": shortened(flag.value.text), "other": shortened(shown(other)), "file": file}
            yield Found("FM521", flag.at, f"--{name}", {"key": f"--{name}", **args})


def _plain(name: str, text: str) -> str:
    """A value without its spelling."""
    lower = text.strip().lower()
    if name == "fsdp_sharding_strategy":
        number = int(lower) if lower in ("1", "2", "3", "4", "5") else 0
        return _STRATEGIES[number - 1] if number else lower.lstrip("_")
    if name in ("fsdp_version", "fsdp_min_num_params", "mixed_precision", "fsdp_state_dict_type"):
        return "no" if lower == "false" else lower
    return _WORDS.get(lower, lower)


def _flag(name: str) -> str:
    return f"--{name}"


def _dead(notes: Sequence[Note], places: Mapping[str, Word], spelled: Callable[[str], str]) -> Iterator[Found]:
    """Settings of FSDP1 beside FSDP2."""
    for note in notes:
        name = spelled(note.at.key.rpartition(".")[2])
        if note.rule not in ("FM501", "FM502") or name not in places:
            continue
        if note.rule == "FM501":
            yield Found("FM522", places[name], name, {"key": name, "said": "", "hint": "remove it"})
            continue
        said = f": it says {note.args['stated']}, but {note.args['ran']} is what runs"
        args = {"key": name, "said": said, "hint": f"remove it; {note.args['remedy']}"}
        yield Found("FM522", places[name], name, args, "error")


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Keys that go or get another value, and what is new, in order."""
    gone = [
        key
        for key, value in before.items()
        if key not in after or _plain(key, shown(after[key])) != _plain(key, shown(value))
    ]
    new = {key: shown(value) for key, value in after.items() if key not in before or key in gone}
    return gone, dict(sorted(new.items(), key=lambda one: one[0] != "fsdp_version"))


def _fsdp1(
    call: Launch,
    data: Mapping[str, Any],
    after: Mapping[str, Any],
    in_file: Mapping[str, Any],
    *,
    by_file: bool,
    done: Conversion,
) -> Iterator[Found]:
    settings = call.settings
    gone, new = _changes(data["fsdp_config"], dict(_mapping(after, "fsdp_config")))
    changed = [name for name in settings if name in gone]
    if by_file and not changed and done.report.status != "refused":
        return  # the file asks for FSDP1, and is told so itself
    order = ("fsdp_version", "fsdp_sharding_strategy", *changed, "use_fsdp", *settings)
    first = next(name for name in order if name in call.flags)
    lines = [f"--{name} {_quoted(value)}" for name, value in new.items() if not (by_file and name in in_file)]
    old = changed
    if after.get("distributed_type") != "FSDP":
        lines, old = ["--multi_gpu"], [name for name in ("use_fsdp", *settings) if name in call.flags]
    mesh = [(name, value) for name, value in _mapping(after, "parallelism_config") if name not in call.flags]
    if mesh and after.get("parallelism_config") != data.get("parallelism_config"):
        lines += ["--use_parallelism_config", *(f"--{name} {shown(value)}" for name, value in mesh)]
    yield fsdp1(
        call.flags[first].at,
        f"--{first}",
        f"`--{first}` asks for FSDP1",
        done,
        [f"--{name}" for name in old],
        f"`{' '.join(lines)}`",
    )


def _quoted(text: str) -> str:
    return shlex.quote(text)


def environment(script: Script, choices: Choices) -> Iterator[Found]:
    """Findings about exported variables, for scripts that start workers without accelerate's launcher."""
    exported: dict[str, list[Assignment]] = {}
    for one in script.assignments:
        if one.exported and one.items is None:
            exported.setdefault(one.name, []).append(one)
    switch = exported.get("ACCELERATE_USE_FSDP", [])
    if not switch or not all(one.value.text.lower() == "true" for one in switch):
        return
    block: dict[str, Any] = dict(_PLUGIN)
    places: dict[str, Word] = {}
    for variable, key in ENVIRONMENT.items():
        same = exported.get(variable, [])
        if not same:
            continue
        sure = len({one.value.text for one in same}) == 1 and not same[0].value.opaque and same[0].sure
        if not sure and key == "fsdp_version":
            yield unseen(_whole(same[0]), variable, "it says which FSDP runs")
            return
        if sure:
            block[key] = same[0].value.text
            places[variable] = _whole(same[0])
    done = converted({"distributed_type": "FSDP", "fsdp_config": block}, "accelerate", choices)
    engine = engine_of(done)
    variables = {key: variable for variable, key in ENVIRONMENT.items()}
    if engine == "fsdp2":
        yield from _dead(done.notes, places, lambda name: variables.get(name, name))
    if engine != "fsdp1":
        return
    gone, new = _changes(block, dict(_mapping(json.loads(done.text), "fsdp_config")))
    lines = [f"{variables[key]}={_quoted(value)}" for key, value in new.items() if key in variables]
    old = [variables[key] for key in gone if variables.get(key) in places]
    first = next(
        (one for one in ("FSDP_VERSION", "FSDP_SHARDING_STRATEGY") if one in places), "ACCELERATE_USE_FSDP"
    )  # fmt: skip
    at = places[first] if first in places else _whole(switch[0])
    said = f"`{first}` asks for FSDP1" if first in places else f"`{first}` without FSDP_VERSION asks for FSDP1"
    yield fsdp1(at, first, said, done, old, f"`export {' '.join(lines)}`")


def _whole(one: Assignment) -> Word:
    """The assignment as a word, so that its name is what is underlined."""
    return Word((Piece(one.name, one.at),), one.at)
