"""Convert every file below a folder and count what a user would care about.

    python benchmarks/corpus.py FOLDER [--incumbent] [--list]

Nothing is written. `crashes`, `changed outside edited entries` and `second-run changes` must be 0.
Bytes outside edited entries are judged with PyYAML's own offsets, not with this tool's parser.
`--incumbent` runs accelerate's converter on the same files, in memory.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import yaml
from fsdp_migrate import Choices
from fsdp_migrate.pipeline import Conversion, convert_bytes

SUFFIXES = (".yaml", ".yml", ".json")
EDITED = ("fsdp_config", "parallelism_config", "distributed_type", "mixed_precision", "fsdp")
EDITED += (
    "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_min_num_params",
    "fsdp_version",
    "dp_replicate_size",
    "dp_shard_size",
)


def outside(text: str, whole: bool) -> str:
    """The text without the entries that may be edited, and without blanks and separators.

    Entries of the edited blocks are cut out by PyYAML's marks, comments stay: they must survive.
    `whole`: the file is one block.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    cuts: list[tuple[int, int]] = []
    for key, value in root.value:
        if key.value not in EDITED and not whole:
            continue
        cuts.append((key.start_mark.index, key.end_mark.index))
        inner = value.value if isinstance(value, yaml.MappingNode) else [(key, value)]
        for name, item in inner:
            cuts.append((name.start_mark.index, name.end_mark.index))
            cuts += leaves(item)
    for start, end in sorted(set(cuts), reverse=True):
        text = text[:start] + text[end:]
    return "".join(char for char in text if char not in " \t\r\n,:{}[]-")


def leaves(node: Any) -> list[tuple[int, int]]:
    """The spans of all scalars below a node; flow and block punctuation is not counted anyway."""
    if isinstance(node, yaml.ScalarNode):
        return [(node.start_mark.index, node.end_mark.index)]
    children = node.value if isinstance(node, yaml.SequenceNode) else [one for pair in node.value for one in pair]
    return [span for child in children for span in leaves(child)]


def collateral(done: Conversion) -> int:
    """Bytes that differ outside the edited entries."""
    whole = done.declared is not None and not any(block.at for block in done.declared.blocks)
    before, after = (outside(text.lstrip("\ufeff"), whole) for text in (done.before, done.text))
    if before == after:
        return 0
    return max(1, abs(len(before) - len(after)))


def incumbent(text: str, suffix: str) -> str:
    """What accelerate's converter makes of the file: a word for the outcome."""
    from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2

    try:
        data = json.loads(text) if suffix == ".json" else yaml.safe_load(text)
        convert_config_to_fsdp2(data)
    except Exception as error:
        return f"crash ({type(error).__name__})"
    return "no crash"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--incumbent", action="store_true")
    parser.add_argument("--list", action="store_true", help="name the files behind each figure")
    options = parser.parse_args()
    paths = sorted(path for path in options.folder.rglob("*") if path.suffix in SUFFIXES)
    count: collections.Counter[str] = collections.Counter()
    refused: dict[str, list[str]] = collections.defaultdict(list)
    theirs: collections.Counter[str] = collections.Counter()
    keys = accounted = spent = 0.0
    bad: list[str] = []
    for path in paths:
        data = path.read_bytes()
        start = time.perf_counter()
        try:
            done = convert_bytes(data, str(path), Choices())
        except Exception:
            count["crashes"] += 1
            bad.append(f"{path}: crash")
            traceback.print_exc()
            continue
        spent += time.perf_counter() - start
        report = done.report
        count[report.status] += 1
        keys += report.keys
        accounted += len(report.outcomes)
        if report.status in ("refused", "error"):
            for rule in dict.fromkeys(f"{f.rule} {f.slug}" for f in report.findings if f.severity == "error"):
                refused[rule].append(path.name)
        if done.changed:
            lost = collateral(done)
            again = convert_bytes(done.text.encode(), str(path), Choices())
            count["bytes changed outside edited entries"] += lost
            count["second-run changes"] += again.changed
            count["results with an error finding"] += again.report.count("error") > 0
            if lost or again.changed or again.report.count("error"):
                bad.append(f"{path}: collateral {lost}, changed again {again.changed}")
        if options.incumbent:
            theirs[incumbent(data.decode("utf-8", "replace"), path.suffix)] += 1
    print(f"files {len(paths)}, {spent / max(1, len(paths)) * 1000:.1f} ms each")
    must_be_zero = (
        "crashes",
        "bytes changed outside edited entries",
        "second-run changes",
        "results with an error finding",
    )
    for name in (*dict.fromkeys(sorted(set(count) - set(must_be_zero))), *must_be_zero):
        print(f"  {name}: {count[name]}")
    print(f"  keys accounted for: {int(accounted)} of {int(keys)}")
    print("refused, by reason")
    for rule, names in sorted(refused.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"  {rule}: {len(names)}" + (f" ({', '.join(names)})" if options.list else ""))
    for name, number in theirs.items():
        print(f"incumbent: {name} {number}")
    for line in bad:
        print(line)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
