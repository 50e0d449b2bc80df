"""Scalars as the loader that owns a file reads them, and values as that loader will read them back.

`yaml11` follows the implicit resolvers of PyYAML's SafeLoader (6.0, ``yaml/resolver.py`` and
``yaml/constructor.py``): that is what accelerate, transformers and most trainers call. It differs
from YAML 1.2 where it hurts: ``no`` is false, ``1e8`` is text, ``010`` is 8, ``1_000`` is 1000.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

Kind = Literal["yaml", "json"]

_BOOLS = {
    word: value
    for value, words in ((True, ("yes", "true", "on")), (False, ("no", "false", "off")))
    for base in words
    for word in (base, base.capitalize(), base.upper())
}
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_INT = re.compile(
    r"[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+"
    r"|[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+"
)
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
    r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?(?:[Tt \t].*)?")
_SAFE_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.,/+-]*(?: [A-Za-z_][A-Za-z0-9_.,/+-]*)*")
_DIGITS_MAX = 4000  # Python itself refuses longer integers; such a "number" is text to us


class Opaque(str):
    """A scalar of a type this tool never needs (a date, a tagged value); equal to the same text only."""

    __slots__ = ()


def yaml11(text: str) -> Any:
    """The value of a plain YAML scalar under PyYAML's SafeLoader."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if len(text) <= _DIGITS_MAX:
        if _INT.fullmatch(text):
            return _int11(text)
        if _FLOAT.fullmatch(text):
            return _float11(text)
    if _DATE.fullmatch(text):
        return Opaque(text)
    return text


def _int11(text: str) -> Any:
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    try:
        if digits.startswith("0b"):
            return sign * int(digits[2:], 2)
        if digits.startswith("0x"):
            return sign * int(digits[2:], 16)
        if digits.startswith("0") and len(digits) > 1:
            return sign * int(digits, 8)
        if ":" in digits:
            return sign * _sexagesimal([int(part) for part in digits.split(":")])
        return sign * int(digits)
    except ValueError:  # "0_", "0b_": the loader itself would stop here
        return Opaque(text)


def _float11(text: str) -> Any:
    digits = text.replace("_", "").lower()
    sign = -1.0 if digits.startswith("-") else 1.0
    digits = digits.lstrip("+-")
    try:
        if digits == ".inf":
            return sign * float("inf")
        if digits == ".nan":
            return Opaque(text)  # never equal to itself; kept comparable as text
        if ":" in digits:
            return sign * _sexagesimal([float(part) for part in digits.split(":")])
        return sign * float(digits)
    except ValueError:
        return Opaque(text)


def _sexagesimal(parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total * 60 + part
    return total


def json_scalar(source: str) -> Any:
    """The value of one JSON scalar, from its source text (escapes and surrogate pairs by `json`)."""
    return json.loads(source)


def render(value: Any, kind: Kind, quote: str | None = None) -> str:
    """Source text of a scalar that both YAML 1.1 and 1.2 loaders (or JSON) read as `value`.

    `quote` is the quote character that the replaced scalar had; strings keep it.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise TypeError(f"no scalar form for {value!r}")
    if kind == "json" or quote == '"':
        return json.dumps(value, ensure_ascii=False)
    if quote != "'" and _SAFE_PLAIN.fullmatch(value) and _plain_stays_text(value):
        return value
    if value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return json.dumps(value, ensure_ascii=True)


def _plain_stays_text(value: str) -> bool:
    # the second half: y and n are booleans to strict YAML 1.1 loaders, though not to PyYAML
    return isinstance(yaml11(value), str) and value.lower() not in ("y", "n")
