"""`fsdp-migrate convert`: preview by default, `--write` in place, `-o` elsewhere, `--check` as a gate."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..batch import Item, convert_all, exit_code, report_of, unwritten, write_back
from ..choices import options
from ..files import FileProblem, read_file, write_new
from ..report import json as json_format
from ..report import text as text_format
from .options import choices_by_path, choices_of, err, out, painter, settings_of, with_choices, with_settings


@click.command("convert", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--write", is_flag=True, help="Write the result in place.")
@click.option("-o", "--output", metavar="FILE", help="Write the result of one file to FILE; - is standard output.")
@click.option("--check", is_flag=True, help="Exit 1 if a file would change.")
@click.option("--stdin-filename", metavar="NAME", help="The name of the text read with -.")
@click.option("--skip-unrelated", is_flag=True, help="Pass over files that do not mention FSDP.")
@with_choices
@with_settings
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the report.")
@click.option(
    "--fail-on", type=click.Choice(["error", "warning", "info"]), default="error", show_default=True,
    help="Exit 1 at findings of this severity or worse.",
)  # fmt: skip
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="Colours in the output.")
@click.option("-q", "--quiet", is_flag=True, help="Report errors only.")
def command(
    paths: tuple[str, ...],
    write: bool,
    output: str | None,
    check: bool,
    stdin_filename: str | None,
    skip_unrelated: bool,
    settings_file: str | None,
    form: str,
    fail_on: Any,
    color: str,
    quiet: bool,
    **chosen: Any,
) -> int:
    """Translate FSDP1 configs to FSDP2.

    Shows a unified diff on standard output and one report on standard error; nothing is written
    without --write or -o. PATH - reads standard input.
    """
    choices = choices_of(**chosen)
    _usage(paths, write, output, check, form)
    if skip_unrelated and output is not None:
        raise click.UsageError("-o always writes its one file, so it goes without --skip-unrelated")
    if choices.to is not None and (write or output is None):
        raise click.UsageError("--to makes another document: name it with -o FILE (-o - for standard output)")
    choices_for = choices_by_path(settings_of(settings_file), chosen)
    inputs = _inputs(paths, stdin_filename)
    if skip_unrelated:
        inputs = [one for one in inputs if _is_related(*one)]
    items = convert_all(inputs, choices_for)
    if write:
        items = write_back(items)
    if output is not None:
        items = [_elsewhere(items[0], output)]
    if form == "json":
        out(json_format.render(report_of(items)))
    else:
        if output is None and not write:
            paint = painter(color, sys.stdout)
            out("".join(_diff(item, paint) for item in items))
        paint = painter(color, sys.stderr)
        step = "" if quiet else _next_step(items, paths, write, output, chosen, settings_file)
        err(text_format.render(report_of(items), step, paint, quiet))
    return exit_code(items, fail_on, check)


def _usage(paths: Sequence[str], write: bool, output: str | None, check: bool, form: str) -> None:
    if output is not None and len(paths) > 1:
        raise click.UsageError("-o takes one input file; use --write to convert several in place")
    if output is not None and write:
        raise click.UsageError("--write and -o exclude each other")
    if check and (write or output is not None):
        raise click.UsageError("--check writes nothing, so it goes without --write and -o")
    if write and "-" in paths:
        raise click.UsageError("standard input cannot be written in place; use -o FILE or -o -")
    if output == "-" and form == "json":
        raise click.UsageError("standard output takes one of the two: -o FILE with --format json, or -o - alone")
    if paths.count("-") > 1:
        raise click.UsageError("standard input can be read once")


def _inputs(paths: Sequence[str], stdin_filename: str | None) -> list[tuple[str, Path | None, bytes | None]]:
    inputs: list[tuple[str, Path | None, bytes | None]] = []
    for path in dict.fromkeys(paths):
        if path == "-":
            inputs.append((stdin_filename or "-", None, sys.stdin.buffer.read()))
        else:
            inputs.append((path, Path(path), None))
    return inputs


def _is_related(name: str, path: Path | None, data: bytes | None) -> bool:
    from ..lint.discovery import mentions_fsdp

    try:
        return mentions_fsdp(read_file(path) if data is None and path is not None else data or b"")
    except FileProblem:
        return True  # the report says what is wrong with it


def _elsewhere(item: Item, output: str) -> Item:
    report = item.conversion.report
    if report.unusable or report.status == "refused":
        return item
    data = _data(item, output)
    if output == "-":
        stream = sys.stdout.buffer
        stream.write(data)
        stream.flush()
        return item
    try:
        write_new(Path(output), data)
    except FileProblem as problem:
        return unwritten(item, "FM029", f"{output}: {problem}", unusable=True)
    return item


def _data(item: Item, output: str) -> bytes:
    """What goes to the output: the new text, or the input byte for byte where nothing changed."""
    done = item.conversion
    if not done.changed:
        return item.data
    if done.document and output.lower().endswith((".json", ".yaml", ".yml")):
        from ..dialects.document import document_text

        config = next(iter(done.configs.values()))
        return document_text(config, "json" if output.lower().endswith(".json") else "yaml").encode("utf-8")
    return done.text.encode("utf-8")


def _diff(item: Item, paint: Any) -> str:
    if not item.conversion.changed:
        return ""
    if item.conversion.document:
        return item.conversion.text
    name = item.name.lstrip("/")
    before, after = (text.splitlines(keepends=True) for text in (item.conversion.before, item.conversion.text))
    lines = []
    for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
        role = {"+": "added", "-": "removed", "@": "place"}.get(line[:1])
        text = line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n"
        lines.append(paint(text, role) if role else text)
    return "".join(lines)


def _next_step(
    items: Sequence[Item],
    paths: Sequence[str],
    write: bool,
    output: str | None,
    chosen: dict[str, Any],
    settings_file: str | None,
) -> str:
    """The one closing line: what to do now."""
    statuses = [item.conversion.report.status for item in items]
    changed = [item for item in items if item.conversion.changed]
    refused = [item for item in items if item.conversion.report.status in ("refused", "error")]
    if refused and len(refused) == len(items):
        return "Nothing was written. Correct the errors above and run again."
    if write:
        rest = f", {len(refused)} left as they were" if refused else ""
        return f"{len(changed)} written{rest}." if changed else "Nothing to write."
    if output is not None:
        return f"Written to {output}." if output != "-" else "Written to standard output."
    if any(item.conversion.document for item in changed):
        return "Nothing was written. Above is the Fsdp2Config document; -o FILE writes it."
    if changed and "-" in paths:
        return "Nothing was written. Add -o FILE, or -o - for standard output."
    if changed:
        return f"Nothing was written. To apply it: {_again(paths, chosen, settings_file)}"
    if set(statuses) <= {"not-fsdp"}:
        return "No FSDP settings are switched on here; nothing to do."
    return "Nothing to do."


def _again(paths: Sequence[str], chosen: dict[str, Any], settings_file: str | None) -> str:
    """This command with --write, as a line to copy."""
    flags = ["--config", settings_file] if settings_file is not None else []
    for one in options():
        flag, value = one.metadata["flag"], chosen[one.name]
        if value is True:
            flags.append(flag)
        elif isinstance(value, tuple):
            flags += [part for item in value for part in (flag, item)]
        elif value not in (None, False):
            flags += [flag, str(value)]
    shown = list(paths) if len(paths) <= 4 else ["PATH..."]
    words = ["fsdp-migrate", "--write", *flags, *shown]
    return " ".join(word if word == "PATH..." else shlex.quote(word) for word in words)
