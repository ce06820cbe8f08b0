"""Runs a command as a Ray job through `ray job submit`, its output streamed, and says truly how it ended."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Sequence

from armor_ray.demo.head import Head

_POLL_SECONDS = 2.0
_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


def run_job(head: Head, entrypoint: Sequence[str]) -> str:
    """Submits `entrypoint` and waits for its end.

    Args:
        entrypoint: command and arguments, run in the head's job folder; `python` is this very Python. Ray's command line joins them
            for a shell and quotes nothing but blanks, so they must hold no other shell syntax.

    Returns:
        The job's last status: SUCCEEDED, FAILED, STOPPED, or UNKNOWN when it could not be submitted.
    """
    job_id = f"armor-ray-{secrets.token_hex(4)}"
    submit = ["job", "submit", "--address", head.address, "--submission-id", job_id, "--log-color=false", "--", *entrypoint]
    print(f"$ ray {' '.join(submit)}", flush=True)
    submitted = subprocess.run([sys.executable, "-m", "ray.scripts.scripts", *submit], env=head.environment, check=False)
    return _final_status(head, job_id, submitted.returncode)


def _final_status(head: Head, job_id: str, returncode: int) -> str:
    # `ray job submit` exits with 0 for a stopped job, and when the log stream breaks off while the job goes on.
    try:
        while (status := head.get(f"/api/jobs/{job_id}")["status"]) not in _ENDED:
            time.sleep(_POLL_SECONDS)
    except OSError as error:
        print(f"the job server does not answer: {error} (ray job submit ended with {returncode})", file=sys.stderr)
        return "UNKNOWN"
    return status
