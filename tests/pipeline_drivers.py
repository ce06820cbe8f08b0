"""`armor-ray` runs in processes of their own, so that tests can kill them. They are forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["armor_ray.cli", "armor_ray.models.bi_encoder"])


@dataclass(slots=True)
class Driver:
    """A running command and the file that takes its stdout and stderr."""

    process: BaseProcess
    log: Path

    @property
    def output(self) -> str:
        """All that it printed, but for what Ray has to say about this machine, at any time."""
        lines = self.log.read_text(encoding="utf-8").replace("\r", "\n").splitlines()
        return "\n".join(line for line in lines if "(raylet)" not in line)

    def wait_for(self, what: Callable[[], object], seconds: float = 180) -> None:
        """Until `what` holds.

        Raises:
            AssertionError: the driver ended first, or it took too long.
        """
        deadline = time.monotonic() + seconds
        while not what():
            assert self.process.is_alive() or what(), f"the driver ended with {self.process.exitcode}:\n{self.output}"
            assert time.monotonic() < deadline, f"not within {seconds} s:\n{self.output}"
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: no handler of the driver runs."""
        self.process.kill()
        self.process.join()

    def end(self, seconds: float = 300) -> int:
        """The exit status."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running after {seconds} s:\n{self.output}"
        return self.process.exitcode


def start(arguments: list[str], log: Path, environment: Mapping[str, str]) -> Driver:
    """Starts `armor-ray ARGUMENTS`."""
    process = FORKS.Process(target=_drive, args=(arguments, log, dict(environment)))
    log.touch()
    process.start()
    return Driver(process, log)


def _drive(arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    import ray

    from armor_ray.cli import main

    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_TRUNC)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    try:
        main(arguments)
    finally:
        # A forked process leaves without the exit handlers that would do this.
        ray.shutdown()
