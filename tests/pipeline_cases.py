"""A whole pipeline in miniature: a corpus of 60 passages, a random generator, configs, and ways to run and read it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from pipeline_drivers import Driver, start
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tokenizers import Tokenizer, models, pre_tokenizers
from training_cases import WORDS
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from armor_ray import pipeline
from armor_ray.config import load_config

DOCUMENTS, PASSAGES_A_DOCUMENT, QUESTIONS = 20, 3, 45
PASSAGE_CHARACTERS = 40
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

Say = Callable[[str], None]


def build_tiny_llama(folder: Path) -> Path:
    """Writes a random Llama (2 layers, 32 dimensions) that knows the same 40 words."""
    tokens = ["<s>", "</s>", "<unk>", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64}
    config = LlamaConfig(
        vocab_size=len(tokens), max_position_embeddings=256, initializer_range=0.2, bos_token_id=0, eos_token_id=1, pad_token_id=1, **sizes
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_corpus(folder: Path) -> Path:
    """Twenty documents of three passages; a question shares three words with its gold passage, and answers with a fourth."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    texts = [[_passage(rng) for _ in range(PASSAGES_A_DOCUMENT)] for _ in range(DOCUMENTS)]
    documents = [{"id": f"doc{i:02d}", "title": f"title {i}", "text": "".join(parts)} for i, parts in enumerate(texts)]
    pairs = []
    for number in range(QUESTIONS):
        document, part = number % DOCUMENTS, int(rng.integers(PASSAGES_A_DOCUMENT))
        words = [word for word in texts[document][part].split() if word in WORDS]
        question = " ".join([*rng.choice(words, 3, replace=False), rng.choice(WORDS)])
        evidence = [{"start": part * PASSAGE_CHARACTERS, "end": (part + 1) * PASSAGE_CHARACTERS}]
        answers = [str(rng.choice(words)), " ".join(rng.choice(words, 2))]
        pair = {"id": f"q{number:02d}", "question": question, "answers": answers}
        pairs.append({**pair, "doc_id": documents[document]["id"], "evidence": evidence})
    for name, rows in (("corpus", documents), ("qa", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def _passage(rng: np.random.Generator) -> str:
    """Words to exactly `PASSAGE_CHARACTERS` characters, so that documents are cut where passages end."""
    text = ""
    while len(text) + 4 <= PASSAGE_CHARACTERS:
        text += f"{rng.choice(WORDS)} "
    return text.ljust(PASSAGE_CHARACTERS - 1, ".") + " "


@dataclass(frozen=True, slots=True)
class Tiny:
    """The miniature's parts, and runs of it in folders below `root`."""

    root: Path
    corpus: Path
    encoder: Path
    generator: Path

    def config(self, name: str, **sections: dict[str, Any]) -> Path:
        """A config file for the workspace `name`; `sections` are merged over small defaults."""
        raw: dict[str, Any] = {
            "workspace": str(self.workspace(name)),
            "seed": 1,
            "data": {"path": str(self.corpus), "passage_characters": PASSAGE_CHARACTERS, "test_fraction": 0.25, "validation_fraction": 0.2},
            "encoder": {"model": str(self.encoder), "max_length": 24},
            "generator": {"model": str(self.generator), "max_length": 128, "max_new_tokens": 4, "dtype": "float32"},
            "candidates": {"pool_size": 4, "top_k": 4},
            "training": {"epochs": 6, "batch_size": 4, "learning_rate": 1e-3, "interpolate": [0.0, 0.5, 1.0], "metric": "R@3"},
            "sweep": {"parameters": {"objective.lambda_q": [0.3, 1.0, 3.0]}, "scheduler": "none"},
            "evaluation": {"recipes": ["armor", "replug"], "bootstrap": 200, "generation_questions": 2, "generation_top_k": 2},
        }
        for section, values in sections.items():
            raw[section] = {**raw.get(section, {}), **values}
        path = self.root / f"{name}.yaml"
        path.write_text(yaml.safe_dump(raw), encoding="utf-8")
        return path

    def workspace(self, name: str) -> Path:
        return self.root / name

    def copy(self, source: Path, name: str) -> Path:
        """The workspace `name`, begun with all that `source` holds."""
        return Path(shutil.copytree(source, self.workspace(name)))

    def run(self, name: str, until: str | None = None, force: str | None = None, say: Say = print, **sections: dict[str, Any]) -> Path:
        """Runs the pipeline in this process; the workspace."""
        pipeline.run(load_config(self.config(name, **sections)), until=until, force=force, say=say)
        return self.workspace(name)

    def start(self, name: str, environment: Mapping[str, str], *options: str, **sections: dict[str, Any]) -> Driver:
        """Starts `armor-ray run` in a process of its own."""
        arguments = ["run", "--config", str(self.config(name, **sections)), *options]
        return start(arguments, self.root / f"{name}.log", {**OFFLINE, **environment})


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished run: its workspace and all that it printed."""

    workspace: Path
    output: str


def summary(workspace: Path) -> list[dict[str, Any]]:
    """The rows of summary.json."""
    return json.loads((workspace / "reports" / "summary.json").read_text(encoding="utf-8"))


def manifest(workspace: Path, name: str) -> dict[str, Any]:
    """An artifact's manifest."""
    return json.loads((workspace / name / "manifest.json").read_text(encoding="utf-8"))


def logged_steps(workspace: Path, trial: str) -> list[list[int]]:
    """Of each process that trained `trial`, one after the other: the optimizer steps that it took."""
    files = sorted((workspace / "logs" / trial).glob("events.*"), key=lambda path: int(path.name.split(".")[3]))
    return [sorted({event.step for event in EventFileLoader(str(path)).Load() if _holds(event, "loss")}) for path in files]


def _holds(event: Any, tag: str) -> bool:
    return any(value.tag == tag for value in event.summary.value)
