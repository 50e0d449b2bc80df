"""From option values as people give them (texts, numbers, mappings) to checked `Choices`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .choices import Choices, options
from .dialects.declaration import declaration, names
from .releases import BadRequirement, Release, release, requirement


class BadOption(ValueError):
    """An option that is not accepted; `flag` is its name on the command line, the message says what is."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(f"{flag}: {message}")
        self.flag = flag
        self.reason = message


def choices(**given: Any) -> Choices:
    """Check option values and put them together.

    Releases may be given as ``["accelerate==1.5.2"]`` or as ``{"accelerate": "1.5.2"}``. Raises
    BadOption for a name, a release or a number that is not accepted, TypeError for an unknown option.
    """
    known = {one.name: one.metadata["flag"] for one in options()}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TypeError(f"no option is called {unknown[0]!r}; there are {', '.join(known)}")
    if given.get("dialect") is not None and given["dialect"] not in names():
        raise BadOption("--dialect", f"{given['dialect']!r} is not known; one of {', '.join(names())}")
    documents = [name for name in names() if declaration(name).output == "document"]
    if given.get("to") is not None and given["to"] not in documents:
        accepted = ", ".join(documents)
        raise BadOption("--to", f"{given['to']!r} cannot be the dialect of a result; one of {accepted}")
    if given.get("no_shard") not in (None, "ddp", "replicate"):
        raise BadOption("--no-shard", f"{given['no_shard']!r} is not known; one of ddp, replicate")
    for name in ("gpus_per_node", "num_nodes", "world_size"):
        size = given.get(name)
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise BadOption(known[name], f"expected a whole number of at least 1, found {size!r}")
    for name in ("came_from", "runs_on"):
        given[name] = _releases(given.get(name) or (), known[name])
    return Choices(**given)


def _releases(given: Mapping[str, Any] | Iterable[str], flag: str) -> dict[str, Release]:
    packages = sorted({declaration(name).package for name in names()})
    found: dict[str, Release] = {}
    pairs = given.items() if isinstance(given, Mapping) else [(text, None) for text in given]
    for package, at in pairs:
        try:
            if at is None:
                package, at = requirement(package)
            found[package.lower()] = at if isinstance(at, Release) else release(str(at))
        except (BadRequirement, ValueError) as error:
            raise BadOption(flag, str(error)) from None
        if package.lower() not in packages:
            raise BadOption(flag, f"no config dialect belongs to {package!r}; known: {', '.join(packages)}")
    return found
