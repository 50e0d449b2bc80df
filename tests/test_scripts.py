"""Launch scripts in lint: words as bash has them, flags as accelerate's parser has them, and no guesses.

Oracles are bash itself and `accelerate launch`'s own argument parser.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cases import invoke
from fsdp_migrate import Choices
from fsdp_migrate.lint.scripts.launcher import launch
from fsdp_migrate.lint.scripts.report import script_report
from fsdp_migrate.lint.scripts.shell import read
from fsdp_migrate.lint.scripts.words import commands, values
from fsdp_migrate.releases import release
from hypothesis import given, settings
from hypothesis import strategies as st

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="bash is the oracle")


def _rules(text: str, name: str = "run.sh") -> list[tuple[str, int, int]]:
    return [(one.rule, one.line, one.column) for one in script_report(name, text, Choices()).findings]


def _found(text: str, name: str = "run.sh") -> Any:
    [finding] = script_report(name, text, Choices()).findings
    return finding


def _as_bash(words: str) -> list[str]:
    done = subprocess.run([BASH or "bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def _as_read(words: str) -> list[str]:
    [command] = read(f"printf {words}").commands
    return [word.text for word in command.words[1:]]


@needs_bash
@pytest.mark.parametrize(
    "words",
    [
        "a b  c",
        "'a b' \"c d\" e\\ f",
        "--x='1 2' --y=\"3 4\"",
        '"it\'s" \'say "hi"\' a"b"\'c\'',
        "a \\\n  b \\\n  c # d e",
        "a#b '#' \"# c\" \\# d",
        'a "x\\"y" "\\$HOME" "\\\\" "\\n"',
        '\'a\nb\' "c\nd" "e\\\nf"',
        "a 2>&1 >/dev/stdout b",
        "a b; exit 0; c",
        "$'a b' x",
        "'' \"\" a",
        "é 'ü x'",
    ],
)
def test_words_are_those_of_bash(words: str) -> None:
    text = f"printf {words}"
    assert [word.text for word in read(text).commands[0].words[1:]] == _as_bash(words)


@needs_bash
@given(st.lists(st.text("ab '\"\\-=#\n$", min_size=1, max_size=8), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_quoted_words_are_those_of_bash(parts: list[str]) -> None:
    import shlex

    words = " ".join(shlex.quote(part) for part in parts)
    assert _as_read(words) == _as_bash(words) == parts


@given(st.text("a $(){}[]<>|&;'\"\\`#=+\n-\r", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read(text: str) -> None:
    script = read(text)
    for command in script.commands:
        for word in command.words:
            assert 0 <= word.at <= len(text)
    script_report("x.sh", f"{text}\naccelerate launch --use_fsdp {text}", Choices())


@pytest.mark.parametrize("opening", ["(", "$(", "${", '"$(', "`", "'", "<(", "bash -c '", "<<A ", "case x in a) "])
def test_what_never_closes_ends(opening: str) -> None:
    read(opening * 20_000)


def test_places_are_those_of_the_text() -> None:
    text = "X=\"accelerate launch \\\n  --use_fsdp 'a b'\"\n"
    words = [word for command in read(text).commands for word in command.words]
    assert [(word.text, text[word.at]) for word in words] == [
        ("accelerate", "a"),
        ("launch", "l"),
        ("--use_fsdp", "-"),
        ("a b", "'"),
    ]


PARSED = [
    "--use_fsdp --fsdp_version 2 train.py --fsdp_version 1",
    "--multi-gpu --num-processes=4 --mixed_precision bf16 train.py --use_fsdp",
    "--use_fsdp --fsdp-sharding-strategy=FULL_SHARD -m pkg.train --config_file x",
    "--config_file a.yaml --fsdp_offload_params true --debug -q train.py",
    "--dynamo_backend no --dynamo_use_dynamic --use_parallelism_config --parallelism_config_dp_shard_size 8 t.py 1",
    "--use_fsdp --fsdp_min_num_params 100 --gpu_ids 0,1 --machine_rank 0 --same_network t.py --x",
]


@pytest.mark.parametrize("line", PARSED)
def test_flags_are_those_of_the_launcher(line: str) -> None:
    parser = pytest.importorskip("accelerate.commands.launch").launch_command_parser()
    args = parser.parse_args(line.split())
    [command] = read(f"accelerate launch {line}").commands
    call = launch(command.words)
    assert call is not None
    assert [word.text for word in call.rest] == args.training_script_args
    for name, flag in call.flags.items():
        parsed = getattr(args, {"m": "module", "q": "quiet"}.get(name, name))
        assert str(parsed) == (flag.value.text if flag.value is not None else "True")
    assert args.nondefault - {"module", "quiet", "training_script", "training_script_args"} == set(call.flags) - {
        "m",
        "q",
    }


def test_the_flags_that_are_proposed_are_accepted() -> None:
    """What the hint says to write goes through the launcher's parser, and lint has nothing to say of it."""
    parser = pytest.importorskip("accelerate.commands.launch").launch_command_parser()
    line = "--use_fsdp --fsdp_sharding_strategy HYBRID_SHARD --num_machines 2 --num_processes 16"
    hint = _found(f"accelerate launch {line} t.py").hint
    written = hint.split("`")[1].split()
    parser.parse_args([*written, "t.py"])
    assert "--parallelism_config_dp_replicate_size" in written
    left = line.replace("--fsdp_sharding_strategy HYBRID_SHARD", " ".join(written))
    assert _rules(f"accelerate launch {left} t.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "# accelerate launch --use_fsdp t.py",
        "echo accelerate launch --use_fsdp t.py",
        "echo 'accelerate launch --use_fsdp t.py'",
        "printf '%s' \"--fsdp full_shard\"",
        "grep -- --fsdp full_shard x",
        "cat > a.txt <<E\naccelerate launch on fsdp\nE\n",
        "python train.py --use_fsdp --fsdp_sharding_strategy FULL_SHARD",
        "python train.py --fsdp",
        "python train.py --fsdp fsdp2.json",
        'python train.py --fsdp ""',
        "accelerate launch t.py --use_fsdp --fsdp_sharding_strategy 1",
        "accelerate launch --fsdp_sharding_strategy 1 t.py",
        "accelerate launch --multi_gpu --fsdp_sharding_strategy 1 t.py",
        "accelerate launch --use_fsdp --fsdp_version 2 t.py",
        "FSDP_SHARDING_STRATEGY=FULL_SHARD\ntorchrun t.py",
        "export FSDP_VERSION=1\ntorchrun t.py",
        "export ACCELERATE_USE_FSDP=false FSDP_VERSION=1",
        "USAGE='Usage: accelerate launch --use_fsdp t.py'",
        "case $1 in\n --fsdp) x ;;\n --use_fsdp*) y ;;\nesac",
        "python -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=megatron",
        "python -m other.main actor_rollout_ref.actor.fsdp_config.fsdp_size=8",
        "python -m verl.trainer.main_ppo --config-name mine actor_rollout_ref.actor.fsdp_config.fsdp_size=8",
    ],
)
def test_what_is_no_setting_is_quiet(text: str) -> None:
    assert _rules(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "accelerate launch --use_fsdp $ARGS t.py",
        "accelerate launch --use_fsdp --fsdp_version $V t.py",
        "accelerate launch --use_fsdp --config_file $C t.py",
        "accelerate launch --use_fsdp --config_file gone.yaml t.py",
        "accelerate launch --use_fsdp $(cat args) t.py",
        'A="--x $1"\nif x; then A="--fsdp_version 2 y"; fi\naccelerate launch --use_fsdp $A t.py',
        "read -r A\nA='--fsdp_version 1'\nread A\naccelerate launch --use_fsdp $A t.py",
        "torchrun t.py --fsdp $WORDS",
        "torchrun t.py --fsdp full_shard --fsdp_config gone.json",
        "torchrun t.py --fsdp full_shard --fsdp_config $F",
        "torchrun t.py --fsdp full_shard $MORE",
        "export FSDP_VERSION=2\ntorchrun t.py --fsdp full_shard",
        "export ACCELERATE_USE_FSDP=true FSDP_VERSION=$V",
        "python -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=$S",
        "python -m verl.trainer.main_ppo actor_rollout_ref.actor.fsdp_config.fsdp_size=8 $MORE",
        "ssh host <<E\naccelerate launch --use_fsdp t.py\nE",
    ],
)
def test_what_is_not_seen_is_one_info(text: str) -> None:
    assert [one[0] for one in _rules(text)] == ["FM523"]
    assert _found(text).severity == "info"


def test_variables_that_are_sure_are_followed() -> None:
    text = 'A="--use_fsdp"\nA+=" --fsdp_sharding_strategy 1"\nB=(--mixed_precision bf16)\n'
    assert _rules(f'{text}accelerate launch $A "${{B[@]}}" t.py') == [("FM520", 2, 6)]
    script = read("X=a\nrun $X ${Y} '$X'")
    [known] = commands(script, values(script))
    assert [word.text for word in known.words] == ["run", "a", "${Y}", "$X"]


def test_a_finding_stands_at_its_flag() -> None:
    found = _found("FOO=1 accelerate launch --use_fsdp \\\n  --fsdp_sharding_strategy=SHARD_GRAD_OP t.py")
    assert (found.rule, found.line, found.column, found.key) == ("FM520", 2, 3, "--fsdp_sharding_strategy")
    assert found.width == len("--fsdp_sharding_strategy")
    assert "--fsdp_reshard_after_forward false" in found.hint


def test_a_refusal_is_told() -> None:
    found = _found("accelerate launch --use_fsdp --fsdp_sharding_strategy NO_SHARD t.py")
    assert "FM401" in found.message
    assert "FM401" in found.hint


def test_release_decides_what_trainer_arguments_ask_for() -> None:
    text = 'torchrun t.py --fsdp "full_shard auto_wrap"'
    newest = Choices(came_from={"transformers": release("5.24.0")})
    assert script_report("a.sh", text, newest).findings == ()
    assert "before 5.10" in _found(text).message


@pytest.mark.parametrize("where", ["beside", "current"])
def test_a_file_is_looked_for_beside_and_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    config = "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_offload_params: false}\n"
    ((folder if where == "beside" else tmp_path) / "fsdp.yaml").write_text(config, encoding="utf-8")
    script = folder / "run.sh"
    script.write_text("accelerate launch --config_file fsdp.yaml --fsdp_offload_params yes t.py\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    data = json.loads(invoke("lint", "--format", "json", "scripts").stdout)
    told = [(Path(file["path"]).name, one["rule"]) for file in data["files"] for one in file["findings"]]
    assert ("run.sh", "FM521") in told


def test_flag_and_file_that_agree_in_other_words_are_quiet(tmp_path: Path) -> None:
    config = (
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_offload_params: false}\nmixed_precision: bf16\n"
    )
    (tmp_path / "fsdp.yaml").write_text(config, encoding="utf-8")
    flags = "--config_file fsdp.yaml --fsdp_offload_params False --mixed_precision BF16 --fsdp_version 2"
    assert _rules(f"accelerate launch {flags} t.py", str(tmp_path / "run.sh")) == []


def test_two_files_that_differ_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    for folder, version in ((tmp_path, 1), (tmp_path / "a", 2)):
        text = f"distributed_type: FSDP\nfsdp_config: {{fsdp_version: {version}}}\n"
        (folder / "fsdp.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    told = _rules("accelerate launch --config_file fsdp.yaml --fsdp_sharding_strategy 1 t.py", "a/run.sh")
    assert [one[0] for one in told] == ["FM523"]


@pytest.mark.parametrize("suffix", ["sh", "bash", "slurm", "sbatch"])
def test_scripts_are_found_and_never_edited(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run.{suffix}"
    data = b"accelerate launch --use_fsdp --fsdp_version 2 --fsdp_use_orig_params true t.py # caf\xe9\n"
    path.write_bytes(data)
    assert invoke("lint", "--fix", "--unsafe-fixes", str(tmp_path)).exit_code == 1
    assert b"FM522" in invoke("lint", str(tmp_path)).stdout_bytes
    path.write_bytes(data := data.replace(b"\xe9", b"e"))
    done = invoke("--write", str(path))
    assert done.exit_code == 1
    assert "`fsdp-migrate lint` reads scripts" in " ".join(done.stderr.split())
    assert path.read_bytes() == data


def test_a_comment_above_a_command_covers_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    command = "accelerate launch \\\n  --use_fsdp \\\n  --fsdp_version 1 t.py\n"
    path.write_text(f"# fsdp-migrate: ignore[FM520]\n{command}", encoding="utf-8")
    assert invoke("lint", str(path)).exit_code == 0
    path.write_text(f"echo '# fsdp-migrate: ignore[FM520]'\n{command}", encoding="utf-8")
    assert invoke("lint", str(path)).exit_code == 1


def test_many_launches_are_bounded() -> None:
    text = "".join(f"accelerate launch --use_fsdp --fsdp_min_num_params {number} t.py\n" for number in range(400))
    rules = [one[0] for one in _rules(text)]
    assert 200 < len(rules) < 210
    assert rules.count("FM523") == 1
