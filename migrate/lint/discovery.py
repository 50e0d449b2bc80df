"""Which files a run looks at: folders, globs, .gitignore, and a look at the bytes before anything is parsed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import MAX_BYTES, SCRIPTS

SUFFIXES = (".yaml", ".yml", ".json", ".md", ".markdown", *SCRIPTS)
"""What a folder is searched for; a file that is named is always looked at."""

_NEVER = frozenset((".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", ".tox", ".mypy_cache"))
_MENTIONS = (b"fsdp", b"fullyshard", b"sharding_strategy", b"fully_shard")
# A key that sets FSDP, not in a comment: at the start of a line, or quoted as JSON has it.
_KEY = rb"(?:fsdp\w*|(?:use|enable)_fsdp|sharding_strategy|fullyshard\w*|fully_shard\w*)"
_SETS = re.compile(rb"^[ \t]*(?:-[ \t]+)*" + _KEY + rb"[ \t]*:|[\"']" + _KEY + rb"[\"'][ \t]*:", re.I | re.M)
_GLOB = re.compile(r"[*?\[]")


class NothingFound(Exception):
    """A path that is not there, or a pattern that is none or matches nothing; the message names it."""


@dataclass(frozen=True)
class Filter:
    """`include` replaces the suffixes, `exclude` takes away; both in .gitignore's patterns, relative to `root`."""

    root: Path
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    respect_gitignore: bool = True
    also_named: bool = False
    """Whether `exclude` holds for files that are named, too: a hook names every file it is about."""


def find(paths: Sequence[str], wanted: Filter, tell: Callable[[str], None] = lambda line: None) -> list[str]:
    """Files below `paths`, sorted within each, each once; ``-`` is passed on.

    A pattern takes the place of `include`. Folders that cannot be read are passed over; `tell` hears of them.
    Raises NothingFound for a path that does not exist or a pattern without a match.
    """
    walk = _Walk(wanted, tell)
    found: dict[str, str] = {}
    for path in paths:
        kind = _kind(path)
        if path == "-":
            hits: Iterable[str] = [path]
        elif kind == "file":
            hits = [] if wanted.also_named and walk.excluded(path) else [path]
        elif kind == "folder":
            hits = walk.below(path)
        else:
            hits = _expand(path, walk) if _GLOB.search(path) else []
            if not hits:
                reason = "no file matches" if _GLOB.search(path) else "no such file or folder"
                raise NothingFound(f"{path}: {reason}")
        for hit in hits:
            found.setdefault(hit if hit == "-" else os.path.abspath(hit), hit)  # noqa: PTH100
    return list(found.values())


def _kind(path: str) -> str:
    try:
        return "folder" if stat.S_ISDIR(os.stat(path).st_mode) else "file"  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise NothingFound(f"{path}: {(error.strerror or str(error)).lower()}") from None


def mentions_fsdp(data: bytes) -> bool:
    """Whether a file can hold a finding: everything else costs a read and nothing more."""
    text = data.lower()  # and plain searches: a regular expression that ignores case takes ten times as long
    return any(word in text for word in _MENTIONS) or b"\x00" in data[:4]  # UTF-16 hides the words


def sets_fsdp(data: bytes | Any) -> bool:
    """Whether some line looks like an FSDP setting; for texts that no parser reads."""
    if b"\x00" in data[:4]:
        data = data[:].replace(b"\x00", b"")  # UTF-16 of ASCII is ASCII and zeros
    return _SETS.search(data) is not None


def too_large_and_silent(path: str) -> bool:
    """Whether a file is larger than a config may be and sets no FSDP key: data, which is not looked into."""
    import mmap

    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            if os.fstat(stream.fileno()).st_size <= MAX_BYTES:
                return False
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return not sets_fsdp(content)
    except (OSError, ValueError):
        return False


def _expand(pattern: str, walk: _Walk) -> list[str]:
    """The files that a pattern matches, found by walking: nothing that .gitignore leaves out, no loops of links."""
    parts = pattern.replace(os.sep, "/").split("/")
    first = next(number for number, part in enumerate(parts) if _GLOB.search(part))
    base = "/".join(parts[:first]) or ("/" if pattern.startswith("/") else ".")
    if _kind(base) != "folder":
        return []
    spec = _spec(["/" + "/".join(parts[first:])])
    return list(walk.below(base, lambda path: _matches(spec, _from(path, base), False), by_name="." in parts[-1]))


def _from(path: str, folder: str | Path) -> str:
    return os.path.relpath(path, folder).replace(os.sep, "/")


@dataclass
class _Walk:
    wanted: Filter
    tell: Callable[[str], None]
    include: Any = field(init=False)
    exclude: Any = field(init=False)

    def __post_init__(self) -> None:
        self.include = _spec(self.wanted.include) if self.wanted.include else None
        self.exclude = _spec(self.wanted.exclude) if self.wanted.exclude else None

    def excluded(self, path: str, is_folder: bool = False) -> bool:
        return self.exclude is not None and _matches(self.exclude, _from(path, self.wanted.root), is_folder)

    def below(self, folder: str, keep: Callable[[str], bool] | None = None, by_name: bool = False) -> Iterator[str]:
        """Files below a folder by name, without what .gitignore files (also of parents) and settings leave out.

        `keep` chooses in place of `include`; the usual suffixes count unless files are chosen `by_name`.
        """
        if keep is None and self.include is not None:
            keep, by_name = self._included, True
        ignores = self._from_parents(folder)
        stack = [(folder, ignores)]
        while stack:
            here, rules = stack.pop()
            entries = self._entries(here)
            if self.wanted.respect_gitignore and any(one.name == ".gitignore" for one in entries):
                rules = [*rules, (os.path.abspath(here), _gitignore(here))]  # noqa: PTH100
            folders = []
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder and (entry.name in _NEVER or _is_environment(entry.path)):
                    continue
                if not is_folder and not by_name and not entry.name.lower().endswith(SUFFIXES):
                    continue
                if rules and _ignored(entry.path, is_folder, rules):
                    continue
                if self.excluded(entry.path, is_folder):
                    continue
                if is_folder:
                    folders.append((entry.path, rules))
                elif (keep is None or keep(entry.path)) and _is_file(entry):
                    yield _shown(entry.path)
            stack.extend(reversed(folders))

    def _included(self, path: str) -> bool:
        return _matches(self.include, _from(path, self.wanted.root), False)

    def _from_parents(self, folder: str) -> list[tuple[str, Any]]:
        """The .gitignore files above `folder`, up to the repository's root; none if they ignore the folder itself,
        which was named and so is meant."""
        if not self.wanted.respect_gitignore:
            return []
        rules: list[tuple[str, Any]] = []
        here = Path(folder).resolve()
        for parent in (here, *here.parents):
            if parent != here and (parent / ".gitignore").is_file():
                rules.insert(0, (str(parent), _gitignore(str(parent))))
            if (parent / ".git").exists():
                return [] if _ignored(str(here), True, rules) else rules
        return []

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda one: one.name)
        except OSError as error:
            self.tell(f"{folder}: {(error.strerror or str(error)).lower()}; passed over\n")
            return []


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads in a circle
        return False


def _shown(path: str) -> str:
    """Without ``./`` in front, unless the rest would read as an option or as standard input."""
    bare = path.removeprefix(f".{os.sep}")
    return path if bare.startswith("-") else bare


def _is_environment(path: str) -> bool:
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))  # noqa: PTH110, PTH118  a stat for each folder


def _gitignore(folder: str) -> Any:
    try:
        text = (Path(folder) / ".gitignore").read_text(encoding="utf-8-sig", errors="replace")
    except OSError:  # git does without it, too
        text = ""
    return _spec([line for line in text.splitlines() if is_pattern(line)])


def is_pattern(line: str) -> bool:
    """Whether git takes a line as a pattern; it passes over others without a word."""
    try:
        _spec([line])
    except NothingFound:
        return False
    return True


def _spec(patterns: Sequence[str]) -> Any:
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(patterns)
    except (ValueError, re.error) as error:
        raise NothingFound(f"{', '.join(patterns)}: is no pattern ({error})") from None


def _ignored(path: str, is_folder: bool, rules: Sequence[tuple[str, Any]]) -> bool:
    """The innermost .gitignore that speaks of the path decides."""
    full = os.path.abspath(path)  # noqa: PTH100
    for folder, spec in reversed(rules):
        relative = _from(full, folder)
        said = spec.check_file(relative + "/" if is_folder else relative).include
        if said is not None:
            return bool(said)
    return False


def _matches(spec: Any, relative: str, is_folder: bool) -> bool:
    return bool(spec.match_file(relative + "/" if is_folder else relative))
