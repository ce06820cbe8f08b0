"""What judges ask, keep and fall back to; domains and the config section."""

from __future__ import annotations

import json
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import armor_ray.judges
from armor_ray.config import load_config
from armor_ray.errors import ArmorError
from armor_ray.judges.alignment import CandidateChunk, ChunkAlignment
from armor_ray.judges.domain import Domain, load_domain, shipped_domains
from armor_ray.judges.grading import AnswerGrading, CandidateAnswer
from armor_ray.judges.judge import judge_without_endpoint
from armor_ray.judges.keywords import KeywordScorer
from armor_ray.judges.qa_domain import QADomain, QuestionAnswer
from armor_ray.judges.quality import ExampleQuality, GeneratedExample
from armor_ray.judges.relevance import DocumentRelevance, DocumentText
from armor_ray.judges.request import ChatRequest, Reply
from armor_ray.judges.teleqna import MultipleChoice, TeleQnADomain
from armor_ray.judges.verdicts import Verdict

ISAC = load_domain("isac")
DOMAINS = tuple(map(load_domain, shipped_domains()))


class TestDomains:
    def test_the_papers_three_are_shipped(self):
        assert shipped_domains() == ["isac", "jcc", "sagin"]
        assert [domain.name for domain in DOMAINS] == shipped_domains()

    def test_a_user_adds_one_file(self, tmp_path):
        path = tmp_path / "mine.yaml"
        path.write_text("name: mine\ntitle: Quantum links\nkeywords: {core: [quantum key]}\ninclude: [Quantum key distribution.]\n")
        domain = load_domain(str(path))
        assert "Quantum links" in DocumentRelevance(domain).request([DocumentText("t", "x")]).messages[0]["content"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("name: mine\ntitle: T\nkeywords: {cor: [a]}\ninclude: [x]\n", "mine.yaml: keywords.core: field required"),
            ("name: mine\ntitle: T\nkeywords: {core: [a]}\ninclude: [x]\nexlude: [y]\n", "did you mean 'exclude'?"),
            ("name: Bad Name\ntitle: T\nkeywords: {core: [a]}\ninclude: [x]\n", "mine.yaml: name: string should match"),
            ("name: mine\ntitle: T\nkeywords: {core: []}\ninclude: [x]\n", "mine.yaml: keywords.core: tuple should have at least 1 item"),
            ("name: [\n", "mine.yaml:2: not valid YAML"),
            ("- a\n- b\n", "mine.yaml: "),
        ],
    )
    def test_faults_name_file_and_key(self, tmp_path, monkeypatch, text, message):
        monkeypatch.chdir(tmp_path)
        Path("mine.yaml").write_text(text)
        with pytest.raises(ArmorError) as raised:
            load_domain("mine.yaml")
        assert message in str(raised.value)

    @pytest.mark.parametrize("name", ["isca", "", "a\0b", "/"])
    def test_an_unknown_one_names_those_there_are(self, name):
        with pytest.raises(ArmorError, match="one of: isac, jcc, sagin"):
            load_domain(name)


class TestKeywords:
    SCORER = KeywordScorer(
        Domain(
            name="links",
            title="Links",
            keywords={"core": ["optical link"], "related": ["laser", "bit error rate"]},
            include=["x"],
            excluding_keywords=["press release"],
        )
    )

    @pytest.mark.parametrize(
        ("text", "score"),
        [
            ("Nothing of the kind.", 0),
            ("On Optical-Links", 1 - 2**-2),
            ("optical  link, optical\nlink", 1 - 2**-2),
            ("lasers at a bit error rate", 1 - 2**-1.4),
            ("a laser in an optical link", 1 - 2**-2.7),
            ("press release: an optical link", (1 - 2**-2) / 2),
            ("disoptical link, laserless", 0),
        ],
    )
    def test_worked_by_hand(self, text, score):
        assert self.SCORER.score(text) == pytest.approx(score)


class TestParameters:
    def test_defaults_are_the_papers(self):
        """METHODS section 5: temperatures, limits, time-outs, retries, thresholds, batch sizes."""
        grading = AnswerGrading().request([CandidateAnswer("q", "r", "a")])
        assert (grading.temperature, grading.max_tokens) == (0.0, 32)
        relevance = DocumentRelevance(ISAC)
        assert (relevance.threshold, relevance.snippet_characters, relevance.timeout_seconds, relevance.max_retries) == (0.5, 2000, 120, 6)
        domain = QADomain(DOMAINS)
        assert (domain.threshold, domain.timeout_seconds, domain.max_retries) == (0.65, 60, 3)
        chunks = ChunkAlignment()
        assert (chunks.batch_size, chunks.positives, chunks.snippet_characters, chunks.timeout_seconds) == (8, 3, 1800, 60)
        teleqna = TeleQnADomain(ISAC)
        assert (teleqna.threshold, teleqna.max_tokens, teleqna.field_characters) == (0.7, 16, 5000)
        quality = ExampleQuality(ISAC)
        request = quality.request([GeneratedExample("q", "a", "p")])
        assert (request.temperature, request.top_p, request.max_tokens, quality.batch_size) == (0.2, 0.9, 900, 20)
        assert (quality.technical_threshold, quality.clarity_threshold) == (0.7, 0.7)

    def test_long_texts_are_cut_where_the_paper_cuts(self):
        text = "a" * 1999 + "bc"
        content = DocumentRelevance(ISAC).request([DocumentText("t", text)]).messages[1]["content"]
        assert text[:2000] in content
        assert text not in content

    def test_a_document_cannot_run_template_code(self):
        content = DocumentRelevance(ISAC).request([DocumentText("{{ 7 * 7 }}", "{% raise %} & <b>")]).messages[1]["content"]
        assert "{{ 7 * 7 }}" in content
        assert "{% raise %} & <b>" in content

    def test_a_fingerprint_covers_what_the_reply_depends_on(self):
        base = ChatRequest(({"role": "user", "content": "x"},), max_tokens=5)
        same = ChatRequest(({"content": "x", "role": "user"},), max_tokens=5, timeout_seconds=1, max_retries=9)
        others = [
            ChatRequest(({"role": "user", "content": "y"},), max_tokens=5),
            ChatRequest(({"role": "user", "content": "x"},), max_tokens=6),
            ChatRequest(({"role": "user", "content": "x"},), max_tokens=5, temperature=0.1),
            base.followed_by("?", "again"),
        ]
        prints = [request.fingerprint("http://a", "m") for request in (base, *others)]
        assert same.fingerprint("http://a", "m") == prints[0]
        assert len({*prints, base.fingerprint("http://b", "m"), base.fingerprint("http://a", "n")}) == 7


class TestDecisions:
    def test_quality_needs_both_flags_and_both_scores(self):
        good = {"keep": 1.0, "answerable_without_context": 1.0, "technical": 0.7, "clarity": 0.7}
        variants = [good, *({**good, name: value} for name, value in [("keep", 0.0), ("technical", 0.69), ("clarity", 0.69)]), {}]
        assert ExampleQuality(ISAC).keep([], variants) == [True, False, False, False, False]

    def test_alignment_keeps_the_best_three_of_each_question_with_any_support(self):
        items = [CandidateChunk(question, "q", "a", "t") for question in "AAAAABB"]
        scores = [{"support": value} for value in (0.5, 0.9, 0.5, 0.5, 0.2)] + [{"support": 0.0}, {}]
        assert ChunkAlignment().keep(items, scores) == [True, True, True, False, False, False, False]

    def test_alignment_never_mixes_questions_in_a_request(self):
        items = [CandidateChunk("A", "q", "a", "t")] * 9 + [CandidateChunk("B", "q", "a", "t")] * 2
        assert list(map(list, ChunkAlignment().batches(items))) == [list(range(8)), [8], [9, 10]]

    def test_a_pair_may_belong_to_several_domains(self):
        judge = QADomain(DOMAINS)
        reading = judge.read(Reply(json.dumps({"isac": 0.65, "jcc": 0.64, "sagin": 1.0}), "stop", 1, 1), [QuestionAnswer("q", "a")])[0]
        assert reading is not None
        assert judge.domains_of(Verdict("tiny", True, reading.scores)) == ["isac", "sagin"]


class TestStandIns:
    def test_each_names_itself(self):
        """One good and one bad item per judge."""
        isac = "How does integrated sensing and communication use radar?"
        cases = [
            (DocumentRelevance(ISAC), [DocumentText("ISAC", "On radar."), DocumentText("Cooking", "Soup.")], "keywords"),
            (QADomain(DOMAINS), [QuestionAnswer(isac, "By waveform design."), QuestionAnswer("What is HTTP?", "A protocol.")], "keywords"),
            (TeleQnADomain(ISAC), [MultipleChoice(isac, ("a", "b"), "a", ""), MultipleChoice("What is TCP?", ("a",), "a", "")], "keywords"),
            (
                ExampleQuality(ISAC),
                [GeneratedExample(isac, "Jointly.", ""), GeneratedExample("What does this section say?", "x", isac)],
                "lexical",
            ),
        ]
        for judge, items, name in cases:
            judgement = judge_without_endpoint(judge, items)
            assert [verdict.keep for verdict in judgement.verdicts] == [True, False], judge.name
            assert {verdict.judge for verdict in judgement.verdicts} == {judgement.by} == {name}
            assert judgement.account is None

    def test_alignment_prefers_the_chunk_with_the_answer(self):
        texts = ["Soup and bread.", "The carrier spacing is 15 kHz.", "The carrier is shown."]
        items = [CandidateChunk("1", "What is the carrier spacing?", "15 kHz", text) for text in texts]
        scores = [verdict.scores["support"] for verdict in judge_without_endpoint(ChunkAlignment(), items).verdicts]
        assert scores[1] > scores[2] > scores[0]
        assert scores[1] == pytest.approx((3 / 4 + 1) / 2)

    def test_grading_is_token_f1(self):
        verdict = judge_without_endpoint(AnswerGrading(), [CandidateAnswer("q", "the 15 kHz", "15 MHz")]).verdicts[0]
        assert verdict.scores == {"grade": pytest.approx(0.5)}


class TestConfigSection:
    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("judge.budget=5", "judge: budget needs prompt_price and completion_price"),
            ("judge.base_url=ftp://host/v1", "judge.base_url: must begin with http:// or https://"),
            ("judge.base_url=http://user:pw@host/v1", "judge.base_url: must not hold a user or password"),
            ("judge.base_url=http://host/v1?api_key=user:pw", "judge.base_url: must have no query"),
            ("judge.api_key=sk-1", "unknown key 'judge.api_key'"),
            ("judge.key_variable=sk-123", "judge.key_variable: string should match"),
        ],
    )
    def test_faults_name_the_key(self, override, message):
        with pytest.raises(ArmorError) as raised:
            load_config(None, [override])
        assert message in str(raised.value)
        assert "user:pw" not in str(raised.value)


def test_every_template_and_domain_travels_in_the_package():
    root = Path(armor_ray.judges.__file__).parents[1]
    patterns = tomllib.loads((root.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["armor_ray"]
    data = [path for path in (root / "judges").rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}]
    assert len(data) >= 16
    assert not [path for path in data if not any(fnmatch(str(path.relative_to(root)), pattern) for pattern in patterns)]
