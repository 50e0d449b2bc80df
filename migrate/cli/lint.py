"""`fsdp-migrate lint`: judge the FSDP configs of a repository, as a gate."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..report.model import Report
from ..settings import Settings
from .options import choices_by_path, encoded, err, out, painter, settings_of, with_choices, with_settings

FORMATS = ("text", "json", "sarif", "github", "gitlab", "markdown")


def _listed(given: tuple[str, ...]) -> tuple[str, ...]:
    """Values of a repeatable option, which may also be one list with commas."""
    return tuple(one.strip() for text in given for one in text.split(","))


@click.command("lint", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1)
@with_choices
@click.option(
    "--include", multiple=True, metavar="PATTERN", help="Look at these files instead of *.yaml, *.json, *.md, *.sh."
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave these files out of folders.")
@click.option("--force-exclude", is_flag=True, help="Leave excluded files out even if they are named, as hooks do.")
@click.option(
    "--select",
    multiple=True,
    metavar="RULE",
    callback=lambda ctx, one, given: _listed(given),
    help="Only these rules: an id, its beginning, or a slug.",
)
@click.option(
    "--ignore", multiple=True, metavar="RULE", callback=lambda ctx, one, given: _listed(given), help="Not these rules."
)
@click.option("--severity", multiple=True, metavar="RULE=LEVEL", help="Another severity for a rule.")
@click.option("--baseline", metavar="FILE", help="Accept the findings that FILE holds.")
@click.option("--write-baseline", metavar="FILE", help="Write the findings of this run to FILE, and exit 0.")
@click.option("--fix", is_flag=True, help="Mend FSDP2 files where that changes nothing that runs.")
@click.option("--unsafe-fixes", is_flag=True, help="With --fix: also mend what may change what runs.")
@click.option("--list-files", is_flag=True, help="Print the files that would be looked at.")
@with_settings
@click.option("--stdin-filename", metavar="NAME", help="The name of the text read with -.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default=None,
    help="Form of the report on standard output; github inside GitHub Actions, else text.",
)  # fmt: skip
@click.option("--output", multiple=True, metavar="FORMAT:FILE", help="Write the report to FILE, too. Repeatable.")
@click.option(
    "--fail-on", type=click.Choice(["error", "warning", "info"]), default=None,
    help="Exit 1 at findings of this severity or worse.  [default: warning]",
)  # fmt: skip
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="Colours in the output.")
@click.option("-q", "--quiet", is_flag=True, help="Report errors only.")
def command(
    paths: tuple[str, ...],
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    force_exclude: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    severity: tuple[str, ...],
    baseline: str | None,
    write_baseline: str | None,
    fix: bool,
    unsafe_fixes: bool,
    list_files: bool,
    settings_file: str | None,
    stdin_filename: str | None,
    form: str | None,
    output: tuple[str, ...],
    fail_on: Any,
    color: str,
    quiet: bool,
    **chosen: Any,
) -> int:
    """Judge FSDP configs: FSDP1 in use, dead keys, contradictions, typos, traps.

    PATH is a file, a folder, a pattern, or - for standard input; the current folder by default. Nothing is
    written without --fix.
    """
    from .. import __version__
    from ..batch import worst_code
    from ..lint import baseline as baselines
    from ..lint.discovery import Filter, NothingFound, find
    from ..lint.fix import fixed
    from ..lint.run import as_judged, lint
    from ..lint.selection import BadSelection, Selection

    settings = settings_of(settings_file)
    _check_rules(settings)
    try:
        selection = Selection(
            select or settings.select,
            (*settings.ignore, *ignore),
            {**settings.severity, **_severities(severity)},  # type: ignore[dict-item]
        )
        wanted = Filter(
            settings.root,
            include or settings.include,
            (*settings.exclude, *exclude),
            settings.respect_gitignore,
            also_named=force_exclude,
        )
        names = find(paths or (".",), wanted, err)
        chosen_baseline = baseline or (str(settings.root / settings.baseline) if settings.baseline else None)
        known = baselines.load(Path(chosen_baseline)) if chosen_baseline and not write_baseline else None
    except (BadSelection, NothingFound, baselines.BadBaseline) as error:
        raise click.UsageError(str(error)) from None
    outputs = [_output(one) for one in output]
    if list_files:
        out("".join(f"{name}\n" for name in names))
        return 0
    if unsafe_fixes and not fix:
        raise click.UsageError("--unsafe-fixes says which fixes --fix makes; give both")
    if fix and "-" in names:
        raise click.UsageError("standard input cannot be mended in place")
    by_path = choices_by_path(settings, chosen)

    def choices_for(path: str) -> Any:
        return as_judged(by_path(path))

    stdin = (stdin_filename or "-", sys.stdin.buffer.read()) if "-" in names else None

    def judge() -> Any:
        return lint(names, choices_for, selection, settings.ignored_for, known, stdin)

    run = judge()
    mended = None
    if fix:
        done = fixed(run.files, choices_for, unsafe=unsafe_fixes)
        mended = done.written
        run = done.told(judge() if mended else run)
    if write_baseline:
        return _write_baseline(write_baseline, run.reports)
    reports = run.reports
    report = Report(__version__, tuple(reports))
    for kind, file in outputs:
        _write(file, _rendered(kind, report, "", False, lambda text, role: text))
    kind = form or ("github" if os.environ.get("GITHUB_ACTIONS") == "true" else "text")
    out(_rendered(kind, report, _last_line(run, mended), quiet, painter(color, sys.stdout)))
    if run.gone and kind == "text" and not select and not ignore:  # rules that are not asked find nothing, too
        what = "1 entry" if run.gone == 1 else f"{run.gone} entries"
        err(f"{what} of {chosen_baseline} without a finding by now; --write-baseline writes it anew\n")
    threshold: Any = fail_on or settings.fail_on or "warning"
    return worst_code(reports, threshold)


def _check_rules(settings: Settings) -> None:
    """Rules that the settings name must exist; also those for files not seen today."""
    from ..lint.selection import BadSelection, Selection

    ignored = [rule for one in settings.paths for rule in one.ignore]
    try:
        Selection(settings.select, (*settings.ignore, *ignored), settings.severity)  # type: ignore[arg-type]
    except BadSelection as error:
        raise click.UsageError(f"{settings.source}: {error}") from None


def _severities(given: Sequence[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    for rule, mark, level in pairs:
        if not (rule and mark and level):
            raise click.BadParameter(f"expected RULE=LEVEL, found {rule + mark + level!r}", param_hint="--severity")
    return {rule: level for rule, _, level in pairs}


def _output(given: str) -> tuple[str, Path]:
    kind, mark, file = given.partition(":")
    if kind not in FORMATS or not mark or not file:
        raise click.BadParameter(
            f"expected one of {', '.join(FORMATS)}, then :FILE; found {given!r}", param_hint="--output"
        )
    return kind, Path(file)


def _rendered(kind: str, report: Report, last: str, quiet: bool, paint: Any) -> str:
    from ..lint.baseline import fingerprints

    if kind == "sarif":
        from ..report.sarif import render as sarif
        from ..rules import RULES

        rules = [{name: str(getattr(rule, name)) for name in _RULE_FIELDS} for rule in RULES.values()]
        return sarif(report, rules, [fingerprints(file) for file in report.files])
    if kind == "gitlab":
        from ..report.gitlab import render as gitlab

        return gitlab(report, [fingerprints(file) for file in report.files])
    if kind == "json":
        from ..report.json import render as as_json

        return as_json(report)
    if kind == "github":
        from ..report.github import render as github

        return github(report)
    if kind == "markdown":
        from ..report.markdown import render as markdown

        return markdown(report)
    from ..report.text import render_lint

    return render_lint(report, last, paint, quiet)


_RULE_FIELDS = ("id", "slug", "severity", "message", "why", "hint", "source")


def _write(path: Path, text: str) -> None:
    from ..files import FileProblem, write_new

    try:
        write_new(path, encoded(text))
    except FileProblem as problem:
        raise click.UsageError(f"{path}: {problem}") from None


def _write_baseline(path: str, reports: Sequence[Any]) -> int:
    from ..lint.baseline import dump

    _write(Path(path), dump(reports, Path(path).parent))
    count = sum(len(one.findings) for one in reports)
    files = sum(bool(one.findings) for one in reports)
    err(f"{count} finding{'' if count == 1 else 's'} in {files} file{'' if files == 1 else 's'}, written to {path}\n")
    return 0


def _last_line(run: Any, mended: int | None) -> str:
    """What to do now, in one line. `mended` is None where nothing was to be."""
    if mended is not None:
        return f"{mended} file{'' if mended == 1 else 's'} mended." if mended else "Nothing was mended."
    fsdp1 = [one.report.path for one in run.files if any(f.rule == "FM510" for f in one.report.findings)]
    if fsdp1:
        shown = fsdp1[0] if len(fsdp1) == 1 else "PATH..."
        return f"To see the FSDP2 form: fsdp-migrate {shown}"
    from ..lint.fix import fixable

    if any(fixable(one, unsafe=False) for one in run.files):
        return "Some of it can be mended: fsdp-migrate lint --fix"
    return ""
