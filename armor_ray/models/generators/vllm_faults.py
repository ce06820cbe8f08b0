"""What vLLM refuses and the user can mend, as one line with a remedy in our own settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from armor_ray.errors import ArmorError

_MEMORY = "use a smaller model or free memory, or lower generator.max_length or generator.batch_tokens"
# vLLM has no classes for these: it raises ValueError and RuntimeError. Its own advice names settings that are not ours.
_REMEDIES = {
    re.compile(r"[^\n.]*architectures [^\n]*? are not supported"): "use engine hf, or a model that vLLM supports",
    re.compile(r"[^\n]*out of memory"): _MEMORY,
    re.compile(r"No available memory for the cache blocks"): _MEMORY,
    re.compile(r"To serve at least one request[^\n]*?available KV cache memory \([^)]*\)"): _MEMORY,
    re.compile(r"[^\n]*? is less than desired [CG]PU memory utilization"): _MEMORY,
    # The engine ran in a process of its own, and only its log has the reason.
    re.compile(r"Engine core initialization failed"): "see the engine's log with ARMOR_RAY_WORKER_LOGS=1; often it is memory: " + _MEMORY,
}


@contextmanager
def mendable_faults(model: str) -> Iterator[None]:
    """Turns what a user can mend into an ArmorError that names the model; all else passes as it is, as a bug."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        for pattern, remedy in _REMEDIES.items():
            if found := pattern.search(str(error)):
                reason = found[0].strip().removeprefix("Value error, ")[:160]
                raise ArmorError(f"vLLM cannot run the model ({reason})", where=model, hint=remedy) from error
        raise
