"""The text layer alone: scalars as PyYAML reads them, positions, hazards, edits in odd places."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from fsdp_migrate.text.document import parse
from fsdp_migrate.text.edits import Delete, Insert, RenameKey, SetValue, apply_edits
from fsdp_migrate.text.errors import TextError
from fsdp_migrate.text.scalars import Opaque, render, yaml11

PLAIN = [
    "no", "No", "NO", "yes", "on", "off", "y", "n", "true", "True", "TRUE", "tRue", "null", "Null", "~",
    "none", "None", "1", "-1", "+1", "0", "00", "010", "08", "0o10", "0x1F", "0b11", "1_000", "1__0", "1e8",
    "1e+8", "1.0e8", "1.0e+8", "1.e+3", ".5", "5.", ".e1", "1.5", "-.5", "1_0.5", ".inf", "-.inf", ".Inf",
    ".nan", "12:30", "1:2:3.5", "190:20:30", "2024-01-01", "2024-01-01T10:00:00", "=", "FULL_SHARD", "1.2.3",
    "${X}", "a:b", "0_", "0x", "0b", "1a", "_1", "+.inf", "1e", "1.0e", "1.0e-3",
]  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_plain_scalars_are_read_as_pyyaml_reads_them(text: str) -> None:
    try:
        wanted = yaml.safe_load(text)
    except Exception:
        assert isinstance(yaml11(text), str)  # PyYAML itself raises: whatever it is, it is no number here
        return
    found = yaml11(text)
    if isinstance(found, Opaque):
        assert not isinstance(wanted, (bool, int, str)) or wanted is None or isinstance(wanted, str)
    else:
        assert found == wanted
        assert type(found) is type(wanted)


@pytest.mark.parametrize(
    "value", ["no", "1e8", "0x1", "", " a", "a: b", "a #b", "A,B", "it's", 'say "x"', "~", "é", "\t"]
)
@pytest.mark.parametrize("quote", [None, "'", '"'])
def test_rendered_texts_are_read_back(value: str, quote: str | None) -> None:
    assert yaml.safe_load("k: " + render(value, "yaml", quote))["k"] == value
    assert json.loads(render(value, "json")) == value


def _edited(text: str, *edits: Any, kind: Any = "yaml") -> str:
    return apply_edits(parse(text, kind), edits).source


def test_comments_of_a_deleted_entry_stay() -> None:
    text = "a: 1\nb:   # head\n  - x # one\n  # own line\n  - y\nc: 2 # end\n"
    assert _edited(text, Delete(("b",))) == "a: 1\n# head\n# one\n# own line\nc: 2 # end\n"


def test_a_number_sign_in_a_value_is_no_comment() -> None:
    text = "a: 'x # y'\nb: |\n  # not a comment\n  z\nc: a#b # yes\n"
    assert _edited(text, Delete(("a",))) == "b: |\n  # not a comment\n  z\nc: a#b # yes\n"
    assert _edited(text, Delete(("b",))) == "a: 'x # y'\nc: a#b # yes\n"
    assert _edited(text, Delete(("c",))) == "a: 'x # y'\nb: |\n  # not a comment\n  z\n# yes\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_line_ends_and_the_missing_final_one(newline: str, final: bool) -> None:
    lines = ["a: 1", "b:", "    c: 2", "    d: 3"]
    text = newline.join(lines) + (newline if final else "")
    wanted = newline.join(["a: 1", "b:", "    c: 2", "    e: 4"]) + (newline if final else "")
    assert _edited(text, Delete(("b", "d")), Insert(("b",), "e", 4)) == wanted


def test_new_keys_take_their_place_where_keys_are_sorted() -> None:
    text = "m:\n  a: 1\n  c: 2\n  e: 3\nz: 0\n"
    assert _edited(text, Insert(("m",), "d", 9)) == "m:\n  a: 1\n  c: 2\n  d: 9\n  e: 3\nz: 0\n"
    assert _edited(text, Insert(("m",), "Z", 9)).startswith("m:\n  Z: 9\n  a: 1")


def test_a_scalar_in_place_of_a_list() -> None:
    text = "a:\n- x\n- y\nb: 1\n"
    assert _edited(text, SetValue(("a",), "x,y")) == "a: x,y\nb: 1\n"


def test_rename_keeps_quotes_and_alignment() -> None:
    text = '"old" :   1   # c\n'
    assert _edited(text, RenameKey(("old",), "new")) == '"new" :   1   # c\n'


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("a: &x 1\nb: *x\n", SetValue(("a",), 2)),
        ("a: &x 1\nb: *x\n", SetValue(("b",), 2)),
        ("m: &m {a: 1}\nn: *m\n", SetValue(("m", "a"), 2)),
        ("m:\n  <<: {a: 1}\n  b: 2\n", Delete(("m", "b"))),
        ("? a\n: 1\nb: 2\n", Delete(("a",))),
        ("{a: 1, b: [x, # why\n y]}\n", Delete(("b",))),
    ],
)
def test_what_cannot_be_edited_alone_is_refused(text: str, edit: Any) -> None:
    with pytest.raises(TextError) as caught:
        _edited(text, edit)
    assert caught.value.line >= 1


def test_a_key_is_not_added_twice() -> None:
    with pytest.raises(TextError):
        _edited("a: 1\nb: 2\n", Insert((), "a", 1))


def test_the_result_is_compared_with_the_intention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in an edit, a text that reads otherwise than intended is not handed out."""
    from fsdp_migrate.text import edits

    monkeypatch.setattr(edits, "_splice", lambda text, splices: text.replace("b: 2", "b: 3"))
    with pytest.raises(TextError, match="not read back"):
        _edited("a: 1\nb: 2\n", SetValue(("a",), 9))


def test_alias_bombs_cost_nothing() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    text = "\n".join(rows) + "\nkey: 1\n"
    # 10^30 elements: this ends only if shared parts are read and compared once
    assert _edited(text, SetValue(("key",), 2)) == text.replace("key: 1", "key: 2")


@pytest.mark.parametrize(
    ("text", "kind", "fault", "line", "column"),
    [
        ("a:\n\tb: 1\n", "yaml", "tab", 2, 1),
        ("a: 1\n---\nb: 2\n", "yaml", "documents", 2, 1),
        ("a: 1\nb: 'x\nc: 2\n", "yaml", "syntax", 2, 4),
        ("<<<<<<< ours\na: 1\n=======\na: 2\n>>>>>>> theirs\n", "yaml", "conflict", 1, 1),
        ("{% if x %}\na: 1\n", "yaml", "template", 1, 2),
        ('{"a": 1, // c\n"b": 2}', "json", "jsonc", 1, 10),
        ('{"a": 1 "b": 2}', "json", "syntax", 1, 9),
        ("{// c\n a: 1}", "yaml", "jsonc", 1, 2),
        ("a: *nobody\n", "yaml", "syntax", 1, 4),
    ],
)
def test_faults_have_a_kind_and_a_place(text: str, kind: Any, fault: str, line: int, column: int) -> None:
    with pytest.raises(TextError) as caught:
        parse(text, kind)
    assert (caught.value.fault, caught.value.line, caught.value.column) == (fault, line, column)


def test_comments_between_flow_entries_stay() -> None:
    assert _edited("{a: 1, # why\n b: 2}\n", Delete(("b",))) == "{a: 1, # why\n }\n"
    assert _edited("{a: 1, # why\n b: 2, c: 3}\n", Delete(("b",))) == "{a: 1, # why\n  c: 3}\n"


def test_empty_values_inside_flow_mappings() -> None:
    assert _edited("{a: , b: 1}\n", SetValue(("a",), 2)) == "{a: 2 , b: 1}\n"
    assert _edited("{b: 1, a: }\n", Insert((), "c", 2), Insert((), "d", 3)) == "{b: 1, a: , c: 2, d: 3 }\n"


def test_commas_inside_flow_mappings_are_quoted() -> None:
    assert _edited("{a: [x, y]}\n", SetValue(("a",), "x,y")) == "{a: 'x,y'}\n"


def test_escaped_surrogates_are_one_character() -> None:
    document = parse('a: "\\ud83d\\ude42"\nb: "\\ud83d"\n', "yaml")
    assert document.root is not None
    document.value(document.root)["a"].encode()
    assert document.value(document.root)["a"] == "\U0001f642"
    document.value(document.root)["b"].encode()


def test_tags_are_never_constructed() -> None:
    document = parse("a: !!python/object/apply:os.system ['echo no']\nb: 1\n", "yaml")
    assert document.root is not None
    assert document.value(document.root)["b"] == 1


def test_json_scalars_are_decoded_by_json() -> None:
    text = '{"a": "\\ud83d\\ude00\\/", "b": 1e8, "c": true, "d": null}'
    document = parse(text, "json")
    assert document.root is not None
    assert document.value(document.root) == json.loads(text)
