"""Judged data out of raw data: what is kept, what is dropped and why, without an endpoint and without Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armor_ray import pipeline
from armor_ray.config import Config, CurationConfig, DataConfig, JudgeConfig, load_config, validate_config
from armor_ray.corpus.alignment import PassageLocator
from armor_ray.corpus.chunking import chunk_sentences, cut_passages, keep_whole
from armor_ray.corpus.records import Corpus, Document, QAPair, Span
from armor_ray.corpus.sources import read_corpus
from armor_ray.corpus.sources.teleqna import read_options
from armor_ray.curation import documents, judging, tele_eval, teleqna
from armor_ray.curation.curated import PROMPT_TOO_LONG
from armor_ray.curation.documents import Prompt, Written
from armor_ray.curation.files import CuratedFiles
from armor_ray.curation.judging import Judging
from armor_ray.curation.remedies import nothing_left
from armor_ray.errors import ArmorError
from armor_ray.judges.domain import load_domain
from armor_ray.judges.writing import one_turn, read_pairs, writing_messages
from armor_ray.models.generators.protocol import SampledText
from armor_ray.workspace import Workspace

FIXTURES = Path(__file__).parents[1] / "fixtures"
ISAC = load_domain("isac")
TEXT = "ISAC shares one waveform. " + "Radar echoes give the range. " + "Nothing else is said here. "
CUT = 32  # characters: each sentence is a passage


@dataclass
class Case:
    """A curation by stand-ins, and what it left on disk."""

    folder: Path
    files: CuratedFiles
    judging: Judging

    def rows(self, name: str) -> list[dict]:
        self.files.__exit__()
        return [json.loads(line) for line in (self.folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]

    def reasons(self) -> dict[str, str]:
        return {row["id"]: f"{row['step']}/{row['reason']}" for row in self.rows("dropped")}

    def documents(self) -> list[str]:
        return [row["id"] for row in self.rows("corpus")]

    def verdicts(self) -> list[dict]:
        self.files.__exit__()
        return pq.read_table(self.folder / "verdicts.parquet").to_pylist()


@pytest.fixture
def curation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "curated").mkdir()
    with CuratedFiles(tmp_path / "curated") as files:
        yield Case(tmp_path / "curated", files, Judging(JudgeConfig(), tmp_path / "cache", print, files.record))


def chunker(text: str) -> list[tuple[int, int]]:
    return chunk_sentences(text, CUT, [])


def document(name: str, text: str = TEXT) -> Document:
    return Document(name, f"title of {name}", text, name, "paper")


def pair(question: str, answer: str, doc_id: str = "d1", number: int = 0) -> QAPair:
    return QAPair(f"q{number}", question, (answer,), doc_id, (), (doc_id,), "", f"qa:{number}")


class TestTeleEval:
    def settings(self, **changes) -> CurationConfig:
        return CurationConfig(pipeline="tele_eval", domain="isac", **changes)

    def test_gold_passages_are_the_best_of_the_questions_own_document(self, curation):
        pairs = [
            pair("What does ISAC share?", "One waveform.", number=1),
            pair("How high is a mast?", "Thirty metres.", number=2),
            pair("What does ISAC cost?", "Zzz.", "d2", number=3),
            pair("What does ISAC share?", "A radio.", number=1),
        ]
        corpus = Corpus([document("d1"), document("d2", "Wholly unrelated words."), document("d3")], pairs, whole_documents=False)
        tele_eval.curate(corpus, chunker, ISAC, self.settings(positives=1), curation.judging, curation.files)
        [kept] = curation.rows("qa")
        assert (kept["doc_id"], kept["evidence"]) == ("d1", [{"start": 0, "end": 26}])
        assert (kept["domain"], len(kept["metadata"]["support"])) == ("isac", 1)
        assert curation.reasons() == {
            "q1": "source/repeated_question",
            "q2": "qa_domain/below_threshold",
            "q3": "chunk_alignment/no_support",
        }
        assert curation.documents() == ["d1"]
        assert curation.judging.stand_ins == ["qa_domain", "chunk_alignment"]
        assert len({row["start"] for row in curation.verdicts() if row["step"] == "chunk_alignment" and row["id"] == "q1"}) == 3

    def test_a_question_without_an_answer_is_refused_before_anything_is_judged(self, curation):
        bare = QAPair("q", "why?", (), "d1", (), ("d1",), "", "qa:7")
        corpus = Corpus([document("d1")], [bare], whole_documents=False)
        with pytest.raises(ArmorError, match="qa:7: question without an answer"):
            tele_eval.curate(corpus, chunker, ISAC, self.settings(), curation.judging, curation.files)
        assert not curation.verdicts()


class TestDocuments:
    REPLY = "Q: What does ISAC share between radar and data?\nA: One waveform."

    def curate(self, case: Case, replies: dict[str, SampledText | str], **questions) -> dict:
        settings = CurationConfig(pipeline="documents", domain="isac", questions={"per_passage": 2, **questions})
        self.asked: list[str] = []

        def write(prompts: Sequence[Prompt]) -> Written:
            passages = [prompt[1]["content"].split("<passage>\n")[1].split("\n</passage>")[0].strip() for prompt in prompts]
            self.asked += passages
            return Written([replies.get(passage, SampledText("NONE", cut=False)) for passage in passages], {"by": "nobody"})

        corpus = Corpus([document("d1"), document("d2", "A press release about bread.")], [], whole_documents=False)
        return documents.curate(corpus, chunker, ISAC, settings, 0, case.judging, case.files, write)

    def test_a_question_is_aligned_with_the_passage_that_it_was_written_from(self, curation):
        # "ISAC shares one waveform." has the words; "Nothing else is said here." was, by chance, what the second was written from.
        replies = {
            "ISAC shares one waveform.": SampledText(self.REPLY, cut=False),
            "Nothing else is said here.": SampledText("Q: What is said about ISAC here?\nA: Quasars.", cut=False),
        }
        writer = self.curate(curation, replies)
        [kept] = curation.rows("qa")
        assert kept["evidence"] == [{"start": 0, "end": 26}]
        assert kept["answers"] == ["One waveform."]
        found = curation.reasons()
        assert found["d2"] == "document_relevance/below_threshold"
        assert found["d1[26:55]"] == "question_writing/no_readable_question"
        assert "lexical_alignment/no_support" in found.values()
        assert curation.documents() == ["d1"]
        assert writer == {"by": "nobody", "passages": 3, "questions": 2}

    def test_passages_without_a_reply_and_repeated_questions_are_dropped_by_name(self, curation):
        again = SampledText(self.REPLY + "\n\n" + self.REPLY, cut=False)
        self.curate(curation, {"ISAC shares one waveform.": again, "Radar echoes give the range.": PROMPT_TOO_LONG})
        assert len(curation.rows("qa")) == 1
        found = list(curation.reasons().values())
        assert found.count("question_writing/repeated_question") == 1
        assert found.count("question_writing/prompt_too_long") == 1

    def test_the_sample_of_passages_does_not_depend_on_what_else_there_is(self, curation):
        some = {}
        for most in (2, 1):
            self.curate(curation, {"ISAC shares one waveform.": SampledText(self.REPLY, cut=False)}, passages=most)
            some[most] = self.asked
        assert [len(some[2]), len(some[1])] == [2, 1]
        assert some[1][0] in some[2]

    def test_documents_judged_in_blocks_are_judged_as_all_at_once(self, tmp_path, monkeypatch):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        texts = [TEXT, "Bread.", TEXT + "More.", "Salt.", TEXT + "Still more."]
        corpus = Corpus([document(f"d{i}", text) for i, text in enumerate(texts)], [], whole_documents=False)
        settings = CurationConfig(pipeline="documents", domain="isac")
        found = []
        for block in (2, 100):
            monkeypatch.setattr(judging, "BLOCK", block)
            folder = tmp_path / str(block)
            folder.mkdir()
            with CuratedFiles(folder) as files:
                case = Case(folder, files, Judging(JudgeConfig(), tmp_path / "cache", print, files.record))
                documents.curate(corpus, chunker, ISAC, settings, 0, case.judging, files, lambda prompts: Written(["x"] * len(prompts), {}))
            found.append((case.documents(), case.rows("dropped"), case.verdicts(), case.judging.judgements))
        assert found[0] == found[1]
        assert found[0][0] == ["d0", "d2", "d4"]
        assert (found[0][3][0]["items"], found[0][3][0]["kept"]) == (5, 3)


class TestNothingLeft:
    """The message of a curation without a question."""

    RELEVANCE: ClassVar = {"judge": "document_relevance", "by": "m", "items": 9, "kept": 4}

    @pytest.mark.parametrize(
        ("written", "judged", "dropped", "message"),
        [
            (
                (0, 12),
                (0, 0),
                {
                    "document_relevance/below_threshold": 5,
                    "question_writing/no_readable_question": 11,
                    "question_writing/prompt_too_long": 1,
                },
                "document_relevance \\(by m\\) kept 4 of 9; question_writing \\(by w\\) gave 0 questions about 12 passages; dropped: .*"
                "larger instruction model",
            ),
            ((6, 12), (0, 6), {"example_quality/below_threshold": 6}, "example_quality .* kept 0 of 6; .*technical_threshold"),
            ((6, 12), (0, 6), {"example_quality/timeout": 6}, "6 example_quality/timeout; .*endpoint"),
            (
                (6, 12),
                (6, 6),
                {"example_quality/below_threshold": 9, "lexical_alignment/no_support": 6},
                "share no word with their passages",
            ),
        ],
    )
    def test_it_names_the_step_that_left_none_and_the_remedy(self, written, judged, dropped, message):
        quality = {"judge": "example_quality", "by": "m", "items": judged[1], "kept": judged[0]}
        writer = {"by": "w", "questions": written[0], "passages": written[1]}
        with pytest.raises(ArmorError, match=message):
            raise nothing_left([self.RELEVANCE, quality], writer, dropped)

    def test_nothing_is_published(self, case):
        case["curation"]["domain"] = "sagin"
        with pytest.raises(
            ArmorError, match=r"curate: no question is left: qa_domain .* kept 0 of 6; dropped: 6 .*check that curation.domain"
        ):
            pipeline.run(validate_config(case), until="curate")
        assert [path.name for path in Path(case["workspace"]).glob("*curated*")] == []


class TestReadingWhatWasWritten:
    @pytest.mark.parametrize(
        ("text", "pairs"),
        [
            ("Q: What is x?\nA: y is z.\nQ: Why?\nA: because\nof it.", [("What is x?", "y is z."), ("Why?", "because of it.")]),
            ("**Q1:** What?\n**A1:** That.\n\n**Q2:** Who?\n\n**A2:** Me.", [("What?", "That."), ("Who?", "Me.")]),
            ("Sure!\n\n1. Question: a?\n   Answer: b\n\nI hope that helps.", [("a?", "b")]),
            ("<think>Q: no?\nA: no.</think>Q: a?\nA: b", [("a?", "b")]),
            ("Q: a?\nQ: b?\nA: c\nA: d", [("b?", "c")]),
            ("Q: a?\nA:", []),
            ("NONE", []),
            ('{"pairs": [{"question": "a?", "answer": "b\\nc"}, {"question": "d?", "answer": ""}, {"answer": "e"}]}', [("a?", "b c")]),
            ('Here they are: [{"question": "a?", "answer": "b"}, {"question": "c?", "answer": "is cut', [("a?", "b")]),
            ('{"pairs": []}', []),
        ],
    )
    def test_forms(self, text, pairs):
        assert read_pairs(text, 3, cut=False) == pairs

    @pytest.mark.parametrize("form", ["lines", "json"])
    def test_a_model_that_repeats_its_prompt_has_written_nothing(self, form):
        """As the demo generator does."""
        assert read_pairs(one_turn(writing_messages(ISAC, "", "A passage.", 2, form)), 2, cut=False) == []

    def test_an_answer_that_was_cut_off_is_no_answer(self):
        assert read_pairs("Q: a?\nA: b\nQ: c?\nA: d and", 3, cut=True) == [("a?", "b")]
        assert read_pairs("Q: a?\nA: b\nQ: c?\nA: d", 1, cut=False) == [("a?", "b")]

    @given(
        st.lists(
            st.sampled_from(["Q:", "A:", "q", "**", "\n", "\n\n", "<think>", "1.", " x", '[{"question": "q", "answer": "', 'a"}]'])
            | st.text(max_size=5)
        ).map("".join),
        st.booleans(),
    )
    def test_any_text_is_read_without_an_error(self, text, cut):
        for question, answer in read_pairs(text, 5, cut=cut):
            assert question.strip() == question != ""
            assert answer.strip() == answer != ""


def test_a_span_with_a_passages_bounds_is_that_passage_though_windows_overlap():
    windows = cut_passages([document("d1")], lambda text: [(0, 26), (20, 55), (50, len(text))])
    locator = PassageLocator(windows)
    assert locator.overlapping(Span("d1", 20, 55)) == [1]
    assert locator.overlapping(Span("d1", 21, 55)) == [0, 1, 2]


def test_teleqna_keeps_the_questions_of_a_domain_and_all_explanations(curation):
    config = DataConfig(format="teleqna", path=str(FIXTURES / "teleqna" / "TeleQnA.txt"))
    options = read_options(config)
    corpus = read_corpus(config)
    assert options.keys() >= {found.example_id for found in corpus.pairs}
    assert all(found.answers[0] in " ".join(options[found.example_id]) for found in corpus.pairs)
    everything = CurationConfig(pipeline="teleqna", domain="isac", threshold=0)
    teleqna.curate(corpus, options, ISAC, everything, curation.judging, curation.files)
    assert list(curation.files.documents()) == corpus.documents
    assert [row["id"] for row in curation.rows("qa")] == [found.example_id for found in corpus.pairs]
    assert keep_whole(corpus.documents[0].text) == [(0, len(corpus.documents[0].text))]


# -- the stage -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    folder = tmp_path / "source"
    for name, rows in (
        ("tele-data/a", [{"id": f"d{i}", "category": "arxiv", "content": TEXT, "metadata": ""} for i in range(6)]),
        ("tele-eval", [{"id": f"d{i}", "Statement": f"What does ISAC share in {i}?", "Answer": "One waveform."} for i in range(6)]),
    ):
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {
        "workspace": str(tmp_path / "w"),
        "data": {
            "format": "tele_eval",
            "path": str(folder),
            "passage_characters": CUT,
            "chunking": {"mode": "sentences"},
            "test_fraction": 0.3,
            "validation_fraction": 0.3,
        },
        "curation": {"pipeline": "tele_eval", "domain": "isac", "positives": 1},
        "candidates": {"pool_size": 2, "top_k": 2},
        "training": {"batch_size": 1},
        "evaluation": {"ks": [1], "generation_questions": 0},
    }


def problems(case: dict) -> dict[str, str | None]:
    context = pipeline.Context(validate_config(case), Workspace(case["workspace"]))
    plans = [plan for stage in ("curate", "prepare") for plan in pipeline._plan(context, stage)]
    return {plan.name: plan.difference(context.workspace.manifest(plan.name)) for plan in plans}


def test_prepare_reads_what_curate_left_and_gold_passages_are_exactly_those(case):
    said: list[str] = []
    workspace = pipeline.run(validate_config(case), until="prepare", say=said.append)
    passages = pq.read_table(workspace.local("passages") / "passages.parquet").to_pylist()
    train = pq.read_table(workspace.local("examples") / "train.parquet").to_pylist()
    assert len(passages) == 18
    assert [[passages[i]["text"] for i in example["positive_ids"]] for example in train] == [["ISAC shares one waveform. "]] * len(train)
    manifest = workspace.require("curated")
    assert manifest.rows == {"documents": 6, "questions": 6, "dropped": 0}
    assert manifest.details["stand_ins"] == ["qa_domain", "chunk_alignment"]
    assert any("no model judged" in line for line in said)
    verdicts = pq.read_table(workspace.local("curated") / "verdicts.parquet")
    assert set(verdicts["judge"].to_pylist()) == {"keywords", "lexical"}
    assert len(verdicts) == 6 + 18
    assert set(problems(case).values()) == {None}


def test_what_a_model_judged_stays_valid_without_its_key_but_is_never_replaced_by_keywords(case, monkeypatch):
    case["judge"] = {"model": "wise"}
    pipeline.run(validate_config(case), until="curate")
    assert problems(case)["curated"] is None  # keywords, as published
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert problems(case)["curated"] == "stale: config judge.model changed"

    context = pipeline.Context(validate_config(case), Workspace(case["workspace"]))
    [plan] = pipeline._plan(context, "curate")
    context.publish(plan, lambda draft: None)  # as the model would have left it
    monkeypatch.delenv("OPENAI_API_KEY")
    assert problems(case)["curated"] is None
    case["curation"]["positives"] = 2
    assert problems(case)["curated"] == "stale: config curation.positives changed"
    with pytest.raises(ArmorError, match="'wise' judged this data set before, and now OPENAI_API_KEY is not set"):
        pipeline.run(validate_config(case), until="curate")


def test_without_the_section_there_is_nothing_to_curate(case):
    del case["curation"]
    assert problems(case).keys() == {"passages", "examples"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"curation": {"pipeline": "teleqna", "domain": "isac"}}, "curation.pipeline 'teleqna' does not fit data.format 'jsonl'"),
        ({"curation": {"pipeline": "tele_eval", "domain": "isac", "questions": {"per_passage": 1}}}, "questions has no effect on pipeline"),
        ({"curation": {"pipeline": "documents"}}, "curation.domain: field required"),
        (
            {"curation": {"pipeline": "documents", "domain": "isac", "questions": {"writer": "judge", "batch_size": 2}}},
            "batch_size has no effect on writer 'judge'",
        ),
        (
            {"curation": {"pipeline": "documents", "domain": "isac"}, "generator": {"engine": "openai"}},
            "the openai engine keeps no budget and writes no questions",
        ),
        ({"data": {"chunking": {"mode": "whole", "keep_blocks": True}}}, "keep_blocks has no effect on mode 'whole'"),
    ],
)
def test_settings_without_an_effect_are_refused(changes, message):
    with pytest.raises(ArmorError, match=message):
        validate_config(changes)


def test_the_shipped_configs_are_valid():
    configs = [load_config(path) for path in sorted((Path(__file__).parents[2] / "jobs" / "configs").glob("*_isac.yaml"))]
    assert {config.curation.pipeline for config in configs if config.curation} == {"tele_eval", "documents"}
    assert all(isinstance(config, Config) for config in configs)
