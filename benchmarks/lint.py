"""What `fsdp-migrate lint` finds in real files, beside a peer, and how fast it walks a large tree.

    python benchmarks/lint.py findings FOLDER...       findings per rule
    python benchmarks/lint.py sample FOLDER... --seed N [--size 60]
                                                       findings to be judged by hand, drawn at random
    python benchmarks/lint.py peer FOLDER...           accelerate FSDP2 files, against peft-doctor's fsdp-check
    python benchmarks/lint.py speed [--runs N]         10,000 YAML files, against yamllint

`sample` draws among warnings and errors and lets no rule take more than a third. `peer` sorts files into clean
and half-migrated by their keys alone, with PyYAML, so that neither tool is judge of itself. Nothing is written
but the tree of `speed`, which goes into a temporary folder and is the same on every machine.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

SCRIPTS = Path(sys.executable).parent
# an installed package has its byte code stored; see cli.py
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

FSDP1_KEYS = frozenset(
    (
        "sharding_strategy",
        "use_orig_params",
        "backward_prefetch",
        "backward_prefetch_policy",
        "forward_prefetch",
        "sync_module_states",
        "limit_all_gathers",
    )
)
FSDP2_KEYS = frozenset(
    (
        "version",
        "reshard_after_forward",
        "offload_params",
        "auto_wrap_policy",
        "transformer_layer_cls_to_wrap",
        "min_num_params",
        "cpu_ram_efficient_loading",
        "state_dict_type",
        "activation_checkpointing",
        "activation_checkpointing_offload",
        "ignored_modules",
    )
)


def linted(folders: list[Path]) -> list[dict[str, Any]]:
    """The `files` of the JSON report."""
    command = [str(SCRIPTS / "fsdp-migrate"), "lint", "--format", "json", *map(str, folders)]
    done = subprocess.run(command, capture_output=True, env=ENVIRONMENT, check=False)
    if done.returncode not in (0, 1):
        print(done.stderr.decode(), file=sys.stderr)
    files: list[dict[str, Any]] = json.loads(done.stdout)["files"]
    return files


def findings(folders: list[Path]) -> None:
    files = linted(folders)
    count = collections.Counter((one["rule"], one["severity"], one["slug"]) for f in files for one in f["findings"])
    told = sum(bool(file["findings"]) for file in files)
    print(f"{len(files)} files that mention FSDP, {told} with findings, {sum(count.values())} findings\n")
    for (rule, severity, slug), number in sorted(count.items()):
        print(f"{number:5} {rule} {severity:8}{slug}")


def sample(folders: list[Path], seed: int, size: int) -> None:
    """Findings in an order that `seed` alone decides, the first `size` that keep every rule below a third."""
    pool = [(file["path"], one) for file in linted(folders) for one in file["findings"] if one["severity"] != "info"]
    pool.sort(key=lambda row: (Path(row[0]).name, row[1]["rule"], row[1]["line"] or 0, row[1]["column"] or 0))
    random.Random(seed).shuffle(pool)
    taken: collections.Counter[str] = collections.Counter()
    chosen = []
    for path, one in pool:
        if len(chosen) < size and taken[one["rule"]] < size // 3:
            taken[one["rule"]] += 1
            chosen.append((path, one))
    for number, (path, one) in enumerate(chosen, 1):
        print(f"{number:3} {path}:{one['line'] or 0} {one['rule']} {one['severity']}: {one['message']}")
    print(f"\n{len(chosen)} of {len(pool)} findings, seed {seed}: {dict(taken.most_common())}")


def kind_of(path: Path) -> str:
    """`clean`, `half-migrated` or empty: whether the keys are those of an accelerate FSDP2 file."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        block = data["fsdp_config"]
        keys = [key.removeprefix("fsdp_") for key in block]
        version = block.get("fsdp_version", block.get("version"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        return ""
    if data.get("distributed_type") != "FSDP" or str(version) != "2":
        return ""
    if FSDP1_KEYS & set(keys):
        return "half-migrated"
    return "clean" if set(keys) <= FSDP2_KEYS and len(set(keys)) == len(keys) else ""


def theirs(path: Path) -> list[str]:
    """Severities of peft-doctor's findings."""
    from peft_doctor.modern import check_fsdp_config

    return [issue.severity for issue in check_fsdp_config(path).issues]


def peer(folders: list[Path]) -> None:
    files = {file["path"]: [one["severity"] for one in file["findings"]] for file in linted(folders)}
    rows: dict[str, list[tuple[list[str], list[str]]]] = {"clean": [], "half-migrated": []}
    for name, ours in files.items():
        kind = kind_of(Path(name))
        if kind:
            rows[kind].append((ours, theirs(Path(name))))
    clean, half = rows["clean"], rows["half-migrated"]
    print(f"{'':44}{'fsdp-migrate lint':>18}{'peft-doctor':>13}")
    for word, severities in (("an error", ("error",)), ("an error or a warning", ("error", "warning"))):
        counts = [sum(any(one in severities for one in row[i]) for row in clean) for i in (0, 1)]
        print(f"{f'clean files with {word}, of {len(clean)}':44}{counts[0]:18}{counts[1]:13}")
    passed = [sum(not any(one in ("error", "warning") for one in row[i]) for row in half) for i in (0, 1)]
    print(f"{f'half-migrated files that pass, of {len(half)}':44}{passed[0]:18}{passed[1]:13}")


def tree(root: Path, files: int, about_fsdp: int) -> None:
    """Deployments, hyperparameters and pipelines as repositories hold them; every n-th file mentions FSDP."""
    draw = random.Random(20261201)
    every = files // about_fsdp
    for number in range(files):
        folder = root / f"team-{number % 20:02}" / f"project-{number // 20 % 25:02}"
        folder.mkdir(parents=True, exist_ok=True)
        text = _fsdp(number // every, draw) if number % every == 0 else _other(draw)
        (folder / f"config-{number:05}.yaml").write_text(text, encoding="utf-8")


def _other(draw: random.Random) -> str:
    lines = ["---", f"name: job-{draw.randrange(10**6)}", "steps:"]
    for step in range(draw.randrange(5, 25)):
        lines += [f"  - id: step-{step}", f"    image: images.example.org/train:{draw.randrange(999)}", "    args:"]
        lines += [f"      learning_rate: {draw.random():.6f}", f"      batch_size: {2 ** draw.randrange(10)}"]
    return "\n".join([*lines, ""])


def _fsdp(number: int, draw: random.Random) -> str:
    head = f"---\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: {2 ** draw.randrange(1, 5)}\n"
    common = "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
    if number % 4 == 0:
        return _other(draw) + "# trains with FSDP\n"
    if number % 4 == 1:
        return head + "fsdp_config:\n" + common + "  fsdp_sharding_strategy: FULL_SHARD\n"
    return head + "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n" + common


def seconds(command: list[str], folder: str) -> tuple[float, float]:
    """Elapsed time of a process, and processor time of it and its children."""
    start = time.perf_counter()
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, stdout=nowhere, stderr=nowhere, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        sys.exit(f"failed: {' '.join(command)}")
    return elapsed, usage.ru_utime + usage.ru_stime


def speed(runs: int, files: int = 10_000, about_fsdp: int = 200) -> None:
    ours = [str(SCRIPTS / "fsdp-migrate"), "lint", "."]
    peers = [str(SCRIPTS / "yamllint"), "."]
    with tempfile.TemporaryDirectory() as folder:
        tree(Path(folder), files, about_fsdp)
        seconds(ours, folder)
        times = {
            "fsdp-migrate lint": [seconds(ours, folder) for _ in range(runs)],
            "yamllint": [seconds(peers, folder)],
        }
    print(f"{files} YAML files, {about_fsdp} mention FSDP; {os.cpu_count()} cores; medians of {runs} runs and of 1\n")
    print(f"{'':20}{'elapsed, s':>12}{'processor, s':>14}")
    medians = {name: [statistics.median(run[i] for run in rows) for i in (0, 1)] for name, rows in times.items()}
    for name, (elapsed, processor) in medians.items():
        print(f"{name:20}{elapsed:12.2f}{processor:14.2f}")
    ratios = [medians["yamllint"][i] / medians["fsdp-migrate lint"][i] for i in (0, 1)]
    print(f"{'ratio':20}{ratios[0]:12.1f}{ratios[1]:14.1f}")
    print(f"\nfastest of ours: {min(times['fsdp-migrate lint'])[0]:.2f} s")


def folders_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path)


def parser_of_command() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    folders_of(what.add_parser("findings"))
    drawn = what.add_parser("sample")
    folders_of(drawn)
    drawn.add_argument("--seed", type=int, required=True)
    drawn.add_argument("--size", type=int, default=60)
    folders_of(what.add_parser("peer"))
    what.add_parser("speed").add_argument("--runs", type=int, default=5)
    return parser


def main() -> None:
    options = parser_of_command().parse_args()
    if options.what == "findings":
        findings(options.folders)
    elif options.what == "sample":
        sample(options.folders, options.seed, options.size)
    elif options.what == "peer":
        peer(options.folders)
    else:
        speed(options.runs)


if __name__ == "__main__":
    main()
