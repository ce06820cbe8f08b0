"""From a model's name in the config to something that `from_pretrained` loads, and its identity."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from armor_ray.errors import ArmorError
from armor_ray.models.demo_models import demo_encoder, demo_generator

DEMO_MODELS: dict[str, Callable[[], Path]] = {"demo/encoder": demo_encoder, "demo/generator": demo_generator}

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def resolve_model(model_id: str, revision: str | None = None) -> str:
    """The folder or Hugging Face id behind a configured model name.

    Args:
        model_id: "demo/encoder" or "demo/generator" (fetched on first use), a local folder, or a Hugging Face id (returned as it is).
        revision: the configured revision; only a Hugging Face id has one.

    Raises:
        ArmorError: an unknown demo model, a path that does not exist, a folder without config or weights, a malformed id, or a revision
            of something that has none.
    """
    if model_id in DEMO_MODELS:
        _refuse_revision(model_id, revision)
        return str(DEMO_MODELS[model_id]())
    if model_id.startswith("demo/"):
        raise ArmorError("no such demo model", where=model_id, hint=f"known: {', '.join(DEMO_MODELS)}")
    folder = Path(model_id).expanduser()
    if folder.is_dir():
        _refuse_revision(model_id, revision)
        _check_folder(folder)
        return str(folder.absolute())
    if folder.is_absolute() or model_id.startswith((".", "~")):
        raise ArmorError("no such model folder", where=model_id)
    if not _HUB_ID.fullmatch(model_id):
        raise ArmorError("neither a folder nor a Hugging Face id (owner/name)", where=model_id)
    return model_id


def model_fingerprint(resolved: str, commit: str | None) -> str:
    """Identity of a model's content: "sha256:…" over the files of a folder, "id@commit" for a Hugging Face id.

    Args:
        resolved: what `resolve_model` returned.
        commit: commit of the downloaded snapshot (`config._commit_hash`), None for folders.
    """
    folder = Path(resolved)
    if not folder.is_dir():
        return f"{resolved}@{commit or 'unknown'}"
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in {".json", ".jinja", ".safetensors", ".bin", ".model"}):
        with path.open("rb") as source:
            digest.update(path.name.encode() + hashlib.file_digest(source, "sha256").digest())
    return f"sha256:{digest.hexdigest()}"


def identify_model(model_id: str, revision: str | None) -> str:
    """`model_fingerprint` of a configured model, without loading it: of a Hugging Face id only the config is fetched.

    Raises:
        ArmorError: as `resolve_model`, or an id that neither the cache nor the network has.
    """
    source = resolve_model(model_id, revision)
    return model_fingerprint(source, None if Path(source).is_dir() else _commit(source, revision))


def _commit(hub_id: str, revision: str | None) -> str:
    from huggingface_hub import hf_hub_download

    with loading(hub_id):
        path = hf_hub_download(hub_id, "config.json", revision=revision)
    return Path(path).parent.name  # …/snapshots/<commit>/config.json


@contextmanager
def loading(model_id: str) -> Iterator[None]:
    """Turns the library's errors about a missing, gated or malformed model into one ArmorError that names it."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ArmorError(
            f"cannot load the model ({reason})", where=model_id, hint="check the id, your access to it and the network"
        ) from error


def _refuse_revision(model_id: str, revision: str | None) -> None:
    if revision is not None:
        raise ArmorError(f"a local model has no revision '{revision}'", where=model_id, hint="remove the revision")


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ArmorError("not a model folder: config.json is missing", where=str(folder))
    if not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        raise ArmorError("model folder without weights", where=str(folder), hint="it needs *.safetensors or pytorch_model*.bin")
