"""A whole run: files → conversions → lint reports → what nobody has accepted yet."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..batch import Item, convert_one
from ..choices import Choices
from ..files import FileProblem, is_script, read_file
from ..report.model import FileReport
from .baseline import Baseline
from .discovery import mentions_fsdp, too_large_and_silent
from .engine import engine_of
from .scripts.report import script_comments, unread
from .selection import Selection
from .suppress import Comment, comments, unsuppressed
from .unowned import is_prose, prose
from .view import lint_report

ChoicesFor = Callable[[str], Choices]
_Task = tuple[str, "bytes | None", Choices]
_Rules = tuple[str, ...]

PARALLEL_FROM = 64
"""Files with FSDP settings from which a second process pays for its start."""


@dataclass(frozen=True)
class Linted:
    """One file: its conversion, the report that is left of it, and how much of the baseline is mended in it."""

    item: Item
    report: FileReport
    gone: int = 0


@dataclass(frozen=True)
class Run:
    """`files` were looked into; `skipped` only read, since they do not mention FSDP."""

    files: tuple[Linted, ...]
    skipped: int

    @property
    def reports(self) -> list[FileReport]:
        return [one.report for one in self.files]

    @property
    def gone(self) -> int:
        """How many entries of the baseline no finding has any more, among the files of this run."""
        return sum(one.gone for one in self.files)


def as_judged(choices: Choices) -> Choices:
    """A file is judged by the release that runs it: that of ``--from``, else that of ``--for``."""
    return replace(choices, came_from={**choices.runs_on, **choices.came_from})


def lint(
    paths: Sequence[str],
    choices_for: ChoicesFor,
    selection: Selection,
    ignored_for: Callable[[str], tuple[str, ...]],
    known: Baseline | None = None,
    stdin: tuple[str, bytes] | None = None,
) -> Run:
    """Judge each file. `known` is a baseline; `stdin` the name and bytes of ``-``."""
    wanted: list[tuple[str, bytes | None]] = []
    skipped = 0
    for path in paths:
        if path == "-" and stdin is not None:
            wanted.append(stdin)
            continue
        try:
            data = read_file(Path(path))
        except FileProblem:
            if too_large_and_silent(path):
                skipped += 1
            else:
                wanted.append((path, None))  # convert tells why
            continue
        if mentions_fsdp(data):
            wanted.append((path, data))
        else:
            skipped += 1
    tasks = [(name, data, choices_for(name)) for name, data in wanted]
    judge = partial(_judge, selection=selection, known=known)
    extra = [ignored_for(name) for name, _ in wanted]
    done = None
    if len(tasks) >= PARALLEL_FROM and (os.cpu_count() or 1) > 1:
        done = _in_parallel(judge, tasks, extra)
    if done is None:
        done = [judge(task, more) for task, more in zip(tasks, extra, strict=True)]
    return Run(tuple(done), skipped)


def _in_parallel(judge: Callable[..., Linted], tasks: Sequence[_Task], extra: Sequence[_Rules]) -> list[Linted] | None:
    """What `judge` says of each task, in order; None where the system lends no processes."""
    try:
        pool = ProcessPoolExecutor(min(os.cpu_count() or 1, 8), initializer=_leave_interrupts_to_the_first)
    except (OSError, NotImplementedError):  # no shared memory or no semaphores, as in some sandboxes
        return None
    try:
        return list(pool.map(judge, tasks, extra, chunksize=16))
    except BrokenProcessPool:
        return None
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_first() -> None:
    """Ctrl-C reaches every process of a terminal; only the first one answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _judge(task: _Task, ignored: _Rules, *, selection: Selection, known: Baseline | None) -> Linted:
    name, data, choices = task
    path = Path(name) if name != "-" else None
    if data is not None and is_prose(name):
        item = Item(name, path, data, prose(name, data))
    elif data is not None and is_script(name):
        item = Item(name, path, data, unread(name, data))
    else:
        item = convert_one(name, path, data, choices)
    report = lint_report(item.conversion, item.data, choices)
    # a page may show how a comment is written without being about a finding
    judged = selection.whole and not ignored and not is_prose(name)
    findings = unsuppressed(report.findings, _comments(item), judged=judged)
    chosen = replace(selection, ignore=(*selection.ignore, *ignored)) if ignored else selection
    report = replace(report, findings=tuple(sorted(chosen.of(findings), key=_place)))
    gone = known.gone(report) if known is not None else 0
    if known is not None:
        report = replace(report, findings=tuple(known.unknown(report)))
    # what made the report stays behind: it need not travel between processes
    light = replace(item.conversion, source=None, declared=None, notes=(), parts={})
    engine = engine_of(item.conversion)
    return Linted(replace(item, conversion=light), replace(report, ran=engine or report.ran), gone)


def _comments(item: Item) -> list[Comment]:
    if item.name.lower().endswith(".json"):  # it has none, and what looks like one is text
        return []
    if is_script(item.name):
        return script_comments(item.conversion.before)
    return comments(item.conversion.before, item.conversion.source)


def _place(one: object) -> tuple[object, ...]:
    return (one.line, one.column, one.rule, one.key, one.message)  # type: ignore[attr-defined]
