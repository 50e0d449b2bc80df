"""How rules speak in lint, where nothing is rewritten: whether at all, how gravely, in which words.

Convert tells what becomes of a file; lint tells what is wrong with it today. A rule without a row
here is told by lint as by convert, in FSDP2 files and in others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..report.model import Severity

Fix = Literal["none", "safe", "unsafe"]


@dataclass(frozen=True)
class InLint:
    """engines: in files of which engine the rule is told. fix: whether ``lint --fix`` mends it; an
    unsafe fix may change what runs. Empty words are those of the rule table."""

    engines: Literal["both", "fsdp1", "fsdp2", "none"] = "both"
    severity: Severity | None = None
    message: str = ""
    hint: str = ""
    fix: Fix = "none"


LINT: dict[str, InLint] = {
    "FM010": InLint(
        severity="info",
        message="has FSDP settings (`{found}`) in a config language that this release does not know, and cannot judge",
        hint="if the file belongs to one of {known}, name it with --dialect",
    ),
    "FM012": InLint(hint="keep the one that is meant"),
    "FM013": InLint(severity="warning", hint="keep one of them", fix="safe"),
    "FM017": InLint(message="`{key}` is no option of {dialect}{unread}{nearest}"),
    "FM019": InLint(message="the value of `{key}`, {value}, cannot be read (expected {accepted})", fix="safe"),
    "FM021": InLint(hint="correct it before you launch"),
    "FM022": InLint(message="`{key}` has no effect: {reason}"),
    "FM023": InLint(
        severity="error",
        message="{release} does not start with this file: {reason}",
        hint="correct the key",
        fix="unsafe",  # it starts once the key is gone, with another setting than the key says
    ),
    "FM024": InLint(
        message="`{key}` says {stated}, but {ran} is what runs: {reason}", hint="write what is meant", fix="safe"
    ),
    "FM028": InLint(
        "fsdp1",
        severity="info",
        message="`{key}` is {value}, no whole number: the groups of a HYBRID strategy cannot be computed from it",
        hint="write a whole number if the strategy is one",
    ),
    "FM030": InLint(
        severity="error",
        message="`{key}` is {stated}, but {dialect} {release} does not read it: FSDP1 runs",
        hint="launch with a newer release; FSDP2 came to it later",
    ),
    "FM026": InLint(
        message="`{key}` was never read by any release of {dialect}", hint="the option's name is `{meant}`; rename it"
    ),
    # FSDP1 in use, as FM510 has it, in a language that is not rewritten
    "FM035": InLint(severity="warning"),
    "FM036": InLint(severity="warning"),
    "FM201": InLint(
        severity="error",
        message="`{key}` is {value}; {dialect} splits it at every comma, strips nothing and looks for bare class "
        "names: what is left is not found in a model",
        hint="write it as `{written}`",
        fix="safe",
    ),
    "FM203": InLint(
        "fsdp2",
        severity="error",
        message="`{key}` is {value}, which the loader does not read as a whole number",
        hint="write it as {written}",
        fix="safe",
    ),
    "FM204": InLint(
        message="`{key}: no` without quotes is the boolean false to a YAML 1.1 loader",
        hint="write it as 'no'",
        fix="safe",
    ),
    "FM205": InLint(
        "fsdp2",
        severity="error",
        message="`{key}` is {value}, a strategy where FSDP2 takes true or false: the job does not start",
        hint="write it as {written}",
        fix="safe",
    ),
    "FM206": InLint(
        severity="error",
        message="`{key}` is {value}, a spelling that no release of {dialect} accepts: the job does not start",
        hint="write it as {written}",
        fix="safe",
    ),
    "FM306": InLint(
        "fsdp2",
        severity="error",
        message="LOCAL_STATE_DICT does not exist in FSDP2, and {dialect} refuses it",
        hint="use SHARDED_STATE_DICT",
        fix="unsafe",
    ),
    "FM308": InLint(
        "fsdp2",
        severity="error",
        message="activation checkpointing without a wrap policy stops {dialect} under FSDP2",
        hint="set a wrap policy, such as TRANSFORMER_BASED_WRAP",
        fix="unsafe",
    ),
    "FM317": InLint(
        "fsdp2",
        message="without a wrap policy the whole model is one unit: it is gathered at once and nothing overlaps",
    ),
    "FM318": InLint(message="a threshold of 0 switches SIZE_BASED_WRAP off in {dialect}: the whole model is one unit"),
    "FM322": InLint(
        severity="error",
        message="`{key}` needs activation checkpointing, which is off: the job does not start",
        fix="safe",
    ),
    "FM325": InLint(message="`{key}` is read only with {policy}, and {ran} runs; it has no effect"),
    "FM326": InLint(
        message="`{key}` says {value}, but the release does not read this key: no prefetch is set",
        hint="remove it, or write it under a key that the release reads",
    ),
    "FM421": InLint("fsdp2", severity="error"),
    "FM422": InLint("none"),
    "FM501": InLint(
        severity="warning", message="`{key}` is an FSDP1 key; FSDP2 does not read it", hint="remove it", fix="safe"
    ),
    "FM502": InLint(
        severity="error",
        message="`{key}` is an FSDP1 key that FSDP2 does not read: it says {stated}, but {ran} is what runs",
        hint="remove it; {remedy}",
        fix="safe",
    ),
}

# what convert does with an FSDP1 file is no fault of the file; these are, whatever its engine
_FAULTS_OF_ANY_FILE = frozenset(("FM402", "FM406", "FM417", "FM418"))
_CONVERT_ONLY = frozenset(("FM025", "FM202", "FM310", "FM312", "FM324", "FM404", "FM016"))


def lint_words(rule: str) -> InLint:
    """The row of `rule`, made up from its band where it has none."""
    if rule in LINT:
        return LINT[rule]
    if rule in _CONVERT_ONLY or rule[2] == "1":
        return InLint("none")
    if rule[2] in "05" or rule in _FAULTS_OF_ANY_FILE:
        return InLint()
    return InLint("fsdp2")
