"""A model from the user's own code: ``package.module:function``, called because the user asked for it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import torch
from torch import nn


class BadFactory(ValueError):
    """No model came out; the message says why."""


def build_model(name: str, device: str) -> nn.Module:
    """Import from the current folder or the installed packages, call, and return the model.

    `device` is where tensors are made: ``meta`` takes no memory, ``cpu`` is for code that needs values.

    Raises BadFactory.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise BadFactory(f"expected PKG:FACTORY, found {name!r}")
    here = os.getcwd()  # noqa: PTH109  the entry that python -m puts on the path
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        made: Any = import_module(module)
        for part in attribute.split("."):
            made = getattr(made, part)
    except (ImportError, AttributeError) as error:
        raise BadFactory(f"{name}: {error}") from error
    try:
        with torch.device(device):
            model = made()
    except Exception as error:  # the user's code: its last line says more than a traceback of ours
        hint = "; --device cpu builds it with memory" if device == "meta" else ""
        raise BadFactory(f"{name} raised {type(error).__name__}: {error}{hint}") from error
    if not isinstance(model, nn.Module):
        raise BadFactory(f"{name} returned {type(model).__name__}, not a torch.nn.Module")
    return model
