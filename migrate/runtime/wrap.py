"""Which modules become units: FSDP1's wrap policies, computed on the plain model.

Every function answers with modules (by identity); order and ties are the business of `units`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from torch import nn

from ..config.fsdp2 import Fsdp2Config, Wrap
from ..config.origin import Origin
from ..rules import NOWHERE, Note
from . import tree

NO_FORWARD = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Containers that are never called, so that neither FSDP can hook their forward."""

SIZE_DEFAULT = 100_000_000
"""Elements; the default of torch's ``size_based_auto_wrap_policy``."""


def ignored(model: nn.Module, patterns: Sequence[str], notes: list[Note], at: Origin = NOWHERE) -> set[nn.Module]:
    """Modules whose qualified name one of `patterns` matches in full, with all their descendants."""
    found: set[nn.Module] = set()
    every = tree.paths(model)
    for pattern in patterns:
        try:
            expression = re.compile(pattern)
        except re.error as error:
            notes.append(Note("FM618", at, {"pattern": pattern, "reason": f"is no regular expression: {error}"}))
            continue
        hits = [module for path, module in every.items() if path and expression.fullmatch(path)]
        if not hits:
            near = get_close_matches(pattern, [path for path in every if path], 3)
            reason = "matches no module" + (f"; near are {', '.join(near)}" if near else "")
            notes.append(Note("FM618", at, {"pattern": pattern, "reason": reason}))
        for module in hits:
            found.update(module.modules())
    return found


def targets(model: nn.Module, config: Fsdp2Config, skip: set[nn.Module], notes: list[Note]) -> set[nn.Module]:
    """The modules that the wrap policy of `config` makes units of; never the root, never one in `skip`."""
    wrap, at = config.wrap, config.origins.get("wrap.classes", config.origins.get("wrap.policy", NOWHERE))
    if wrap.policy == "classes":
        found = _by_class(model, wrap, notes, at)
    elif wrap.policy == "size":
        threshold = SIZE_DEFAULT if wrap.min_num_params is None else wrap.min_num_params
        precise = full_precision(model, config.mixed_precision.full_precision_classes, skip)
        low = config.mixed_precision.param or config.mixed_precision.reduce
        found = by_size(model, threshold, skip, precise, everywhere=bool(low))
    elif wrap.policy == "names":
        found = _by_name(model, wrap.names, notes, config.origins.get("wrap.names", NOWHERE))
    else:
        found = set()
    if wrap.policy != "size":
        # MultiheadAttention reads the weights of its out_proj and never calls it
        found -= {one.out_proj for one in model.modules() if isinstance(one, nn.MultiheadAttention)}
    return {module for module in found if module is not model and module not in skip}


def full_precision(model: nn.Module, classes: Iterable[str], skip: set[nn.Module]) -> set[nn.Module]:
    """Modules of `classes` or of classes derived from them, as ``_module_classes_to_ignore`` finds them."""
    wanted = set(classes)
    if not wanted:
        return set()
    every = (module for module in model.modules() if module is not model and module not in skip)
    return {module for module in every if tree.class_names(module) & wanted}


def by_size(
    model: nn.Module, threshold: int, skip: set[nn.Module], precise: set[nn.Module], *, everywhere: bool
) -> set[nn.Module]:
    """FSDP1's ``size_based_auto_wrap_policy``; `threshold` in elements.

    A module with at least `threshold` elements that its children have not wrapped is wrapped, and
    what is too small moves up. `precise` modules are wrapped whatever their size. `everywhere`: FSDP1
    with mixed precision combines the policy with one that always recurses, so that small modules and
    MultiheadAttention are entered too (torch/distributed/fsdp/_wrap_utils.py, _auto_wrap, torch 2.13).
    """
    left_out = {parameter for module in skip for parameter in module.parameters()}
    found: set[nn.Module] = set()

    def visit(module: nn.Module) -> int:
        own = sum(one.numel() for one in module.parameters() if one not in left_out)
        enters = own >= threshold and not isinstance(module, nn.MultiheadAttention)
        if not enters and not everywhere:
            return 0
        wrapped = sum(visit(child) for child in module.children() if child not in skip)
        large = own - wrapped >= threshold and not isinstance(module, NO_FORWARD)
        if module is not model and (large or module in precise):
            found.add(module)
            return own
        return wrapped

    visit(model)
    return found


def instances(model: nn.Module) -> Counter[str]:
    """Class name → number of instances below the root, containers left out."""
    every = (module for module in model.modules() if module is not model and not isinstance(module, NO_FORWARD))
    return Counter(type(module).__name__ for module in every)


def _by_class(model: nn.Module, wrap: Wrap, notes: list[Note], at: Origin) -> set[nn.Module]:
    derived = not wrap.classes
    names = tuple(wrap.classes) if wrap.classes else _no_split(model)
    by_name = {name: {m for m in model.modules() if name in tree.class_names(m)} for name in names}
    found: set[nn.Module] = set().union(*by_name.values()) if by_name else set()
    missing = [name for name, hits in by_name.items() if not hits - {model}]
    if derived:
        if missing and len(missing) < len(names):
            notes.append(Note("FM609", at, {"missing": ", ".join(missing)}))
        if len(missing) == len(names):
            why = f"of its list ({', '.join(names)}) no class is there" if names else "it names no classes to wrap"
            notes.append(Note("FM610", at, {"reason": why, "model": type(model).__name__}))
            return set()
    else:
        for name in missing:
            notes.append(_not_found(model, name, at))
    containers = sorted({type(one).__name__ for one in found if isinstance(one, NO_FORWARD)})
    for name in containers:
        inside = Counter(type(c).__name__ for one in found if type(one).__name__ == name for c in one.children())
        args = {"container": name, "children": _counted(inside.most_common(3)) or "the modules it holds"}
        notes.append(Note("FM608", at, args))
    return {one for one in found if not isinstance(one, NO_FORWARD)}


def _no_split(model: nn.Module) -> tuple[str, ...]:
    """What a Hugging Face model says of itself; sets come in any order, so sort them."""
    stated = getattr(model, "_no_split_modules", None) or ()
    return tuple(sorted(stated) if isinstance(stated, (set, frozenset)) else stated)


def _not_found(model: nn.Module, name: str, at: Origin) -> Note:
    have = instances(model)
    near = get_close_matches(name, have, 3, cutoff=0.6) or [
        one for one in have if one.lower() == name.rpartition(".")[2].lower()
    ]
    words = f"near is {_counted([(one, have[one]) for one in near])}" if near else _largest(model)
    return Note("FM607", at, {"name": name, "near": words})


def _largest(model: nn.Module) -> str:
    """The classes of repeated modules, which is what blocks look like."""
    sizes: Counter[str] = Counter()
    for module in model.modules():
        if module is not model and not isinstance(module, NO_FORWARD):
            sizes[type(module).__name__] += sum(one.numel() for one in module.parameters())
    have = instances(model)
    repeated = [name for name, _ in sizes.most_common() if have[name] > 1][:3]
    return (
        f"the largest repeated are {_counted([(one, have[one]) for one in repeated])}" if repeated else "none is near"
    )


def _counted(pairs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} ({count} instance{'s' if count != 1 else ''})" for name, count in pairs)


def _by_name(model: nn.Module, patterns: Sequence[str], notes: list[Note], at: Origin) -> set[nn.Module]:
    found: set[nn.Module] = set()
    every = tree.paths(model)
    for pattern in patterns:
        try:
            expression = re.compile(pattern)
        except re.error as error:
            notes.append(Note("FM607", at, {"name": pattern, "near": f"no regular expression: {error}"}))
            continue
        hits = {module for path, module in every.items() if path and expression.fullmatch(path)}
        if not hits:
            near = get_close_matches(pattern, [path for path in every if path], 3)
            words = f"near is {', '.join(near)}" if near else "no module has such a name"
            notes.append(Note("FM607", at, {"name": pattern, "near": words}))
        for module in hits:
            if isinstance(module, NO_FORWARD):
                inside = Counter(type(child).__name__ for child in module.children())
                args = {"container": type(module).__name__, "children": _counted(inside.most_common(3))}
                notes.append(Note("FM608", at, args))
            else:
                found.add(module)
    return found
