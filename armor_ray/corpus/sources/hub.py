"""Data sets by name: `data.path: hf://datasets/OWNER/NAME[@REVISION]` is fetched once into the Hugging Face cache and read as a folder."""

from __future__ import annotations

import re
from pathlib import Path

from armor_ray.errors import ArmorError

PREFIX = "hf://"
_NAME = re.compile(r"hf://datasets/(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
# Data only: a data set's loading script is never fetched, let alone run.
_DATA_FILES = ["*.json", "*.jsonl", "*.parquet", "*.txt", "*.tsv", "*.zip"]


def fetch_dataset(address: str) -> Path:
    """The local folder of a Hugging Face data set; a private one needs HF_TOKEN in the environment.

    Raises:
        ArmorError: a malformed address, an unknown or gated data set, or no network.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    match = _NAME.fullmatch(address)
    if match is None:
        raise ArmorError("not of the form hf://datasets/OWNER/NAME[@REVISION]", where=address, hint="correct data.path")
    try:
        return Path(snapshot_download(match["name"], repo_type="dataset", revision=match["revision"], allow_patterns=_DATA_FILES))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ArmorError(f"cannot fetch the data set ({reason})", where=address, hint="check the name, HF_TOKEN and the network") from None
