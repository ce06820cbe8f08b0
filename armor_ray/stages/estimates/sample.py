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

SAMPLE = 256
"""Texts of each kind that are tokenised."""


@dataclass(frozen=True, slots=True)
class DataSample:
    """What a data set holds.

    Attributes:
        corpus: documents and questions as read.
        num_passages: in all.
        how: they were counted.
        examples: the questions of each split; empty tables where the set has no questions yet.
        texts: of at most `SAMPLE` passages, drawn at random.
    """

    corpus: Corpus
    num_passages: int
    how: str
    examples: dict[str, pa.Table]
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
    if corpus.pairs:
        examples = make_examples(corpus, [asked], config.data, config.seed).tables
    else:
        examples = {split: EXAMPLES.empty_table() for split in SPLITS}
    chosen = np.random.default_rng(config.seed).permutation(len(passages))[:SAMPLE]
    return DataSample(corpus, count, how, examples, passages["text"].take(pa.array(chosen)).to_pylist())


def data_lines(sample: DataSample) -> list[Line]:
    """Counts of the data set."""
    kept = "after merging repeated questions, splitting and limits" if sample.corpus.pairs else "the data set has no questions yet"
    return [
        Line("prepare", "documents", len(sample.corpus.documents), "", "read"),
        Line("prepare", "passages", sample.num_passages, "", sample.how),
        *(Line("prepare", f"{split} questions", sample.questions(split), "", kept) for split in SPLITS),
    ]
