"""Hostile input and a hostile world: nothing is lost, half written, executed, or worked on without bound."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cases import CASES, case, invoke
from fsdp_migrate import Choices
from fsdp_migrate.pipeline import convert_bytes, convert_text

COMMON = case("accelerate/full-shard")
TEXT = COMMON.before.read_text(encoding="utf-8")

# the steps of a write, in order; the process is killed before the one with the given number
_KILL = """
import os, pathlib, signal, sys
from fsdp_migrate.cli.main import main
step, left = int(sys.argv[1]), [0]
def watched(real):
    def call(*args, **more):
        if left[0] == step:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] += 1
        return real(*args, **more)
    return call
for owner, name in ((os, "fdopen"), (os, "fsync"), (pathlib.Path, "chmod"), (os, "chown"), (pathlib.Path, "replace")):
    setattr(owner, name, watched(getattr(owner, name)))
main(["--write", "-q", sys.argv[2]])
"""


@pytest.mark.parametrize("step", range(8))
def test_killed_at_any_step_the_old_or_the_new_file_is_there(step: int, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(COMMON.before.read_bytes())
    done = subprocess.run([sys.executable, "-c", _KILL, str(step), str(path)], capture_output=True, check=False)
    found = path.read_bytes()
    assert found in (COMMON.before.read_bytes(), COMMON.after.read_bytes())
    killed = done.returncode == -signal.SIGKILL
    assert killed or found == COMMON.after.read_bytes()
    if step == 0:
        assert killed, "the steps are those of the code"
    assert invoke("--write", str(path)).exit_code == 0, "a later run is not disturbed"
    assert path.read_bytes() == COMMON.after.read_bytes()


def test_link_loops_and_vanished_files_are_told(tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    dangling = tmp_path / "dangling.yaml"
    dangling.symlink_to(tmp_path / "gone.yaml")
    for path in (loop, dangling):
        result = invoke("--write", str(path))
        assert result.exit_code == 2
        assert "FM001" in result.stderr
        assert path.is_symlink()


def test_a_file_that_vanishes_before_the_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_migrate import batch

    path = tmp_path / "config.yaml"
    path.write_bytes(COMMON.before.read_bytes())
    real = batch.replace_file

    def late(target: Path, old: bytes, new: bytes) -> None:
        target.unlink()
        real(target, old, new)

    monkeypatch.setattr(batch, "replace_file", late)
    result = invoke("--write", str(path))
    assert result.exit_code == 2
    assert "FM029" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    result = invoke(str(fifo))
    assert result.exit_code == 2
    assert "not a regular file" in result.stderr


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(9 * 1024 * 1024)
    result = invoke(str(path))
    assert result.exit_code == 2
    assert "is not read" in result.stderr


def test_nothing_is_executed_imported_or_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "marker"
    monkeypatch.setenv("SECRET_WORD", "FULL_SHARD")
    text = (
        TEXT.replace("LlamaDecoderLayer", f'!!python/object/apply:os.system ["touch {marker}"]')
        + f"command_file: $(touch {marker})\n"
    )
    convert_text(text, "a.yaml", Choices())
    done = convert_text(TEXT.replace(": FULL_SHARD", ": ${SECRET_WORD}"), "a.yaml", Choices())
    assert done.report.status == "refused"
    assert "SECRET_WORD" in done.report.findings[-1].message or any(
        "SECRET_WORD" in one.message for one in done.report.findings
    )
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 5000 + "]" * 5000,
        "{" * 5000,
        "".join(f"{' ' * i}k{i}:\n" for i in range(1500)),
        TEXT + "x: &a [*a]\n",
        TEXT + "x: &a {b: *a}\n",
        TEXT.replace("fsdp_config:", "fsdp_config: &a\n  self: *a"),
        TEXT.replace("fsdp_sharding_strategy", "x" * 2000),
        TEXT.replace("FULL_SHARD", "9" * 5000),
        TEXT.replace(": 8", ": " + "9" * 5000),
        TEXT.replace(": 8", ": 1:2:3:4"),
        TEXT.replace(": 8", ": 0x_"),
        "? [a, b]\n: c\n" + TEXT,
        "? {a: b}\n" + TEXT,
        TEXT.replace("fsdp_config:", "? fsdp_config\n:"),
        "%TAG ! tag:x,2000:\n---\n" + TEXT,
        "%YAML 9.9\n---\n" + TEXT,
        "\x00" + TEXT,
        TEXT + "\x85\u2028",
        TEXT.replace("true", "tru\x85e"),
        "{distributed_type: FSDP, fsdp_config: {version:, a: b}}",
        '{"num_processes": ' + "9" * 5000 + "}",
        TEXT.replace("\n", "\r"),
        "---\n...\n---\n...\n",
        "!!set {a, b}\n",
        "!!binary aGVsbG8=\n",
        "- - - - x\n",
        "'",
        "|",
        "&",
        "*",
        "<<: *x",
        '"\\ud800"',
    ],
    ids=range(32),
)
def test_odd_texts_are_answered(text: str) -> None:
    for name in ("a.yaml", "a.json", "a"):
        done = convert_text(text, name, Choices())
        assert done.report.status in ("converted", "unchanged", "already-fsdp2", "not-fsdp", "refused", "error")
        assert done.report.status == "converted" or done.text == done.before


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252", "shift_jis"])
def test_encodings_are_read_or_told(encoding: str) -> None:
    data = TEXT.replace("LlamaDecoderLayer", "Äpfel" if encoding != "shift_jis" else "層").encode(encoding)
    done = convert_bytes(data, "a.yaml", Choices())
    if encoding.startswith("utf-8"):
        assert done.report.status == "converted"
        assert done.text.encode("utf-8")[:3] == data[:3]
    else:
        assert done.report.status in ("error", "refused")
        assert [one.severity for one in done.report.findings] == ["error"]


def test_big_files_are_converted() -> None:
    """A megabyte around the block, in each of the shapes that big configs have."""
    for extra in (
        "".join(f"key{i}: value {i}\n" for i in range(10_000)),
        "deepspeed_config:\n  list:\n" + "".join(f"  - item {i}\n" for i in range(10_000)),
        "# " + "x" * 1_000_000 + "\n",
        'command_file: "' + "x" * 1_000_000 + '"\n',
    ):
        done = convert_text(TEXT + extra, "a.yaml", Choices())
        assert done.report.status == "converted"
        assert done.text.endswith(extra)
        assert len(done.report.outcomes) == 13


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's own high-water mark is read")
def test_memory_for_an_ordinary_file() -> None:
    """60 MB are allowed."""
    code = (
        "import re\n"
        "from fsdp_migrate.cli.main import main\n"
        f"try: main(['-q', '-o', '/dev/null', {str(COMMON.before)!r}])\n"
        "except SystemExit as done: assert done.code == 0\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read()).group(1))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60 * 1024


def test_every_fixture_in_a_foreign_locale(tmp_path: Path) -> None:
    """A terminal that knows only ASCII gets every message, with marks for what it cannot show."""
    paths = [str(one.before) for one in CASES if one.folder.name in ("class-name-non-ascii", "crlf-and-bom")]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "fsdp_migrate", *paths], capture_output=True, env=environment, check=False
    )
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert "ÄLayer".encode() in done.stdout, "the diff is the file's own bytes"


@pytest.mark.parametrize(
    "number", ["0x" + "f" * 3900, "1" + "0" * 3000, "1:" * 500 + "1"], ids=["hexadecimal", "decimal", "sexagesimal"]
)
def test_numbers_too_long_to_print_are_refused_where_they_stand(number: str) -> None:
    text = f"distributed_type: FSDP\nfsdp_config: {{}}\nnum_processes: {number}\n"
    result = convert_text(text, "config.yaml", Choices())
    assert result.text == text
    assert [(one.rule, one.line, one.column) for one in result.report.findings] == [("FM002", 3, 16)]


def test_deep_nesting_on_standard_input_is_told() -> None:
    result = convert_text("[" * 100_000, "-", Choices())
    assert [one.rule for one in result.report.findings] == ["FM002"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("  : SHARD_GRAD_OP", "no key stands"),
        ("  ? [a]\n  : 1", "a collection stands as a key"),
        ("  {a: 1}: 2", "a collection stands as a key"),
    ],
)
def test_keys_that_yaml_1_1_refuses_are_refused(line: str, reason: str) -> None:
    text = f"distributed_type: FSDP\nfsdp_config:\n{line}\n"
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(text)
    result = convert_text(text, "config.yaml", Choices())
    (finding,) = result.report.findings
    assert (finding.rule, finding.line, reason in finding.message) == ("FM002", 3, True)
    assert result.text == text


@pytest.mark.parametrize(
    "line", ["debug: !x 1", "!x debug: 1", "debug: =", "debug: [1,\t2]", "debug:\t1", "x: &a 1\ny: &a 2"]
)
def test_what_only_yaml_1_2_reads_is_refused(line: str) -> None:
    text = f"distributed_type: FSDP\nfsdp_config: {{}}\n{line}\n"
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(text)
    result = convert_text(text, "config.yaml", Choices())
    (finding,) = result.report.findings
    assert finding.rule == ("FM008" if "\t" in line else "FM002")
    assert finding.line is not None and finding.line >= 3
    assert result.text == text
