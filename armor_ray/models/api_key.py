"""Keys of OpenAI-compatible endpoints: read from the environment, sent, and kept out of everything else."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from armor_ray.errors import ArmorError

# Named here so that OPENAI_BASE_URL, which no config or manifest shows, does not redirect the key.
OPENAI_URL = "https://api.openai.com/v1"
# Local servers usually take any key, but the client library refuses to start without one.
_NONE = "none"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key; `value` is what the client library is given."""

    value: str = field(repr=False)

    @classmethod
    def read(cls, variable: str) -> ApiKey:
        """The key in an environment variable, or a stand-in for none.

        Raises:
            ArmorError: it holds characters that no HTTP header can.
        """
        key = os.environ.get(variable, "").strip()
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ArmorError("holds characters that no key has", where=variable, hint="set it again without quotes or line breaks")
        return cls(key or _NONE)

    @property
    def missing(self) -> bool:
        return self.value == _NONE

    def redact(self, text: str) -> str:
        """`text`, which an endpoint wrote and which may repeat the key, without it."""
        return text if self.missing else text.replace(self.value, "[key]")
