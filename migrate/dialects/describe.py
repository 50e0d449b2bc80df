"""What a declaration says, for people: a page for each dialect and a row in their table."""

from __future__ import annotations

from ..config.words import word
from ..effective import Default, Window
from .declaration import Block, Declaration, Option
from .recognise import Framework, Test

_WRITES = {
    "always": "written out",
    "stated": "kept",
    "delete": "removed",
    "leave": "read, not changed",
}


def row(declared: Declaration) -> dict[str, str]:
    """The dialect in the table that `fsdp-migrate dialects` prints."""
    first, last = declared.releases[0], declared.releases[-1]
    return {
        "name": declared.name,
        "files": declared.language,
        "package": declared.package,
        "releases": f"{first} to {last}",
        "result": "the file, edited" if declared.output == "edits" else "an Fsdp2Config document",
    }


def table(declarations: list[Declaration]) -> str:
    """All dialects, as Markdown."""
    rows = [row(declared) for declared in declarations]
    parts = [
        "# Dialects",
        "",
        "The config languages that this release converts; generated from `schemas/dialects/`.",
        "",
        "| dialect | files | package | releases | result |",
        "| --- | --- | --- | --- | --- |",
    ]
    parts += ["| " + " | ".join([f"[{one['name']}]({one['name']}.md)", *list(one.values())[1:]]) + " |" for one in rows]
    parts += ["", "Configs of other frameworks, which are known but not rewritten: [recognised.md](recognised.md)."]
    return "\n".join(parts) + "\n"


def recognised(frameworks: tuple[Framework, ...]) -> str:
    """The frameworks that are known but not rewritten, as Markdown."""
    parts = [
        "# Recognised, not rewritten",
        "",
        "Configs that this release knows and leaves as they are; generated from `schemas/recognised.toml`. The table",
        "is asked where a file belongs to none of the [dialects](README.md). FSDP1 is refused with what to do",
        "([FM035](../rules/FM035.md), [FM036](../rules/FM036.md)). What is FSDP2 already, or another engine, is told",
        "as an info ([FM037](../rules/FM037.md)), whatever FSDP1 words it uses. A file whose own switch is off is",
        "passed over.",
        "",
        "In paths `*` is any one key and `**` any depth.",
        "",
        "| framework | known by | what it is | what to do | source |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in frameworks:
        cells = (one.title, _known(one), f"{one.means}: {one.what}", one.do, one.source)
        parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(parts) + "\n"


def _known(one: Framework) -> str:
    text = "; or ".join(" and ".join(map(_test, tests)) for tests in one.known)
    if one.unless:
        text += f"; unless {' or '.join(map(_test, one.unless))}"
    if one.off:
        text += f"; off where {' and '.join(map(_test, one.off))}"
    return text


def _test(test: Test) -> str:
    keys = " / ".join(f"`{at}`" for at in test.at)
    if not test.exists:
        return f"no {keys}"
    if test.set is not None:
        return f"{keys} is {'on' if test.set else 'off'}"
    if test.shape is not None:
        return f"{keys} is a {test.shape}"
    if test.words:
        return f"{keys} is " + " / ".join(f"`{word}`" for word in test.words)
    return keys if test.matches is None else f"{keys} matches `{test.matches}`"


def page(declared: Declaration) -> str:
    """One dialect, as Markdown: every option with what becomes of it."""
    about = row(declared)
    parts = [
        f"# {declared.name}",
        "",
        f"Files: {about['files']}.",
        f"Package: {about['package']}, releases {about['releases']}. Result: {about['result']}.",
        "",
        "Generated from the declaration; the meaning of each option under FSDP2 is in"
        " [fsdp1-to-fsdp2.md](../fsdp1-to-fsdp2.md).",
    ]
    for block in declared.blocks:
        parts += ["", *_block(declared, block)]
    return "\n".join(parts) + "\n"


def _block(declared: Declaration, block: Block) -> list[str]:
    where = " or ".join(f"`{'.'.join(place)}`" if place else "the root of the file" for place in block.places)
    lines = [f"## Options under {where}", ""]
    if block.prefix:
        lines += [f"Keys without the prefix `{block.prefix}` are read as if they had it.", ""]
    if block.strip:
        lines += [
            f"The prefix `{block.strip}` before a key of the block is taken off ({_window(block.strip_window)}).",
            "",
        ]
    lines += [
        "| key | meaning | read | default | under FSDP2 | source |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for option in block.options:
        keys = ", ".join(_key(option, index) for index in range(len(option.spellings)))
        cells = (keys, option.doc, _read(option), _defaults(option), _written(block, option), option.ref)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if block.misnamed:
        lines += ["", "Never read by any release, and told: "]
        named = [f"`{row.key}` (meant: `{block.option(row.meant).spellings[0].path[-1]}`)" for row in block.misnamed]
        lines[-1] += ", ".join(named) + "."
    return lines


def _key(option: Option, index: int) -> str:
    spelling = option.spellings[index]
    name = f"`{'.'.join(spelling.path)}`"
    return name if spelling.window == Window() else f"{name} ({_window(spelling.window)})"


def _window(window: Window) -> str:
    parts = [window.releases if window.releases != "*" else "", window.engine.upper() if window.engine else ""]
    return " ".join(part for part in parts if part) or "always"


def _read(option: Option) -> str:
    if not option.facts.read:
        return "never"
    return "; ".join(_window(window) for window in option.facts.read)


def _defaults(option: Option) -> str:
    def one(default: Default) -> str:
        value = word(default.value)
        if isinstance(value, tuple):
            value = ", ".join(str(word(item)) for item in value if item is not None)
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        return shown if default.window == Window() else f"{shown} ({_window(default.window)})"

    return "; ".join(one(default) for default in option.facts.defaults)


def _written(block: Block, option: Option) -> str:
    if option.write.startswith("spread:"):
        fields = (other for other in block.options if other.write in ("always", "stated"))
        keys = [
            f"`{one.spellings[0].path[-1]}`"
            for one in fields
            if {one.field} & {"reshard_after_forward", *option.facts.fields}
        ]
        return "becomes " + ", ".join(keys)
    if option.write.startswith("into:"):
        other = block.option(option.write.removeprefix("into:"))
        return f"becomes `{other.spellings[0].path[-1]}`"
    since = f", needs >= {option.since}" if option.since else ""
    return _WRITES[option.write] + since
