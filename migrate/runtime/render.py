"""Plans and records as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..report.model import Finding

if TYPE_CHECKING:
    from .plan import Plan, UnitPlan


def plan_text(plan: Plan) -> str:
    """The plan: mesh, units, bytes per rank, collectives per step, findings."""
    mesh = f"shard {plan.shard}" if plan.replicate == 1 else f"replicate {plan.replicate} × shard {plan.shard}"
    lines = [
        f"{plan.model} on {plan.world} rank{'s' if plan.world != 1 else ''} ({mesh}), {_count(plan.numel)} parameters",
        "",
    ]
    lines += _table(
        ["unit", "parameters", "stored", "computed", "reduced", "reshard", "per rank"],
        [_row(group, plan) for group in _alike(plan.units)],
        right=(1, 6),
    )
    lines += ["", f"per rank: parameters {size(plan.parameter_bytes)}, gradients {size(plan.gradient_bytes)}, "]
    lines[-1] += f"Adam states {size(plan.optimizer_bytes)}"
    lines[-1] += ", all in CPU memory" if plan.config.offload.params else ""
    if plan.whole_bytes:
        lines.append(f"whole on every rank: {size(plan.whole_bytes)} of parameters that are not sharded")
    if plan.shard > 1:
        lines.append(
            f"gathered at once: up to {size(plan.gathered_at_once)}, largest unit {size(plan.largest_gathered)}"
        )
    if plan.padding >= 0.001:
        lines.append(f"padding: {100 * plan.padding:.1f} % of what is gathered")
    c = plan.collectives
    lines.append(
        f"per step: {c.all_gathers} all-gathers ({size(c.gathered)}), {c.reduce_scatters} reduce-scatters "
        f"({size(c.reduced)}), {c.all_reduces} all-reduces ({size(c.all_reduced)})"
    )
    if plan.ignored:
        lines.append(f"not sharded: {', '.join(plan.ignored)}")
    return "\n".join([*lines, *findings_text(plan.findings)]) + "\n"


def plan_data(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, described by ``schemas/plan.schema.json``; sizes in bytes and ranks."""
    return {
        "model": plan.model,
        "world": plan.world,
        "replicate": plan.replicate,
        "shard": plan.shard,
        "parameters": plan.numel,
        "units": [_unit_data(unit, plan) for unit in plan.units],
        "ignored": list(plan.ignored),
        "per_rank": {
            "parameters": plan.parameter_bytes,
            "gradients": plan.gradient_bytes,
            "adam_states": plan.optimizer_bytes,
            "whole": plan.whole_bytes,
            "gathered_at_once": plan.gathered_at_once,
            "largest_gathered_unit": plan.largest_gathered,
        },
        "padding": round(plan.padding, 6),
        "per_step": asdict(plan.collectives),
        "findings": [
            {name: getattr(one, name) for name in ("rule", "slug", "severity", "message", "hint", "key", "line")}
            for one in plan.findings
        ],
        "config": plan.config.dump(),
    }


def _unit_data(unit: UnitPlan, plan: Plan) -> dict[str, Any]:
    return {
        "modules": list(unit.paths),
        "kind": unit.kind,
        "parameters": [
            {"name": one.name, "shape": list(one.shape), "dtype": one.dtype, "trainable": one.trainable}
            for one in unit.parameters
        ],
        "precision": asdict(unit.precision),
        "reshard_after_forward": unit.reshard,
        "checkpointed": unit.checkpointed,
        "bytes_per_rank": unit.shard_bytes(plan.shard),
        "bytes_gathered": unit.gathered_bytes(plan.shard),
    }


def findings_text(findings: Sequence[Finding]) -> list[str]:
    """One paragraph a finding, in the order of severity; empty for none."""
    lines: list[str] = []
    for severity in ("error", "warning", "info"):
        for one in findings:
            if one.severity == severity:
                lines += ["", f"{severity} {one.rule} {one.slug}", f"  {one.message}"]
                if severity != "info" and one.hint:
                    lines.append(f"  hint: {one.hint}")
    return lines


def size(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.2f} TiB"


def _count(number: int) -> str:
    return f"{number:,}"


def _alike(units: Sequence[UnitPlan]) -> list[list[UnitPlan]]:
    """Neighbours that differ in name only make one row."""
    groups: list[list[UnitPlan]] = []
    for unit in units:
        if groups and _form(groups[-1][-1]) == _form(unit):
            groups[-1].append(unit)
        else:
            groups.append([unit])
    return groups


def _form(unit: UnitPlan) -> object:
    shapes = tuple((one.shape, one.dtype, one.trainable) for one in unit.parameters)
    return unit.kind, shapes, unit.precision, unit.reshard, unit.checkpointed


def _row(group: Sequence[UnitPlan], plan: Plan) -> list[str]:
    first = group[0]
    title = first.title if len(group) == 1 else f"{len(group)} × {first.title} … {group[-1].title}"
    notes: list[str] = [first.kind] if first.kind not in ("root", "block") else []
    notes += ["checkpointed"] if first.checkpointed else []
    stored = sorted({one.dtype for one in first.parameters})
    return [
        title + (f" ({', '.join(notes)})" if notes else ""),
        _count(first.numel),
        ", ".join(stored) or "-",
        first.precision.param or "as stored",
        first.precision.reduce or "as stored",
        "root" if first.reshard is None else str(first.reshard).lower(),
        size(first.shard_bytes(plan.shard)),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], right: tuple[int, ...]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [one.rjust(widths[i]) if i in right else one.ljust(widths[i]) for i, one in enumerate(row)]
        return "  ".join(cells).rstrip()

    return [line(head), *(line(row) for row in rows)]
