"""Files on disk: read whole, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

MAX_BYTES = 8 * 1024 * 1024
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
"""Names of launch scripts: text that no parser of configs reads."""


def is_script(name: str) -> bool:
    return name.lower().endswith(SCRIPTS)


class FileProblem(Exception):
    """A file that cannot be read or written; the message says why, without the path."""


def read_file(path: Path) -> bytes:
    """The content of a regular file of at most `MAX_BYTES` bytes."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise FileProblem("it is a folder; name the files in it")
        if not stat.S_ISREG(status.st_mode):
            raise FileProblem("it is not a regular file; pass its text with `-`")
        if status.st_size > MAX_BYTES:
            raise FileProblem(f"it has {status.st_size} bytes; a config of more than {MAX_BYTES} bytes is not read")
        return path.read_bytes()
    except OSError as error:
        raise FileProblem(_reason(error)) from None


def replace_file(path: Path, old: bytes, new: bytes) -> None:
    """Put `new` in place of a file that still holds `old`.

    The text goes to a temporary file in the same folder, is flushed to disk, and takes the name in
    one step: whoever looks, at any moment, sees the old file or the new one. Mode and, where
    allowed, owner are kept; a symbolic link stays a link, its target is replaced.
    """
    try:
        target = Path(os.path.realpath(path, strict=True))
        status = target.stat()
        if target.read_bytes() != old:
            raise FileProblem("it changed while it was converted; run again")
        if not os.access(target, os.W_OK):
            raise FileProblem("permission denied")
        _write_beside(target, new, status)
    except OSError as error:
        raise FileProblem(_reason(error)) from None


def write_new(path: Path, data: bytes) -> None:
    """Write a file that may or may not exist yet, with the same guarantee as `replace_file`."""
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:  # a device or a pipe, as /dev/stdout: nothing to replace
                stream.write(data)
            return
        _write_beside(target, data, target.stat() if target.exists() else None)
    except OSError as error:
        raise FileProblem(_reason(error)) from None


def _write_beside(target: Path, data: bytes, like: os.stat_result | None) -> None:
    import tempfile  # needed by --write and -o alone

    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if like is not None:
            Path(name).chmod(stat.S_IMODE(like.st_mode))
            if hasattr(os, "chown"):
                with contextlib.suppress(OSError):  # another owner's file: the content is what matters
                    os.chown(name, like.st_uid, like.st_gid)
        else:
            Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    _sync_folder(target.parent)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system lets a folder be synced
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
