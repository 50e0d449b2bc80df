"""Codecs: written value ⇄ neutral value. A small closed set of named pure functions.

`decode` takes the data as the owner's loader sees it (a bool, an int, a text, a list), never source
text; `encode` gives the data to write. A codec is liberal in what it reads: every spelling that was
ever meant is understood, and the declaration says which release accepted which.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..config.words import BackwardPrefetch, ShardingStrategy, StateDictType, WrapPolicy


class NotUnderstood(ValueError):
    """A value outside a codec's vocabulary."""

    def __init__(self, accepted: Sequence[str], nearest: str | None = None, blank: bool = False) -> None:
        super().__init__("not understood")
        self.accepted = tuple(accepted)
        self.nearest = nearest
        self.blank = blank


@dataclass(frozen=True)
class Decoded:
    """`canonical`: already spelled as the target is written. `plain`: the exact name or a number.

    `rule`: a rule to report when the value has to be respelled.
    """

    value: Any
    canonical: bool = True
    plain: bool = True
    rule: str | None = None


@dataclass(frozen=True)
class Codec:
    """`schema`: the JSON Schema of accepted data; `strict`: that of what `encode` writes.

    encode_like: for values with more than one good form, the one that the data written so far has.
    """

    name: str
    decode: Callable[[Any], Decoded]
    encode: Callable[[Any], Any]
    schema: dict[str, Any]
    strict: dict[str, Any]
    encode_like: Callable[[Any, Any], Any] | None = None

    def respell(self, value: Any, written: Any) -> Any:
        """The data to write for `value` in place of `written`."""
        return self.encode_like(value, written) if self.encode_like else self.encode(value)


def anycase(word: str) -> str:
    """A pattern for a word in any case, in the regular expressions that editors know too."""
    return "".join(f"[{char.upper()}{char.lower()}]" if char.isalpha() else char for char in word)


def _pattern(words: Sequence[str]) -> dict[str, Any]:
    return {"type": "string", "pattern": "^(" + "|".join(map(anycase, words)) + ")$"}


TRUE_WORDS = ("y", "yes", "t", "true", "on", "1")
FALSE_WORDS = ("n", "no", "f", "false", "off", "0")


def nearest(text: str, words: Sequence[str]) -> str | None:
    """The closest of `words`, compared without case, or None."""
    by_fold = {item.upper(): item for item in words}
    found = difflib.get_close_matches(text.upper(), list(by_fold), 1, 0.6)
    return by_fold[found[0]] if found else None


def _decode_bool(written: Any) -> Decoded:
    if isinstance(written, bool):
        return Decoded(written)
    if isinstance(written, (int, str)):
        text = str(written).lower()
        if text in TRUE_WORDS or text in FALSE_WORDS:
            return Decoded(text in TRUE_WORDS, canonical=False, plain=not isinstance(written, str))
    raise NotUnderstood(("true", "false"), nearest(str(written), ("true", "false")))


_BOOL_WORDS = Codec(
    "bool_words",
    _decode_bool,
    bool,
    {
        "anyOf": [
            {"type": "boolean"},
            {"enum": [0, 1]},
            _pattern(TRUE_WORDS + FALSE_WORDS),
        ]
    },
    {"type": "boolean"},
)


def _enum(name: str, kind: type[Enum], numbers: bool, aliases: dict[str, str] | None = None) -> Codec:
    """Names in any case, with hyphens or blanks, with the enum's class before them, or torch's numbers."""
    members = list(kind)
    by_name = {member.name: member for member in members}
    by_number = {member.value: member for member in members if isinstance(member.value, int) and member.value}
    other = aliases or {}

    def decode(written: Any) -> Decoded:
        if numbers and isinstance(written, int) and not isinstance(written, bool) and written in by_number:
            return Decoded(by_number[written], canonical=False)
        if isinstance(written, str):
            text = written.strip()
            if numbers and text.isascii() and text.isdigit() and len(text) < 9 and int(text) in by_number:
                return Decoded(by_number[int(text)], canonical=False)
            word = text.rsplit(".", 1)[-1].upper().replace("-", "_").replace(" ", "_")
            found = by_name.get(other.get(word, word))
            if found is not None:
                bare = text.upper() in by_name or text.upper() in other
                rule = None if bare else "FM206"  # a hyphen, a blank, the enum's class before it
                plain = written in (found.name, f"_{found.name}")
                return Decoded(found, canonical=written == found.name, plain=plain, rule=rule)
        raise NotUnderstood([*by_name, *map(str, by_number if numbers else ())], nearest(str(written), list(by_name)))

    either = "|".join(anycase(word).replace("_", "[-_ ]") for word in sorted({*by_name, *other}))
    loose: list[dict[str, Any]] = [{"type": "string", "pattern": f"^([A-Za-z]+\\.)?({either})$"}]
    if numbers:
        loose += [{"enum": sorted(by_number)}, {"enum": [str(number) for number in sorted(by_number)]}]
    return Codec(
        name, decode, lambda value: value.name, {"anyOf": loose}, {"enum": [member.name for member in members]}
    )


def _decode_class_list(written: Any) -> Decoded:
    parts = written if isinstance(written, list) else str(written).split(",")
    if not all(isinstance(part, str) for part in parts) or not isinstance(written, (list, str)):
        raise NotUnderstood(("class names separated by commas",))
    names = [part.strip() for part in parts]
    if not all(names):
        raise NotUnderstood(("class names separated by commas",), blank=True)
    # a class is found by its bare name, so a dotted path can only have meant its last part
    bare = tuple(dict.fromkeys(name.rsplit(".", 1)[-1] for name in names))
    canonical = written == ",".join(bare)
    return Decoded(bare, canonical, rule=None if canonical else "FM201")


_CLASS_LIST = Codec(
    "class_list",
    _decode_class_list,
    ",".join,
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    {"type": "string", "pattern": "^[^\\s,.]+(,[^\\s,.]+)*$"},
)


def _decode_integer(written: Any) -> Decoded:
    if isinstance(written, int) and not isinstance(written, bool):
        return Decoded(written)
    if isinstance(written, str):
        try:
            return Decoded(int(written), canonical=False)
        except ValueError:
            pass
    if isinstance(written, (str, float)):
        try:
            number = float(written)
        except ValueError:
            number = 0.5
        if number == int(number) if abs(number) < 1e18 else False:
            return Decoded(int(number), canonical=False, rule="FM203")
    raise NotUnderstood(("a whole number",))


_INTEGER = Codec(
    "integer",
    _decode_integer,
    int,
    {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[0-9_.eE+-]+$"}]},
    {"type": "integer"},
)


def _decode_pattern(written: Any) -> Decoded:
    if isinstance(written, str):
        return Decoded((written,))
    raise NotUnderstood(("a regular expression",))


_PATTERN = Codec("pattern", _decode_pattern, lambda value: value[0], {"type": "string"}, {"type": "string"})


def _decode_names(written: Any) -> Decoded:
    names = [written] if isinstance(written, str) else written
    if isinstance(names, list) and all(isinstance(name, str) and name.strip() for name in names):
        return Decoded(tuple(names))
    raise NotUnderstood(("a list of names",))


_NAME_LIST = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_NAMES = Codec("names", _decode_names, list, _NAME_LIST, {"type": "array", "items": {"type": "string"}})


def _decode_class_names(written: Any) -> Decoded:
    """A list, or one text with commas; a dotted path or ``<class '...'>`` stands for its last part."""
    if isinstance(written, str):
        written = written.split(",")
    if isinstance(written, list) and all(isinstance(name, str) for name in written):
        names = [name.strip().removeprefix("<class '").removesuffix("'>").rsplit(".", 1)[-1] for name in written]
        if all(names):
            return Decoded(tuple(dict.fromkeys(names)))
        raise NotUnderstood(("class names",), blank=True)
    raise NotUnderstood(("a list of class names",))


_CLASS_NAMES = Codec("class_names", _decode_class_names, list, _NAME_LIST, _NAMES.strict)


def _decode_classes_kept(written: Any) -> Decoded:
    """A list or one text, with commas in either; blanks stay part of a name in the owner's eyes."""
    parts = [written] if isinstance(written, str) else written
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise NotUnderstood(("class names, as a list or separated by commas",))
    names = [name for part in parts for name in part.split(",")]
    if not names or not all(name.strip() for name in names):
        raise NotUnderstood(("class names, as a list or separated by commas",), blank=True)
    bare = tuple(dict.fromkeys(name.strip().rsplit(".", 1)[-1] for name in names))
    canonical = tuple(dict.fromkeys(names)) == bare
    return Decoded(bare, canonical, rule=None if canonical else "FM201")


_CLASSES_KEPT = Codec(
    "classes_kept",
    _decode_classes_kept,
    list,
    _NAME_LIST,
    {"anyOf": [_CLASS_LIST.strict, {"type": "array", "items": {"type": "string"}}]},
    lambda value, written: ",".join(value) if isinstance(written, str) else list(value),
)

_DTYPE_WORDS = {
    "float32": ("float32", "float", "fp32"),
    "bfloat16": ("bfloat16", "bf16"),
    "float16": ("float16", "half", "fp16"),
    "float64": ("float64", "double", "fp64"),
}


def _decode_dtype(written: Any) -> Decoded:
    text = str(written).strip().lower().removeprefix("torch.")
    for name, words in _DTYPE_WORDS.items():
        if text in words:
            return Decoded(name)
    raise NotUnderstood(tuple(_DTYPE_WORDS), nearest(text, list(_DTYPE_WORDS)))


_DTYPE = Codec("dtype", _decode_dtype, str, {"type": "string"}, {"enum": list(_DTYPE_WORDS)})


def _decode_cpu_offload(written: Any) -> Decoded:
    """A bool, or the repr of ``CPUOffload``; the mapping form is a key of its own."""
    if isinstance(written, str):
        found = re.fullmatch(
            r"(?:[\w.]*\.)?CPUOffload\(\s*(?:offload_params\s*=\s*)?(True|False)?\s*\)", written.strip()
        )
        if found:
            return Decoded(found.group(1) == "True")
    return _decode_bool(written)


_CPU_OFFLOAD = Codec("cpu_offload", _decode_cpu_offload, bool, _BOOL_WORDS.schema, _BOOL_WORDS.strict)


def _decode_mesh_sizes(written: Any) -> Decoded:
    """``[replicate, shard]`` as FSDP1's 2-D ``device_mesh`` has them, or ``[shard]``."""
    sizes = written if isinstance(written, list) else [written]
    if (
        sizes
        and len(sizes) <= 2
        and all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
    ):
        return Decoded((sizes[0] if len(sizes) == 2 else None, sizes[-1]))
    raise NotUnderstood(("[replicate, shard] in ranks",))


_MESH_SIZES = Codec("mesh_sizes", _decode_mesh_sizes, list, {"type": ["array", "integer"]}, {"type": "array"})


def _decode_nothing(written: Any) -> Decoded:
    raise NotUnderstood(("a mapping of options",))


_NOTHING = Codec("nothing", _decode_nothing, str, {"type": "object"}, {"type": "object"})


def _decode_anything(written: Any) -> Decoded:
    return Decoded(None if written in ([], {}, "") else str(written))


_ANYTHING = Codec("anything", _decode_anything, str, {}, {})


def _decode_size(written: Any) -> Decoded:
    """A number of ranks or machines: a whole number of at least 1."""
    found = _decode_integer(written)
    if found.value < 1:
        raise NotUnderstood(("a whole number of at least 1",))
    return found


_SIZE = Codec("size", _decode_size, int, _INTEGER.schema, {"type": "integer", "minimum": 1})

PRECISIONS = ("no", "fp16", "bf16", "fp8")


def _decode_precision(written: Any) -> Decoded:
    if written is False:  # an unquoted no
        return Decoded("no", canonical=False, rule="FM204")
    if isinstance(written, str) and written.lower() in PRECISIONS:
        return Decoded(written.lower())
    raise NotUnderstood(PRECISIONS, nearest(str(written), PRECISIONS))


_PRECISION = Codec(
    "precision",
    _decode_precision,
    str,
    {"anyOf": [_pattern(PRECISIONS), {"const": False}]},
    _pattern(PRECISIONS),
)


def _decode_fp16_flag(written: Any) -> Decoded:
    return Decoded("fp16" if written else "no")


_FP16_FLAG = Codec("fp16_flag", _decode_fp16_flag, lambda value: value == "fp16", {}, {})


def _switch(name: str, precision: str) -> Codec:
    """A flag that chooses one precision; off, it says nothing."""

    def decode(written: Any) -> Decoded:
        return Decoded(precision if _decode_bool(written).value else None)

    return Codec(name, decode, lambda value: value == precision, _BOOL_WORDS.schema, _BOOL_WORDS.strict)


def _decode_bf16_choice(written: Any) -> Decoded:
    """The same switch with two more words: what the device can do, and weights in 16 bit too."""
    return Decoded("bf16") if written in ("auto", "full") else CODECS["bf16_switch"].decode(written)


_BF16_CHOICE = Codec(
    "bf16_choice",
    _decode_bf16_choice,
    lambda value: value == "bf16",
    {"anyOf": [*_BOOL_WORDS.schema["anyOf"], {"enum": ["auto", "full"]}]},
    _BOOL_WORDS.strict,
)


def _decode_version_number(written: Any) -> Decoded:
    """A number as Python's int() takes it: 2, 2.0 and "2", and no "2.0"."""
    try:
        number = None if isinstance(written, bool) else int(written)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number in (1, 2):
        return Decoded(number, canonical=type(written) is int)
    raise NotUnderstood(("1", "2"))


def _decode_version(written: Any) -> Decoded:
    if not isinstance(written, bool) and str(written).strip() in ("1", "2") and not isinstance(written, float):
        number = int(str(written))
        return Decoded(number, canonical=written == number)
    raise NotUnderstood(("1", "2"))


_VERSION = Codec("version", _decode_version, int, {"enum": [1, 2, "1", "2"]}, {"const": 2})

_VERSION_NUMBER = Codec(
    "version_number",
    _decode_version_number,
    int,
    {"anyOf": [{"enum": [1, 2]}, {"type": "string", "pattern": "^ *0*[12] *$"}]},
    {"const": 2},
)


# one text of words, or a list of them
_STRATEGY_WORDS = {member.name.lower(): member for member in ShardingStrategy}
_OPTION_WORDS = (*_STRATEGY_WORDS, "auto_wrap", "offload")


def _decode_option_words(written: Any) -> Decoded:
    """(strategy, wrap policy, offload); None for what no word speaks of. ``true`` says only that it is on."""
    if written is True:
        return Decoded((None, None, None))
    words = written.split() if isinstance(written, str) else written
    if not isinstance(words, list) or not words or not all(word in _OPTION_WORDS for word in words):
        raise NotUnderstood(_OPTION_WORDS, _nearest_word(words))
    strategies = dict.fromkeys(word for word in words if word in _STRATEGY_WORDS)
    if len(strategies) > 1:
        raise NotUnderstood(("one strategy alone",))
    strategy = next((_STRATEGY_WORDS[word] for word in strategies), None)
    wrap = WrapPolicy.TRANSFORMER_BASED_WRAP if "auto_wrap" in words else None
    return Decoded((strategy, wrap, True if "offload" in words else None))


def _nearest_word(words: Any) -> str | None:
    texts = [word for word in words if isinstance(word, str)] if isinstance(words, list) else []
    return next((nearest(word, _OPTION_WORDS) for word in texts if word not in _OPTION_WORDS), None)


def _option_words(value: Any, written: Any) -> Any:
    """The words for a value, in the order and the form of those that are written."""
    strategy, policy, offload = value
    wanted = [strategy.name.lower()] if strategy else []
    wanted += ["auto_wrap"] if policy not in (None, WrapPolicy.NO_WRAP) else []
    wanted += ["offload"] if offload else []
    old = written.split() if isinstance(written, str) else written if isinstance(written, list) else []
    swapped = [wanted[0] if strategy and word in _STRATEGY_WORDS else word for word in old]
    words = [word for word in dict.fromkeys(swapped) if word in wanted]
    if strategy and wanted[0] not in words:
        words.insert(0, wanted[0])
    words += [word for word in wanted if word not in words]
    if not words:
        return written  # on, and nothing more to say
    if isinstance(written, list):
        return words
    return written if isinstance(written, str) and words == old else " ".join(words)


_WORD = {"enum": list(_OPTION_WORDS)}
_WORDS = Codec(
    "option_words",
    _decode_option_words,
    lambda value: _option_words(value, ""),
    {"anyOf": [{"type": "boolean"}, {"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    {
        "anyOf": [
            {"const": True},
            {"type": "string", "pattern": f"^({'|'.join(_OPTION_WORDS)})( +({'|'.join(_OPTION_WORDS)}))*$"},
            {"type": "array", "items": _WORD},
        ]
    },
    _option_words,
)

_STRATEGY = _enum("strategy", ShardingStrategy, True, {"_HYBRID_SHARD_ZERO2": "HYBRID_SHARD_ZERO2"})


_EITHER: dict[str, Any] = {"anyOf": [*_BOOL_WORDS.schema["anyOf"], *_STRATEGY.schema["anyOf"]]}


# torch.distributed.fsdp.wrap: what a file can only name
_WRAP_CALLABLES = {
    "TRANSFORMER_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "MODULEWRAPPOLICY": "TRANSFORMER_BASED_WRAP",
    "SIZE_BASED_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
}


def _decode_strategy_or_bool(written: Any) -> Decoded:
    """What a person meant who wrote a strategy, or a reshard flag, into the other's place."""
    try:
        return _STRATEGY.decode(written)
    except NotUnderstood as error:
        try:
            flag = _decode_bool(written).value
        except NotUnderstood:
            raise error from None
        strategy = ShardingStrategy.FULL_SHARD if flag else ShardingStrategy.SHARD_GRAD_OP
        return Decoded(strategy, canonical=False)


def _decode_reshard_flag(written: Any) -> Decoded:
    """A bool word, or the strategy that a half-done conversion left in its place."""
    try:
        return _decode_bool(written)
    except NotUnderstood as error:
        try:
            strategy = _STRATEGY.decode(written).value
        except NotUnderstood:
            raise error from None
        if strategy not in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
            raise error from None  # a mesh, or no sharding at all: no flag can say it
        return Decoded(strategy.reshards, canonical=False, rule="FM205")


CODECS = {
    codec.name: codec
    for codec in (
        _BOOL_WORDS,
        _CLASS_LIST,
        _INTEGER,
        _ANYTHING,
        _CLASS_NAMES,
        _CLASSES_KEPT,
        _CPU_OFFLOAD,
        _DTYPE,
        _MESH_SIZES,
        _NAMES,
        _NOTHING,
        _PATTERN,
        _SIZE,
        _PRECISION,
        _FP16_FLAG,
        _VERSION,
        _VERSION_NUMBER,
        _WORDS,
        _switch("bf16_switch", "bf16"),
        _BF16_CHOICE,
        _switch("fp16_switch", "fp16"),
        _STRATEGY,
        Codec("reshard_flag", _decode_reshard_flag, bool, _EITHER, _BOOL_WORDS.strict),
        Codec("strategy_or_bool", _decode_strategy_or_bool, lambda value: value.name, _EITHER, _STRATEGY.strict),
        _enum("backward_prefetch", BackwardPrefetch, True),
        _enum("state_dict", StateDictType, True),
        _enum("wrap_policy", WrapPolicy, False),
        _enum("wrap_callable", WrapPolicy, False, _WRAP_CALLABLES),
    )
}


def constant(codec: str, written: Any) -> Any:
    """A value given in a declaration (``"FULL_SHARD"``, ``true``), as the codec's neutral value."""
    return None if written is None else CODECS[codec].decode(written).value
