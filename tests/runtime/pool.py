"""A persistent pool of gloo ranks: started once, handed functions by name, replaced after a failure."""

from __future__ import annotations

import importlib
import os
import queue
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HERE = Path(__file__).resolve().parent


class RankFailed(AssertionError):
    """A function raised on a rank; the message holds that rank's traceback."""


def _serve(rank: int, world: int, meeting: str, inbox: Any, outbox: Any, paths: list[str]) -> None:
    import sys

    sys.path[:0] = [path for path in paths if path not in sys.path]
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    while (task := inbox.get()) is not None:
        module, name, args = task
        try:
            torch.manual_seed(0)
            function = getattr(importlib.import_module(module), name)
            outbox.put((rank, True, function(rank, *args)))
        except BaseException:
            outbox.put((rank, False, traceback.format_exc()))
    dist.destroy_process_group()


class Pool:
    """`run("module", "function", ...)` calls ``function(rank, ...)`` on every rank and returns all results."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._start()

    def _start(self) -> None:
        import sys

        context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._outbox = context.Queue()
        self._inboxes = [context.Queue() for _ in range(self.world)]
        meeting = str(Path(self._folder.name) / "meeting")
        self._ranks = [
            context.Process(
                target=_serve, args=(rank, self.world, meeting, inbox, self._outbox, list(sys.path)), daemon=True
            )
            for rank, inbox in enumerate(self._inboxes)
        ]
        for process in self._ranks:
            process.start()

    def run(self, module: str, name: str, *args: Any, timeout: float = 120) -> list[Any]:
        for inbox in self._inboxes:
            inbox.put((module, name, args))
        results: dict[int, Any] = {}
        failures: list[str] = []
        while len(results) + len(failures) < self.world:
            try:
                rank, fine, value = self._outbox.get(timeout=15 if failures else timeout)
            except queue.Empty:
                failures.append(f"no answer from ranks {sorted(set(range(self.world)) - set(results))}")
                break
            if fine:
                results[rank] = value
            else:
                failures.append(f"rank {rank}:\n{value}")
        if failures:
            self._restart()  # a rank may be left inside a collective
            raise RankFailed("\n".join(failures))
        return [results[rank] for rank in range(self.world)]

    def _restart(self) -> None:
        self.stop(kill=True)
        self._start()

    def stop(self, kill: bool = False) -> None:
        for process, inbox in zip(self._ranks, self._inboxes, strict=True):
            if kill:
                process.kill()
            else:
                inbox.put(None)
        for process in self._ranks:
            process.join(10)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()
