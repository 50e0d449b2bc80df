"""The command line as users meet it: streams, exit codes, files, interruptions."""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import case, invoke

COMMON = case("accelerate/full-shard")
REFUSED = case("accelerate/no-shard")
CLEAN = case("accelerate/v2-clean")
WARNS = case("accelerate/forward-prefetch")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    shutil.copyfile(COMMON.before, path)
    return path


def _process(*args: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "fsdp_migrate", *args], capture_output=True, check=False, **more)  # type: ignore[call-overload, no-any-return]


def test_preview_writes_nothing(config: Path) -> None:
    before = config.read_bytes()
    result = invoke(str(config))
    assert result.exit_code == 0
    assert config.read_bytes() == before
    assert "-  fsdp_sharding_strategy: FULL_SHARD" in result.stdout
    assert "+  fsdp_reshard_after_forward: true" in result.stdout
    assert "keys accounted for (100 %)" in result.stderr
    assert f"fsdp-migrate --write {config}" in result.stderr


def test_the_diff_applies(config: Path, tmp_path: Path) -> None:
    """What is shown is a patch that other tools take."""
    result = invoke(str(config))
    patched = tmp_path / "patched.yaml"
    done = subprocess.run(
        ["patch", "-s", "-o", str(patched), str(config)], input=result.stdout_bytes, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert patched.read_bytes() == COMMON.after.read_bytes()


def test_convert_is_the_default_command(config: Path) -> None:
    assert invoke(str(config)).stdout == invoke("convert", str(config)).stdout


def test_write_is_in_place_and_then_done(config: Path) -> None:
    assert invoke("--write", str(config)).exit_code == 0
    assert config.read_bytes() == COMMON.after.read_bytes()
    again = invoke("--write", str(config))
    assert again.exit_code == 0
    assert config.read_bytes() == COMMON.after.read_bytes()


def test_write_keeps_mode_and_links(config: Path, tmp_path: Path) -> None:
    config.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(config.name)
    assert invoke("--write", str(link)).exit_code == 0
    assert link.is_symlink()
    assert stat.S_IMODE(config.stat().st_mode) == 0o640
    assert config.read_bytes() == COMMON.after.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "link.yaml"]


def test_output_file(config: Path, tmp_path: Path) -> None:
    target = tmp_path / "new.yaml"
    assert invoke("-o", str(target), str(config)).exit_code == 0
    assert target.read_bytes() == COMMON.after.read_bytes()
    assert config.read_bytes() == COMMON.before.read_bytes()


def test_output_to_stdout_is_the_text_alone(config: Path) -> None:
    assert invoke("-o", "-", str(config)).stdout_bytes == COMMON.after.read_bytes()


def test_output_writes_an_unchanged_file_byte_for_byte(tmp_path: Path) -> None:
    target = tmp_path / "same.yaml"
    assert invoke("-o", str(target), str(CLEAN.before)).exit_code == 0
    assert target.read_bytes() == CLEAN.before.read_bytes()


def test_output_with_json_report(config: Path, tmp_path: Path) -> None:
    target = tmp_path / "new.yaml"
    result = invoke("-o", str(target), "--format", "json", str(config))
    assert json.loads(result.stdout)["files"][0]["status"] == "converted"
    assert target.read_bytes() == COMMON.after.read_bytes()


def test_a_refused_file_is_not_written(tmp_path: Path) -> None:
    path, target = tmp_path / "config.yaml", tmp_path / "new.yaml"
    shutil.copyfile(REFUSED.before, path)
    for args in (("--write", str(path)), ("-o", str(target), str(path))):
        result = invoke(*args)
        assert result.exit_code == 1
        assert "NO_SHARD has no FSDP2 form" in result.stderr
    assert path.read_bytes() == REFUSED.before.read_bytes()
    assert not target.exists()


def test_check() -> None:
    assert invoke("--check", str(COMMON.before)).exit_code == 1
    assert invoke("--check", str(COMMON.after)).exit_code == 0
    assert invoke("--check", str(CLEAN.before)).exit_code == 0


@pytest.mark.parametrize(("level", "code"), [("error", 0), ("warning", 1), ("info", 1)])
def test_fail_on(level: str, code: int) -> None:
    assert invoke("--fail-on", level, str(WARNS.before)).exit_code == code


def test_stdin_to_stdout() -> None:
    result = invoke("-", "-o", "-", stdin=COMMON.before.read_bytes())
    assert result.stdout_bytes == COMMON.after.read_bytes()


def test_stdin_name_decides_the_kind() -> None:
    before = case("accelerate/json").before.read_bytes()
    for args in (["-"], ["-", "--stdin-filename", "config.json"]):
        result = invoke(*args, "-o", "-", stdin=before)
        assert result.stdout_bytes == case("accelerate/json").after.read_bytes()
    named = json.loads(invoke("-", "--stdin-filename", "a/b.json", "--format", "json", stdin=before).stdout)
    assert named["files"][0]["path"] == "a/b.json"


def test_several_files_one_report(tmp_path: Path) -> None:
    paths = []
    for index, source in enumerate((COMMON, REFUSED, CLEAN)):
        paths.append(tmp_path / f"{index}.yaml")
        shutil.copyfile(source.before, paths[-1])
    missing = tmp_path / "missing.yaml"
    result = invoke("--write", *map(str, [*paths, missing]))
    assert result.exit_code == 2, "the worst code wins"
    assert paths[0].read_bytes() == COMMON.after.read_bytes(), "one bad file does not stop the others"
    assert paths[1].read_bytes() == REFUSED.before.read_bytes()
    assert "FM401 no-shard: 1" in result.stderr
    assert "FM001 unreadable-file: 1" in result.stderr
    assert "4 files:" in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["a.yaml", "b.yaml", "-o", "c.yaml"], "one input file"),
        (["a.yaml", "--write", "-o", "c.yaml"], "exclude each other"),
        (["-", "--write"], "standard input"),
        (["a.yaml", "--check", "--write"], "--check writes nothing"),
        (["a.yaml", "-o", "-", "--format", "json"], "standard output"),
        (["a.yaml", "--from", "accelerate"], "PACKAGE==VERSION"),
        (["a.yaml", "--from", "tensorflow==1.0"], "known: accelerate"),
        (["a.yaml", "--dialect", "acelerate"], "one of accelerate"),
        (["a.yaml", "--num-nodes", "0"], "--num-nodes"),
        (["--nonsense", "a.yaml"], "--nonsense"),
        ([], ""),
    ],
)
def test_usage_errors(args: list[str], words: str) -> None:
    result = invoke(*args)
    assert result.exit_code == 2 if args else result.exit_code in (0, 2)
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_unreadable_inputs(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\x80\x81\xfe")
    (tmp_path / "utf16.yaml").write_bytes("distributed_type: FSDP\n".encode("utf-16"))
    for path in (tmp_path, tmp_path / "no.yaml", tmp_path / "binary.yaml", tmp_path / "utf16.yaml"):
        result = invoke(str(path))
        assert result.exit_code == 2
        assert "error FM00" in result.stderr
        assert "Traceback" not in result.stderr


def test_not_fsdp_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("name: x\n# fsdp in a comment\nlr: 1e-5\n")
    result = invoke("--write", str(path))
    assert result.exit_code == 0
    assert path.read_text() == "name: x\n# fsdp in a comment\nlr: 1e-5\n"


def test_a_read_only_folder_is_told(config: Path) -> None:
    # simulated, since root may write anywhere
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.mkstemp", _raise(PermissionError(13, "Permission denied")))
        result = invoke("--write", str(config))
    assert result.exit_code == 2
    assert "FM029" in result.stderr
    assert "permission denied" in result.stderr
    assert config.read_bytes() == COMMON.before.read_bytes()


def test_a_full_disk_leaves_the_old_file(config: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", _raise(OSError(28, "No space left on device")))
        result = invoke("--write", str(config))
    assert result.exit_code == 2
    assert "no space left" in result.stderr
    assert config.read_bytes() == COMMON.before.read_bytes()
    assert [path.name for path in config.parent.iterdir()] == ["config.yaml"], "no temporary file is left"


def test_a_file_changed_meanwhile_is_not_overwritten(config: Path) -> None:
    from fsdp_migrate.files import FileProblem, replace_file

    with pytest.raises(FileProblem, match="changed"):
        replace_file(config, b"what it was when it was read", b"new")
    assert config.read_bytes() == COMMON.before.read_bytes()


def _raise(error: OSError) -> object:
    def fail(*args: object, **more: object) -> None:
        raise error

    return fail


def test_quiet_reports_errors_only() -> None:
    assert invoke("-q", str(WARNS.before)).stderr == ""
    assert "FM401" in invoke("-q", str(REFUSED.before)).stderr


def test_colour_is_for_terminals(config: Path) -> None:
    assert "\x1b[" not in invoke(str(config)).stderr
    assert "\x1b[" in invoke("--color", "always", str(WARNS.before)).stderr


def test_closed_pipe_is_quiet(config: Path) -> None:
    config.write_text("# long\n" * 100000 + COMMON.before.read_text())
    command = f"{sys.executable} -m fsdp_migrate -o - {config} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "# long\n"
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


def test_interrupt_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fsdp_migrate", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in stderr


def test_module_and_version() -> None:
    done = _process("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(b"fsdp-migrate ")


def test_deterministic(config: Path) -> None:
    first, second = invoke(str(config)), invoke(str(config))
    assert (first.stdout, first.stderr) == (second.stdout, second.stderr)


def test_a_document_does_not_replace_its_source(tmp_path: Path) -> None:
    path, target = tmp_path / "fsdp.yaml", tmp_path / "plan.json"
    shutil.copyfile(case("torch/everything").before, path)
    result = invoke("--write", str(path))
    assert result.exit_code == 1
    assert "FM413" in result.stderr
    assert path.read_bytes() == case("torch/everything").before.read_bytes()
    assert invoke("-o", str(target), str(path)).exit_code == 0
    assert json.loads(target.read_text())["mesh"] == {"replicate": 2, "shard": 4}
    assert invoke("--check", str(target)).exit_code == 0


def test_to_needs_a_place(config: Path) -> None:
    for args in (["--to", "torch"], ["--to", "torch", "--write"]):
        result = invoke(*args, str(config))
        assert result.exit_code == 2
        assert "-o FILE" in result.stderr
    assert invoke("--to", "accelerate", "-o", "-", str(config)).exit_code == 2


def test_a_fault_of_the_tool_is_told_as_a_finding(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_migrate import batch

    def broken(*args: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.delenv("FSDP_MIGRATE_DEBUG")
    monkeypatch.setattr(batch, "convert_bytes", broken)
    result = invoke(str(config), str(REFUSED.before))
    assert result.exit_code == 2
    assert result.stderr.count("FM901 internal-error") >= 2
    assert "Traceback" not in result.stderr
