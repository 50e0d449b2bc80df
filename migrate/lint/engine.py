"""Which FSDP runs a file."""

from __future__ import annotations

from ..effective import Engine
from ..pipeline import Conversion


def engine_of(done: Conversion) -> Engine | None:
    """The engine that runs the file, None where no block is active."""
    ran = [part.ran for part in done.parts.values() if part.ran is not None and not part.inert]
    return ("fsdp1" if any(one.engine == "fsdp1" for one in ran) else "fsdp2") if ran else None
