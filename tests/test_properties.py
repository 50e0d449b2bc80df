"""The promises of the converter as properties, over generated files, mutated fixtures and plain noise.

What a text holds is read with PyYAML and json, the loaders of the frameworks, never with the parser
under test. Examples are the same in every run; ``FUZZ=50 python -m pytest tests/test_properties.py``
runs fifty times as many, at random.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import yaml
from cases import CASES
from fsdp_migrate import Choices
from fsdp_migrate.pipeline import Conversion, convert_bytes, convert_text
from fsdp_migrate.releases import release
from fsdp_migrate.report import json as json_format
from fsdp_migrate.report import text as text_format
from fsdp_migrate.report.model import Report
from fsdp_migrate.text.document import parse
from fsdp_migrate.text.edits import Delete, Edit, Insert, RenameKey, SetValue, apply_edits
from fsdp_migrate.text.errors import TextError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

Path = tuple[str, ...]
Draw = Callable[[st.SearchStrategy[Any]], Any]

FUZZ = int(os.environ.get("FUZZ", "0"))


def examples(count: int) -> settings:
    """So many examples, always the same ones; with FUZZ set, many more and random ones."""
    return settings(
        max_examples=count * max(FUZZ, 1),
        derandomize=not FUZZ,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# What a text holds, read as the frameworks read it


@dataclass(frozen=True)
class Entry:
    """One key of a mapping. `start` and `end` are offsets of key and value, comments around them not counted.

    `area`: offsets of the outermost flow collection that the entry stands in, else the entry itself.
    `flow`: whether the value is a flow mapping.
    """

    path: Path
    start: int
    end: int
    area: tuple[int, int]
    flow: bool
    leaf: bool


@dataclass(frozen=True)
class Source:
    """A text without its byte order mark, its data, and its keys in order, those written twice included."""

    text: str
    data: Any
    entries: tuple[Entry, ...]
    comments: tuple[str, ...]

    def lines(self, end: str, without: Sequence[tuple[int, int]] = ()) -> list[str]:
        """The lines with their line ends, left out those on which a character of `without` stands.

        A last line without a line end gets `end`, so that it compares equal once another line follows.
        """
        whole = self.text if self.text.endswith(("\r", "\n")) else self.text + end
        found, start = [], 0
        for line in re.findall(r"[^\r\n]*(?:\r\n|\r|\n)", whole):
            stop = start + len(line)
            if not any(first < stop and start < last for first, last in without):
                found.append(line)
            start = stop
        return found


def read(text: str, name: str) -> Source | None:
    """The text as its framework reads it; None where the framework's loader does not take it."""
    body = text.removeprefix("\ufeff")
    is_json = name.endswith(".json")
    try:
        data = json.loads(body) if is_json else yaml.safe_load(body)
        # offsets stay; JSON takes blanks and line separators that PyYAML does not
        marked = re.sub("[\t\x85\u2028\u2029]", " ", body) if is_json else body
        root = yaml.compose(marked, Loader=yaml.SafeLoader)
        comments = () if is_json else tuple(_comments(body))
    except Exception:  # whatever the loader raises, the framework does not start with such a file
        return None
    return Source(body, data, tuple(_entries(root, body, (), None)), comments)


def _entries(node: yaml.Node | None, text: str, path: Path, area: tuple[int, int] | None) -> Iterator[Entry]:
    if not isinstance(node, yaml.MappingNode):
        return
    if node.flow_style and area is None:
        area = (node.start_mark.index, node.end_mark.index)
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            continue
        start, behind = key.start_mark.index, key.end_mark.index
        here = (*path, str(key.value))
        alias = value.start_mark.index < behind
        end = behind if alias else max(behind, _end(value, text))
        flow = isinstance(value, yaml.MappingNode) and bool(value.flow_style)
        leaf = alias or not (isinstance(value, yaml.MappingNode) and value.value)
        yield Entry(here, start, end, area or (start, end), flow, leaf)
        if not alias:
            yield from _entries(value, text, here, area or ((start, end) if flow else None))


def _end(node: yaml.Node, text: str) -> int:
    """Where the text of a value ends; PyYAML's own mark of block values lies at the next token."""
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.ScalarNode):
        return start + len(text[start:end].rstrip()) if node.style in ("|", ">") else int(end)
    if node.flow_style or not node.value:
        return int(end)
    last = node.value[-1]
    parts = last if isinstance(last, tuple) else (last,)
    return max([start, *(_end(part, text) for part in parts if part.start_mark.index > start)])


def _comments(text: str) -> Iterator[str]:
    """Every comment, from its ``#`` to the end of the line, trailing blanks cut."""
    behind = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        start, end = token.start_mark.index, token.end_mark.index
        yield from _comments_in(text[behind:start])
        behind = max(behind, end)
        if isinstance(token, yaml.ScalarToken) and token.style in ("|", ">"):
            yield from _comments_in(text[start:end].splitlines()[0])
    yield from _comments_in(text[behind:])


def _comments_in(gap: str) -> Iterator[str]:
    yield from (found.group().rstrip() for found in re.finditer(r"#[^\r\n]*", gap))


def canonical(data: Any) -> str:
    """Data as text that is equal where the data are; order of keys aside, and 1, 1.0 and true differ."""
    return json.dumps(data, sort_keys=True, default=repr)


def value_at(data: Any, path: Path) -> Any:
    """The value at a path of keys that are texts; None where there is none."""
    for step in path:
        data = data.get(step) if isinstance(data, dict) else None
    return data


# The promises


OUTSIDE = ("mixed_precision", "fp16", "num_processes", "num_machines")
AXES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
BLOCKS = ("fsdp_config", "parallelism_config")
MAY_CHANGE = (*BLOCKS, "distributed_type", "mixed_precision")
UNTOUCHED = ("kept", "unknown", "needs-review")
LAST_AFTER_BLANK = re.compile(r"(?:\r\n|\r|\n)[ \t]*(?:\r\n|\r|\n)[^\r\n]*\Z")


def keep_promises(text: str, name: str, choices: Choices) -> Conversion:
    """Convert, and hold the result against promises 1 to 4."""
    conversion = convert_text(text, name, choices)
    shown(conversion)
    if conversion.document:
        return conversion  # not this file rewritten, but another document
    before, after = read(text, name), read(conversion.text, name)
    right_or_refused(conversion, before, after)
    if before is not None and conversion.report.dialect == "accelerate":
        nothing_vanishes(conversion, before, after)
    if before is not None and after is not None and conversion.changed:
        only_meaning_changes(conversion, before, after, as_ddp=choices.no_shard == "ddp")
    second_run_changes_nothing(conversion, name, choices)
    return conversion


def shown(conversion: Conversion) -> None:
    """The report can be shown and sent, whatever the text holds."""
    report = Report("0", (conversion.report,))
    assert json.loads(json_format.render(report).encode("utf-8"))["files"][0]["status"] == conversion.report.status
    assert text_format.render(report).encode("utf-8", "replace")


def nothing_vanishes(conversion: Conversion, before: Source, after: Source | None) -> None:
    """Promise 1: every key of the block and of the settings beside it has one outcome, which tells the truth."""
    paths = [entry.path for entry in before.entries if len(entry.path) <= 2]
    if any(paths.count((block,)) > 1 for block in BLOCKS):
        return  # a block written twice is refused; its keys have no single place
    beside = {(key,) for key in OUTSIDE}
    axes = {("parallelism_config", f"parallelism_config_{axis}_size") for axis in AXES}
    counted = Counter(
        ".".join(path) for path in paths if path in beside | axes or (len(path) == 2 and path[0] == "fsdp_config")
    )
    told = Counter(one.key for one in conversion.report.outcomes)
    assert not counted - told, f"no outcome for {counted - told}"
    # besides: other keys of the mesh, and a block that is no mapping, as a whole
    other = Counter(".".join(path) for path in paths if path[0] == "parallelism_config" or path == ("fsdp_config",))
    extra = told - counted - other
    assert not extra, f"outcomes without a key, or several for one: {extra}"
    if after is None or not conversion.changed:
        return
    left = {".".join(entry.path) for entry in after.entries}
    for one in conversion.report.outcomes:
        assert one.to is None or one.to in left, f"{one.key} went to {one.to}, which is not there"
        assert one.outcome not in ("dropped", "implied") or told[one.key] > 1 or one.key not in left, one


def only_meaning_changes(conversion: Conversion, before: Source, after: Source, as_ddp: bool) -> None:
    """Promise 2: outside the edited entries every byte is the same."""
    edited = {one.key for one in conversion.report.outcomes if one.outcome not in UNTOUCHED}
    left = {entry.path[0] for entry in after.entries}
    if as_ddp and "fsdp_config" not in left:
        edited |= {"distributed_type", *(block for block in BLOCKS if block not in left)}
    touched = [entry.path for entry in before.entries if ".".join(entry.path) in edited]
    filled: list[Path] = [(), *((block,) for block in BLOCKS)]
    same_outside(before, after, touched, filled)
    for path in {entry.path for entry in before.entries if entry.leaf and entry.path not in filled}:
        if not any(path[: len(one)] == one for one in touched):
            assert repr(value_at(after.data, path)) == repr(value_at(before.data, path)), f"{path} means something else"
    assert conversion.before.startswith("\ufeff") == conversion.text.startswith("\ufeff"), "byte order mark"


def same_outside(before: Source, after: Source, touched: Sequence[Path], filled: Sequence[Path]) -> None:
    """What is the same although entries were edited (`touched`) and keys added to mappings (`filled`)."""
    assert sorted(after.comments) == sorted(before.comments), "comments"  # one may have moved with its entry
    breaks = re.compile(r"\r\n|\r|\n")
    had, has = set(breaks.findall(before.text)), set(breaks.findall(after.text))
    assert has <= had or not had, f"line ends {has - had} were added"
    if before.text.endswith(("\r", "\n")):
        assert after.text.endswith(("\r", "\n")), "the final line end is gone"
    elif not LAST_AFTER_BLANK.search(before.text):  # else a blank line may be the last one now
        assert not after.text.endswith(("\r", "\n")), "a final line end was added"
    areas, pieces = [], []
    for entry in before.entries:
        if entry.path in touched or (entry.path in filled and (entry.flow or entry.leaf)):
            areas.append(entry.area)
        elif entry.leaf and not any(entry.path[: len(path)] == path for path in touched):
            pieces.append(before.text[entry.start : entry.end])
    if before.entries and (() in filled or any(len(path) == 1 for path in touched)):
        first = before.entries[0]
        areas += [first.area] if first.area != (first.start, first.end) else []
    newline = breaks.search(before.text)
    end = newline.group() if newline else "\n"
    rest = iter(after.lines(end))
    for line in before.lines(end, without=areas):
        assert any(line == one for one in rest), f"the line {line!r} is not there any more, or has moved"
    position = 0
    for piece in pieces:
        found = after.text.find(piece, position)
        assert found >= 0, f"{piece!r} is not there any more, or has moved"
        position = found + len(piece)


def right_or_refused(conversion: Conversion, before: Source | None, after: Source | None) -> None:
    """Promise 3: a converted file is read by its framework, and differs only where FSDP is set; else no change."""
    errors = [one for one in conversion.report.findings if one.severity == "error"]
    status = conversion.report.status
    assert (status in ("refused", "error")) == bool(errors), (status, errors)
    assert conversion.changed == (status == "converted"), status
    if status != "converted":
        return
    assert before is not None, "converted, although the framework does not read the file"
    assert after is not None, "the framework does not read the result"
    old = {key: value for key, value in before.data.items() if key not in MAY_CHANGE}
    new = {key: value for key, value in after.data.items() if key not in MAY_CHANGE}
    assert repr(old) == repr(new)


def second_run_changes_nothing(conversion: Conversion, name: str, choices: Choices) -> None:
    """Promise 4, and no error that the input lacked."""
    if not conversion.changed:
        return
    # what runs the converted file is the release it was converted for
    again = convert_text(conversion.text, name, Choices(trust_stated=choices.trust_stated, no_shard=choices.no_shard))
    errors = [one for one in again.report.findings if one.severity == "error"]
    assert not errors, f"the result has errors: {errors}"
    assert again.text == conversion.text, "a second run changes the text"
    assert again.report.status in ("already-fsdp2", "not-fsdp", "unchanged"), again.report.status


# Generated files


@dataclass(frozen=True)
class Plain:
    """A scalar written in YAML without quotes, whatever it then means."""

    text: str


@dataclass(frozen=True)
class Layout:
    """How a text is laid out. `form`: block, flow (one line), spread (flow over lines) or json.

    busy: with comments, blank lines, quotes and odd spellings; tame: no comments inside flow
    collections, no values left out.
    """

    form: str
    step: int
    newline: str
    bom: bool
    final: bool
    start: str
    busy: bool
    tame: bool = False


RANDOM = st.randoms(use_true_random=True)
"""For what need not shrink: the examples differ more, and one seed is cheaper than hundreds of draws."""

LAYOUTS = st.builds(
    Layout,
    form=st.sampled_from(["block"] * 5 + ["flow", "spread", "json"]),
    step=st.sampled_from([2, 2, 2, 4, 3]),
    newline=st.sampled_from(["\n", "\n", "\n", "\r\n", "\r\n", "\r"]),
    bom=st.sampled_from([False, False, False, True]),
    final=st.sampled_from([True, True, False]),
    start=st.sampled_from(["", "", "", "---\n", "%YAML 1.1\n---\n", "\n\n", "# first\n--- # start\n"]),
    busy=st.sampled_from([False, True, True, True]),
)
ASIDES = ("note", "it's", 'a "quote"', "key: value", "# twice", "fsdp_version: 2", "ünï 🙂", "", "]}", "a\ttab", "| >")
BOOL_WORDS = {True: ("true", "True", "yes", "on"), False: ("false", "False", "no", "off")}


class Renderer:
    """Writes data as a text, with comments, blank lines and quotes thrown in where the layout is busy."""

    def __init__(self, rng: Random, layout: Layout) -> None:
        self.rng = rng
        self.layout = layout
        self.count = 0

    def text(self, data: dict[str, Any]) -> str:
        layout = self.layout
        if layout.form == "json":
            body = json.dumps(data, indent=self.pick([None, 2, 4, "\t"]), ensure_ascii=self.pick([True, False]))
            lines = body.split("\n")
        elif layout.form == "block":
            lines = [*layout.start.split("\n")[:-1], *self.block(data, ""), *self.above("")]
        else:
            lines = [*layout.start.split("\n")[:-1], *self.flow(data, "").split("\n"), *self.above("")]
        return ("\ufeff" if layout.bom else "") + layout.newline.join(lines) + (layout.newline if layout.final else "")

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.rng.choice(choices) if self.layout.busy else choices[0]

    def seldom(self, odds: int) -> bool:
        return self.layout.busy and self.rng.randrange(odds) == 0

    def comment(self) -> str:
        self.count += 1
        return f"#{self.pick(['', ' '])}{self.count} {self.pick(ASIDES)}".rstrip()

    def above(self, indent: str) -> list[str]:
        """Blank lines and comment lines before an entry."""
        lines = []
        while self.seldom(6):
            lines.append(
                self.pick(["", "  ", indent + self.comment(), self.comment(), indent + "   " + self.comment()])
            )
        return lines

    def aside(self) -> str:
        """A comment at the end of a line, or none."""
        return self.pick([" ", "   "]) + self.comment() if self.seldom(5) else self.pick(["", "", "", " "])

    def block(self, data: dict[str, Any], indent: str) -> list[str]:
        lines: list[str] = []
        for name, value in data.items():
            lines += self.above(indent)
            head = f"{indent}{self.key(name)}{self.pick(['', '', '', '', '', ' '])}:"
            inner = indent + " " * self.layout.step
            if isinstance(value, dict) and value and not self.seldom(8):
                lines += [head + self.aside(), *self.block(value, inner)]
            elif isinstance(value, list) and value and self.seldom(2):
                dash = self.pick([indent, inner]) + "- "
                lines.append(head + self.aside())
                for item in value:
                    lines += [*self.above(inner), dash + self.scalar(item, "") + self.aside()]
            elif isinstance(value, str) and value and re.fullmatch(r"[\w,. ]*\w", value) and self.seldom(12):
                lines += [f"{head} {self.pick(['|', '>-', '|-'])}{self.aside()}", inner + value]
            else:
                lines += (head + self.value(value, inner) + self.aside()).split("\n")
        return lines

    def value(self, value: Any, indent: str) -> str:
        """A value with the blanks before it, for behind a colon; nothing at all for null now and then."""
        if value is None and not self.layout.tame and self.seldom(2):
            return ""
        return self.pick([" ", " ", " ", "  "]) + self.scalar(value, indent)

    def key(self, name: str) -> str:
        quoted = [json.dumps(name), "'" + name.replace("'", "''") + "'"]
        plain = re.fullmatch(r"[A-Za-z_]\w*", name) and yaml.safe_load(name) == name
        return str(self.pick([name] * 10 + quoted if plain else quoted))

    def scalar(self, value: Any, indent: str) -> str:
        if isinstance(value, Plain):
            return value.text
        if isinstance(value, bool):
            return str(self.pick(BOOL_WORDS[value]))
        if value is None:
            return str(self.pick(["null", "~", "Null"]))
        if isinstance(value, str):
            quoted = [json.dumps(value), json.dumps(value, ensure_ascii=False), "'" + value.replace("'", "''") + "'"]
            plain = re.fullmatch(r"[A-Za-z_][\w.,/-]*(?<!,)", value) and yaml.safe_load(value) == value
            in_flow = "," in value
            return str(self.pick([value] * 6 + quoted if plain and not in_flow else quoted))
        if isinstance(value, dict):
            return self.flow(value, indent)
        if isinstance(value, list):
            items = [self.scalar(item, indent) for item in value]
            if self.layout.form == "json" or self.layout.tame or not (value and self.seldom(3)):
                return "[" + ", ".join(items) + "]"
            return "[" + "".join(f"\n{indent}{item},{self.aside()}" for item in items) + f"\n{indent}]"
        return str(value)

    def flow(self, data: dict[str, Any], indent: str) -> str:
        spread = data and (self.layout.form == "spread" or (self.layout.form == "block" and self.seldom(3)))
        inner = indent + " " * self.layout.step
        pieces = [f"{self.key(name)}:{self.value(value, inner)}" for name, value in data.items()]
        if not spread:
            return "{" + self.pick(["", "", " "]) + ", ".join(pieces) + self.pick(["", "", " "]) + "}"
        lines = [""]
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            if not self.layout.tame:
                lines += self.above(inner)
            comma = "" if last and not (self.seldom(4) and not self.layout.tame) else ","
            lines.append(inner + piece + comma + ("" if self.layout.tame else self.aside()))
        return "{" + "\n".join(lines) + "\n" + (indent or self.pick(["", " "])) + "}"


FLAGS = (True, False, True, False, "true", "FALSE", 1, 0, "1", "no")
SIZES = (1, 2, 4, 8)
OPTIONS: dict[str, Sequence[Any]] = {
    "fsdp_version": (1, 1, 1, 2, 2, "1", "2"),
    "fsdp_sharding_strategy": (
        "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO2", "full_shard",
        "NO_SHARD", 1, 2, 4, "2", "ShardingStrategy.FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP",
    ),
    "fsdp_reshard_after_forward": (True, False, True, False, "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", 1, "yes"),
    "fsdp_auto_wrap_policy": (
        "TRANSFORMER_BASED_WRAP", "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP", "transformer_based_wrap",
    ),
    "fsdp_transformer_layer_cls_to_wrap": (
        "LlamaDecoderLayer", "BlockA,BlockB", "BlockA, BlockB", ["BlockA", "BlockB"], "a.b.Block", "BlockA,BlockA", "",
    ),
    "fsdp_min_num_params": (100000000, 0, "2000", Plain("1e8"), Plain("1_000"), 2000.0),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH", "backward_pre", 1),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT", "sharded_state_dict", 3),
    "fsdp_ignored_modules": (".*head", "lm_head|embed", ""),
    **{
        f"fsdp_{name}": FLAGS
        for name in (
            "offload_params", "forward_prefetch", "use_orig_params", "sync_module_states", "limit_all_gathers",
            "cpu_ram_efficient_loading", "activation_checkpointing", "activation_checkpointing_offload",
        )
    },
}  # fmt: skip
ODD_KEYS: dict[str, Sequence[Any]] = {
    "fsdp_backward_prefetch_policy": OPTIONS["fsdp_backward_prefetch"],
    "fsdp_transformer_cls_to_wrap": OPTIONS["fsdp_transformer_layer_cls_to_wrap"],
    "fsdp_cpu_offload": FLAGS,
    "fsdp_shading_strategy": ("FULL_SHARD",),
    "sharding_strategies": ("FULL_SHARD", 7),
    "fsdp_ünknown": (None, "x"),
    "my key: with #": ({"a": 1}, [1, "b"], "text"),
}
ODD_VALUES = (
    None, None, "", "nonsense", 2.5, -1, 10**30, [], {}, ["A", "B"], {"a": {"b": None}}, "${VAR}", "{{ var }}",
    "it's", " # no comment", "a: b", "🙂", "two\nlines", Plain("010"), Plain("0x1F"), Plain("1:30"),
    Plain("2024-01-01"), Plain("y"), Plain(".inf"), Plain("FULL_SHARD#1"),
)  # fmt: skip
TOP_LEVEL: dict[str, Sequence[Any]] = {
    "compute_environment": ("LOCAL_MACHINE",),
    "debug": FLAGS,
    "downcast_bf16": ("no", "no", False),
    "dynamo_config": ({"dynamo_backend": "INDUCTOR", "dynamo_mode": "default"}, {}),
    "commands": (None, ["echo 'a # b'", "x: y"], []),
    "gpu_ids": ("all", "0,1", Plain("0,1")),
    "machine_rank": (0, 1),
    "main_process_ip": ("10.0.0.1", None, "::1"),
    "main_training_function": ("main",),
    "rdzv_backend": ("static", "c10d"),
    "tpu_env": ([], ["A=1"]),
    "use_cpu": (False,),
    "zzz_own": ("two\nlines", Plain("2024-01-01"), {"a": {"b": [1, 2], "c": None}}, "💥", Plain("1e3")),
}
BESIDE: dict[str, Sequence[Any]] = {
    "mixed_precision": ("bf16", "bf16", "fp16", "no", False, "BF16", "fp8", "tf32", None),
    "fp16": (True, False),
    "num_processes": (8, 16, 4, "8", None, 7),
    "num_machines": (1, 2, 2, "2", 0, None),
}


def _values(draw: Draw, options: dict[str, Sequence[Any]], least: int, most: int) -> list[tuple[str, Any]]:
    names = draw(st.lists(st.sampled_from(list(options)), unique=True, min_size=least, max_size=most))
    return [(name, draw(st.sampled_from(options[name]))) for name in names]


def _fsdp_block(draw: Draw) -> Any:
    shape = draw(st.sampled_from(["mapping"] * 18 + ["none", "empty", "odd"]))
    if shape != "mapping":
        return {"none": None, "empty": {}, "odd": draw(st.sampled_from(ODD_VALUES))}[shape]
    entries = _values(draw, OPTIONS, 1, len(OPTIONS))
    if draw(st.integers(0, 2)) == 0:
        entries += _values(draw, ODD_KEYS, 1, 2)
    if draw(st.integers(0, 3)) == 0:
        index = draw(st.integers(0, len(entries) - 1))
        entries[index] = (entries[index][0], draw(st.sampled_from(ODD_VALUES)))
    if draw(st.integers(0, 5)) == 0:
        entries = [(name.removeprefix("fsdp_"), value) for name, value in entries]
    entries = sorted(entries) if draw(st.booleans()) else draw(st.permutations(entries))
    return dict(entries)


def _mesh(draw: Draw) -> Any:
    if draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from([None, {}, "text", []]))
    sizes = {f"parallelism_config_{axis}_size": (*SIZES, *SIZES, None, "2", "x") for axis in AXES}
    other = {"parallelism_config_cp_backend": ("torch",), "parallelism_config_own": (1,)}
    return dict(_values(draw, {**sizes, **other}, 1, 4))


@st.composite
def accelerate_files(draw: Draw) -> tuple[str, str]:
    """Name and text of a file for ``accelerate launch``: mostly sound, with an oddity now and then."""
    blocks = [("fsdp_config", _fsdp_block(draw))]
    if draw(st.integers(0, 3)) == 0:
        blocks.append(("parallelism_config", _mesh(draw)))
    switch = draw(st.sampled_from(["FSDP"] * 16 + ["MULTI_GPU", "fsdp", None]))
    blocks += [("distributed_type", switch)] if draw(st.integers(0, 15)) else []
    entries = [*blocks, *_values(draw, BESIDE, 0, 4), *_values(draw, TOP_LEVEL, 0, 8)]
    data = dict(sorted(entries) if draw(st.booleans()) else draw(st.permutations(entries)))
    layout = draw(LAYOUTS)
    if layout.form == "json":
        data = json.loads(json.dumps(data, default=lambda plain: plain.text))
    return f"config.{'json' if layout.form == 'json' else 'yaml'}", Renderer(draw(RANDOM), layout).text(data)


CHOICES = st.one_of(
    st.just(Choices()),
    st.builds(
        Choices,
        came_from=st.sampled_from(["", "0.21.0", "0.33.0", "1.5.2", "1.8.1"]).map(
            lambda text: {"accelerate": release(text)} if text else {}
        ),
        runs_on=st.sampled_from(["", "", "1.6.0", "1.10.1", "1.15.0"]).map(
            lambda text: {"accelerate": release(text)} if text else {}
        ),
        trust_stated=st.booleans(),
        no_shard=st.sampled_from([None, "ddp", "replicate"]),
        gpus_per_node=st.sampled_from([None, None, 4]),
    ),
)


def test_generated_files_keep_the_promises() -> None:
    """Files as people write them; that enough of them are converted shows that the property says something."""
    statuses: Counter[str] = Counter()

    @examples(500)
    @given(accelerate_files(), CHOICES)
    def check(file: tuple[str, str], choices: Choices) -> None:
        name, text = file
        assert read(text, name) is not None, "the generator wrote something that is no file"
        statuses[keep_promises(text, name, choices).report.status] += 1

    check()
    assert statuses["converted"] > sum(statuses.values()) / 4, statuses


@examples(100)
@given(accelerate_files(), st.booleans())
def test_generated_files_become_documents(file: tuple[str, str], trust: bool) -> None:
    """Promise 1 for the other way out, a document: nothing vanishes there either, and it is read back as written."""
    name, text = file
    choices = Choices(to="torch", trust_stated=trust, no_shard="replicate")
    conversion, source = convert_text(text, name, choices), read(text, name)
    shown(conversion)
    assert source is not None
    if conversion.report.dialect == "accelerate":
        nothing_vanishes(conversion, source, None)
    if conversion.report.status == "converted":
        made = read(conversion.text, name)
        assert made is not None and made.data == conversion.configs["fsdp"].dump()
        again = convert_text(conversion.text, name, choices)
        assert (again.report.status, again.text) == ("already-fsdp2", conversion.text)


# Mutated fixtures


def _fixtures() -> Iterator[tuple[str, str]]:
    """Name and text of every fixture that is a text of ordinary length."""
    for case in CASES:
        data = case.before.read_bytes()
        if case.name.startswith("accelerate/") and len(data) < 5000:
            with contextlib.suppress(UnicodeDecodeError):
                yield case.before.name, data.decode("utf-8")


FIXTURES = list(_fixtures())
INSERTED = (
    " ", "\t", "\n", "\r", "\n\n", "#", " #", ":", ": ", "- ", "? ", "&a ", "*a", "!!str ", "!x ", "|", ">", "'", '"',
    "{", "}", "[", "]", ",", "%", "@", "`", "\\", "\x00", "\x07", "\x85", "\u2028", "\ufeff", "é", "🙂", "~", "null",
    "0", "=", "<<: ", "---\n", "...\n", "${X}", "{{ x }}", "no", "fsdp_version: 2\n", "  fsdp_version: 2\n",
    "  sharding_strategy: FULL_SHARD\n",
)  # fmt: skip
CHANGES = (
    "comment line", "comment line", "comment", "comment", "blank line", "line end", "line ends", "swap",
    "delete line", "double line", "foreign line", "delete characters", "insert", "insert", "indent", "outdent",
    "quote value", "odd value", "odd value", "mark", "no final line end", "truncate",
)  # fmt: skip


def _mutated(rng: Random, text: str, count: int) -> str:
    """One small accident, most of them on one line; `count` numbers an added comment."""
    lines = text.splitlines(keepends=True) or [""]
    index = rng.randint(0, len(lines) - 1)
    line = lines[index]
    body = line.rstrip("\r\n")
    ending = line[len(body) :]
    at = rng.randint(0, len(body))
    change = rng.choice(CHANGES)
    if change == "comment line":
        lines[index] = f"{rng.choice(['', '  ', '      '])}# extra {count}\n{line}"
    elif change == "comment":
        lines[index] = f"{body}{rng.choice([' ', '  '])}# extra {count}{ending}"
    elif change == "blank line":
        lines[index] = rng.choice(["\n", "  \n", "\r\n"]) + line
    elif change == "line end":
        lines[index] = body + rng.choice(["\r\n", "\r", "\n", ""])
    elif change == "line ends":
        end = rng.choice(["\r\n", "\r"])
        lines = [one.rstrip("\r\n") + end for one in lines]
    elif change == "swap":
        other = rng.randint(0, len(lines) - 1)
        lines[index], lines[other] = lines[other], line
    elif change == "delete line":
        del lines[index]
    elif change == "double line":
        lines.insert(rng.randint(0, len(lines)), line)
    elif change == "delete characters":
        lines[index] = body[:at] + body[at + rng.randint(1, 3) :] + ending
    elif change == "insert":
        lines[index] = body[:at] + rng.choice(INSERTED) + body[at:] + ending
    elif change == "indent":
        lines[index] = rng.choice([" ", "  ", "\t"]) + line
    elif change == "outdent":
        lines[index] = line.removeprefix("  ")
    elif change == "foreign line":
        foreign = rng.choice(FIXTURES)[1].splitlines(keepends=True)
        lines.insert(index, rng.choice(foreign or [""]))
    elif change == "quote value":
        lines[index] = re.sub(r": (\w+)$", rng.choice([r": '\1'", r': "\1"', r": \1,", r": [\1]"]), body) + ending
    elif change == "odd value":
        odd = rng.choice(ODD_VALUES + tuple(value for values in OPTIONS.values() for value in values))
        written = odd.text if isinstance(odd, Plain) else json.dumps(odd)
        lines[index] = re.sub(r": [^,{}]*", lambda _: f": {written}", body) + ending
    elif change == "mark":
        return text.removeprefix("\ufeff") if text.startswith("\ufeff") else "\ufeff" + text
    elif change == "no final line end":
        return text.rstrip("\r\n")
    elif change == "truncate":
        return "".join(lines[:index]) + body[:at]
    return "".join(lines)


@st.composite
def mutated_fixtures(draw: Draw) -> tuple[str, str]:
    """Name and text of a fixture with one to four changes."""
    rng = draw(RANDOM)
    name, text = rng.choice(FIXTURES)
    for count in range(draw(st.integers(1, 4))):
        text = _mutated(rng, text, count)
    return name, text


def test_mutated_fixtures_keep_the_promises() -> None:
    """Fixtures after an accident: lines lost, doubled or swapped, odd characters, values, comments, line ends."""
    statuses: Counter[str] = Counter()

    @examples(800)
    @given(mutated_fixtures(), CHOICES)
    def check(file: tuple[str, str], choices: Choices) -> None:
        name, text = file
        statuses[keep_promises(text, name, choices).report.status] += 1

    check()
    assert statuses["converted"] > sum(statuses.values()) / 5, statuses


# Anything else


WORDS = (
    "distributed_type: FSDP\n", "fsdp_config:\n", "fsdp_config: ", "  fsdp_sharding_strategy: FULL_SHARD\n",
    "fsdp_sharding_strategy: HYBRID_SHARD", "num_machines: 2\n", "num_processes: 16\n", "  - ", '"fsdp_config": {',
    "  a: 1\n", "parallelism_config:", "mixed_precision: no\n", "fsdp: full_shard\n", "1" * 4400, "0x" + "f" * 3900,
    "\\ud800", '"\\ud800"', "NaN", "{}", "[]", "  ", "//", "[" * 60, "<<<<<<< a\n", ">>>>>>> b\n", "=======\n",
)  # fmt: skip
NOISE = st.one_of(
    st.text(),
    st.text(st.characters(codec=None, exclude_categories=())),
    st.lists(st.sampled_from(WORDS + INSERTED), max_size=25).map("".join),
    st.text("{}[]:,'\"\n\r\t #-?&*!|>%@0x_.eE\\u"),
)
NAMES = st.sampled_from(["a.yaml", "a.json", "-", "a.txt", "a.jsonc"])


@examples(400)
@given(NOISE, NAMES)
def test_no_text_raises(text: str, name: str) -> None:
    conversion = convert_text(text, name, Choices())
    assert conversion.changed == (conversion.report.status == "converted")
    shown(conversion)


@examples(250)
@given(st.one_of(st.binary(), NOISE.map(lambda text: text.encode("utf-8", "replace"))), NAMES, st.booleans())
def test_no_bytes_raise(data: bytes, name: str, trust: bool) -> None:
    shown(convert_bytes(data, name, Choices(trust_stated=trust)))


@examples(150)
@given(mutated_fixtures(), st.integers(0), st.binary(min_size=1, max_size=2), CHOICES)
def test_no_damaged_fixture_raises(file: tuple[str, str], at: int, junk: bytes, choices: Choices) -> None:
    name, text = file
    data = text.encode("utf-8")
    at %= len(data) + 1
    shown(convert_bytes(data[:at] + junk + data[at + 1 :], name, choices))


# Edits


KEYS = st.sampled_from(["a", "b", "c_d", "fsdp_x", "e f", "é", "no", "1", "x#y", "Z", "it's", "a.b"])
HARD_TEXTS = (
    "a", "no", "null", "1", "1e3", "0x1", "a: b", "x #y", "#", "- a", "A,B", "'", '"', "é", "", " ", "y", "~", "{a}",
)  # fmt: skip
TEXTS = st.one_of(st.sampled_from(HARD_TEXTS), st.text(max_size=8))
SCALARS = st.one_of(TEXTS, st.booleans(), st.none(), st.integers(-(10**6), 10**20))
PRINTABLE = SCALARS.filter(lambda one: not isinstance(one, str) or one.isprintable())
DATA = st.dictionaries(
    KEYS,
    st.recursive(
        PRINTABLE,
        lambda inner: st.one_of(st.dictionaries(KEYS, inner, max_size=4), st.lists(PRINTABLE, max_size=3)),
        max_leaves=12,
    ),
    min_size=1,
    max_size=7,
)


@dataclass(frozen=True)
class Task:
    """A text, edits of it, and the data that it has to hold afterwards."""

    name: str
    text: str
    edits: tuple[Edit, ...]
    intended: Any

    @property
    def touched(self) -> list[Path]:
        return [tuple(map(str, edit.path)) for edit in self.edits if not isinstance(edit, Insert)]

    @property
    def filled(self) -> list[Path]:
        return [tuple(map(str, edit.parent)) for edit in self.edits if isinstance(edit, Insert)]


def _mappings(data: dict[str, Any], path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    yield path, data
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _mappings(value, (*path, name))


def _edit(draw: Draw, path: Path, holder: dict[str, Any], fresh: str, values: st.SearchStrategy[Any]) -> Edit:
    """Draw one edit of a mapping and carry it out on the data."""
    several = st.dictionaries(KEYS, values, min_size=1, max_size=3)
    kind = draw(st.sampled_from(["set", "rename", "delete", "insert"])) if holder else "insert"
    if kind == "insert":
        holder[fresh] = draw(st.one_of(values, values, several))
        return Insert(path, fresh, holder[fresh])
    name = draw(st.sampled_from(list(holder)))
    if kind == "set":
        plain = not isinstance(holder[name], (dict, list)) or not holder[name]
        holder[name] = draw(st.one_of(values, several) if plain else values)
        return SetValue((*path, name), holder[name])
    if kind == "rename":
        holder[fresh] = holder.pop(name)
        return RenameKey((*path, name), fresh)
    del holder[name]
    return Delete((*path, name))


@st.composite
def tasks(draw: Draw, values: st.SearchStrategy[Any], tame: bool) -> Task:
    """One to four edits, each in another mapping, none inside another."""
    layout = replace(draw(LAYOUTS), tame=tame)
    text = Renderer(draw(RANDOM), layout).text(draw(DATA))
    name = "a.json" if layout.form == "json" else "a.yaml"
    source = read(text, name)
    assert source is not None, "the generator wrote something that is no file"
    intended = copy.deepcopy(source.data)
    edits: list[Edit] = []
    gone: list[Path] = []
    for path, holder in reversed(list(_mappings(intended))):
        whole = any(edit.path[: len(path)] == path for edit in edits if not isinstance(edit, Insert))
        if whole or len(edits) > 3 or (edits and draw(st.booleans())):
            continue
        if any(one[: len(path)] == path for one in gone) or not (holder or not path):
            continue
        edits.append(_edit(draw, path, holder, f"new_{len(edits)}", values))
        gone.append(path)
    return Task(name, text, tuple(edits), intended)


def _holds(task: Task, new: str) -> None:
    before, after = read(task.text, task.name), read(new, task.name)
    assert before is not None and after is not None, "the framework does not read the result"
    assert canonical(after.data) == canonical(task.intended)
    same_outside(before, after, task.touched, task.filled)
    assert new.startswith("\ufeff") == task.text.startswith("\ufeff"), "byte order mark"


def _apply(task: Task) -> str:
    return apply_edits(parse(task.text, "json" if task.name.endswith("json") else "yaml"), task.edits).source


@examples(400)
@given(tasks(SCALARS, tame=False))
def test_an_edit_is_right_or_refused(task: Task) -> None:
    """Whatever the document and the values: the data are as intended and the rest is untouched, or it raises."""
    try:
        new = _apply(task)
    except TextError:
        return
    _holds(task, new)


@examples(300)
@given(tasks(PRINTABLE, tame=True))
def test_an_edit_of_plain_entries_is_done(task: Task) -> None:
    """Refusing is no way out where nothing stands in the way; only the last entry of a mapping may not go."""
    if any(isinstance(edit, Delete) for edit in task.edits):
        try:
            new = _apply(task)
        except TextError as error:
            assert "no entry of this mapping would be left" in error.message
            return
    else:
        new = _apply(task)
    _holds(task, new)
