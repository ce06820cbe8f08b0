"""The data set as far as an estimate needs it: counts, the split questions, and some passages."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from armor_ray.config import Config
from armor_ray.corpus.chunking import cut_passages
from armor_ray.corpus.prepare import choose_chunker, make_examples
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.schemas import EXAMPLES
from armor_ray.corpus.sources import read_corpus
from armor_ray.corpus.splitting import SPLITS
from armor_ray.corpus.streams import DocumentStream
from armor_ray.stages.estimates.lines import Line
from armor_ray.stages.tokenizing import offsets_of

SAMPLE = 240
"""Texts of each kind that are tokenised or put to judges; whole batches of all judges."""


@dataclass(frozen=True, slots=True)
class DataSample:
    """What a data set holds.

    Attributes:
        corpus: documents and questions as read.
        num_passages: in all.
        passages_by: how they were counted.
        examples: the questions of each split; empty tables where the set has no questions yet.
        questions_by: how these were counted.
        texts: of at most `SAMPLE` passages, drawn at random.
    """

    corpus: Corpus
    num_passages: int
    passages_by: str
    examples: dict[str, pa.Table]
    questions_by: str
    texts: list[str]

    def questions(self, split: str) -> int:
        return len(self.examples[split])


def sample_data(config: Config) -> DataSample:
    """Reads the data set; of one too large to hold, only the first documents and those with questions are cut.

    Raises:
        ArmorError: whatever `prepare` would find wrong with the data.
    """
    corpus = read_corpus(config.data)
    chunker = choose_chunker(config.data, corpus.whole_documents, offsets_of(config.data, config.encoder))
    if isinstance(corpus.documents, DocumentStream):
        first = list(islice(corpus.documents, SAMPLE))
        passages = cut_passages(first, chunker)
        count = round(len(passages) * corpus.documents.characters / sum(len(document.text) for document in first))
        how = f"extrapolated from the first {len(first)} documents by their characters"
        asked = cut_passages(corpus.documents.asked, chunker)
    else:
        passages = asked = cut_passages(corpus.documents, chunker)
        count, how = len(passages), "all documents cut"
    if corpus.pairs and not _writes_questions(config):
        examples = make_examples(corpus, [asked], config.data, config.seed).tables
        questions_by = "after merging repeated questions, splitting and limits"
        questions_by += "; curation will keep fewer" if config.curation else ""
    else:
        examples = {split: EXAMPLES.empty_table() for split in SPLITS}
        questions_by = "none are there; plan again when curate has written them"
    chosen = np.random.default_rng(config.seed).permutation(len(passages))[:SAMPLE]
    return DataSample(corpus, count, how, examples, questions_by, passages["text"].take(pa.array(chosen)).to_pylist())


def _writes_questions(config: Config) -> bool:
    return config.curation is not None and config.curation.pipeline == "documents"


def data_lines(sample: DataSample) -> list[Line]:
    """Counts of the data set."""
    return [
        Line("prepare", "documents", len(sample.corpus.documents), "", "read"),
        Line("prepare", "passages", sample.num_passages, "", sample.passages_by),
        *(Line("prepare", f"{split} questions", sample.questions(split), "", sample.questions_by) for split in SPLITS),
    ]


def pool_pairs(config: Config, sample: DataSample, split: str) -> int:
    """Pairs in the candidate pools of the training or validation questions; an upper limit, as `pool_assumption` says."""
    gold = sum(map(len, sample.examples[split]["positive_ids"].to_pylist()))
    picks = config.candidates.picks.count if config.candidates.picks else 0
    return sample.questions(split) * min(config.candidates.pool_size + picks, sample.num_passages) + gold


def pool_assumption(config: Config) -> str:
    """What a pool is taken to hold."""
    picks = f", {config.candidates.picks.count} picks" if config.candidates.picks else ""
    return f"pool of {config.candidates.pool_size}{picks} and all gold passages, as if retrieval missed these"
