"""Ranks for the runtime's tests; without torch they are skipped, and the rest of the suite runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

try:
    import torch  # noqa: F401
except ImportError:
    collect_ignore_glob = ["test_*.py"]
else:
    from pool import Pool

    _POOLS: dict[int, Pool] = {}

    def _pool(world: int) -> Pool:
        if world not in _POOLS:
            _POOLS[world] = Pool(world)
        return _POOLS[world]

    @pytest.fixture
    def two() -> Pool:
        """Two gloo ranks on the CPU."""
        return _pool(2)

    @pytest.fixture
    def four() -> Pool:
        """Four gloo ranks, for meshes of two axes."""
        return _pool(4)

    @pytest.fixture(scope="session", autouse=True)
    def _stop_pools() -> Iterator[None]:
        yield
        for pool in _POOLS.values():
            pool.stop()
