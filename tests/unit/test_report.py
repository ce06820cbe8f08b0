"""The report: what it says, that it stands alone, that hostile text stays text, that what is missing is named."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import matplotlib.image
import numpy as np
import pytest

from armor_ray.errors import ArmorError
from armor_ray.evaluation import tables
from armor_ray.evaluation.examples import Example, Examples, choose_examples
from armor_ray.evaluation.figures import Trial
from armor_ray.evaluation.labels import is_adapted, method_label
from armor_ray.evaluation.report import ReportData, write_report
from armor_ray.evaluation.summary import Row, metric_rows

HOSTILE = "<script>alert('x')</script> | a * b\n# **c** `d` & \"e\""


def rows_of(
    method: str, metric: str, value: float, difference: tuple[float, float, float] | None = None, against: str = "base"
) -> list[Row]:
    rows = [Row("demo", method, metric, value, value - 0.02, value + 0.02, 1583)]
    return rows if difference is None else [*rows, Row("demo", method, f"{metric} vs {against}", *difference, 1583)]


def few_rows() -> list[Row]:
    return [
        *rows_of("base", "R@3", 0.635),
        *rows_of("bm25", "R@3", 0.807, (0.17, 0.15, 0.19)),
        *rows_of("armor", "R@3", 0.6549, (0.02, 0.01, 0.03)),
        *rows_of("replug", "R@3", 0.610, (-0.025, -0.035, -0.015)),
        *rows_of("mix", "R@3", 0.640, (0.005, -0.002, 0.012)),
    ]


def full_data() -> ReportData:
    generator = np.random.default_rng(0)
    recall = {
        name: {f"R@{k}": (generator.random(60) < k / 20).astype(float) for k in (1, 3, 5, 16)} for name in ("base", "armor", "infonce")
    }
    rows = [*metric_rows("demo", "base", recall["base"], resamples=100)]
    for name in ("armor", "infonce"):
        rows += metric_rows("demo", name, recall[name], ("base", recall["base"]), resamples=100)
    rows += metric_rows("demo", "bm25+base", recall["infonce"], resamples=100)
    rows += metric_rows("demo", "bm25+armor", recall["armor"], ("bm25+base", recall["infonce"]), resamples=100)
    rows += rows_of("base_gen", "F1", 0.1) + rows_of("base_rag", "F1", 0.3) + rows_of("armor", "F1", 0.35, (0.05, 0.01, 0.09), "base_rag")
    history = [{"step": float(s), "tau_rag": 0.05 - s / 1e4, "tau_infonce": 0.05, "query_distillation": s / 1e4} for s in range(1, 300)]
    history += [{"step": 299.0, "validation_R@3": 0.6}]
    curve = [{"alpha": alpha, "R@3": 0.6 + alpha * (1 - alpha)} for alpha in (0.0, 0.5, 1.0)]
    return ReportData(
        dataset=HOSTILE,
        rows=rows,
        histories={"armor": history, "infonce": [{"step": 1.0, "drift": 0.01}]},
        sweep=[Trial({"objective.lambda_q": a, "objective.tau_min": b}, a / 10 - b, 2) for a in (1.0, 3.0) for b in (0.01, 0.2)],
        interpolation={"armor/interpolated": curve},
        chosen_alpha={"armor/interpolated": 0.5},
        fusion_weights={"bm25+base": 0.35, "bm25+armor": 0.4},
        examples=Examples("armor", 100, [Example(HOSTILE, HOSTILE, 0, 2)], []),
        facts={HOSTILE: HOSTILE, "passages": 3206},
        notes=[HOSTILE],
        config=f"data:\n  name: {HOSTILE}",
        versions={"ray": HOSTILE},
        seeds=(0, 1),
    )


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    html, markdown = write_report(folder, full_data())
    return folder, html.read_text(), markdown.read_text()


class Page(HTMLParser):
    """Collects tags, references and visible text, and refuses tags that are closed out of order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "srcset", "data")]
        if tag not in ("meta", "img", "br", "link"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_stands_alone_and_hostile_text_stays_text(full):
    _, html, _ = full
    page = Page(html)
    assert "script" not in page.tags
    assert page.tags.count("img") == 5
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert not re.search(r"@import|url\(", html)
    assert page.text.count(HOSTILE) == 9  # data set and title, note, question, passage, fact twice, version, config
    for words in ("below rank 100 → rank 2", "No question's gold passage fell.", "mean over seeds 0, 1", "BM25 + ARMOR 0.4", "3,206"):
        assert words in page.text
    assert "Not part of this run" not in html


def test_markdown_tables_keep_their_columns_whatever_the_text(full):
    folder, _, markdown = full
    assert "<script>" not in markdown.partition("\n    data:")[0]  # the configuration is a code block
    blocks = re.findall(r"(?:^\|.*\|\n)+", markdown, re.MULTILINE)
    assert len(blocks) == 7
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", markdown)
    assert len(pictures) == 5
    for picture in pictures:
        assert matplotlib.image.imread(folder / picture).shape[1] >= 1200


def test_missing_parts_are_named(tmp_path):
    _, markdown = write_report(tmp_path, ReportData(dataset="demo", rows=few_rows()))
    absent = next(line for line in markdown.read_text().splitlines() if line.startswith("Not part of this run"))
    for part in (
        "fusion",
        "generated answers",
        "training curves",
        "sweep",
        "interpolation",
        "examples",
        "data facts",
        "configuration",
        "seeds",
    ):
        assert part.removesuffix("s") in absent
    assert "retrieval results" not in absent
    with pytest.raises(ArmorError, match="no results"):
        write_report(tmp_path, ReportData(dataset="demo", rows=[]))


def test_pools_and_utilities_have_tables_of_their_own(tmp_path):
    rows = few_rows()
    for method, value in (("base", 0.5), ("armor", 0.6)):
        rows += rows_of(method, "pool:R@1", value) + rows_of(method, "utility:MAP", value / 2) + rows_of(method, "ExpUtil@1", 4 * value)
    facts = {"asked": 150, "expected": 148, "relevant": 97, "threshold": 0.123}
    pages = [page.read_text() for page in write_report(tmp_path, ReportData(dataset="demo", rows=rows, by_utility=facts))]
    texts = [Page(pages[0]).text, pages[1]]
    for text in texts:
        for words in (
            "Hard pools",
            "148 of the first 150 questions",
            "from a utility of 0.123; 97 questions",
            "2.400",
            "0.300",
            "Recall@1",
        ):
            assert words in text
    assert "| Method | ExpUtil@1 | MAP |" in pages[1]
    assert "| Method | Recall@3 |" in pages[1]  # the corpus' results have none of these columns
    plain = write_report(tmp_path, ReportData(dataset="demo", rows=few_rows()))[0].read_text()
    assert "Other protocols" not in plain


def test_results_table_marks_and_bold():
    table = tables.results_table(few_rows(), ["R@1", "R@3"], lambda method: method != "bm25", "base")
    assert table is not None
    assert table.header == ["Method", "Recall@3"]  # nobody has R@1
    shown = {row[0].value: (row[1].value, row[1].note, row[1].best, row[1].mark) for row in table.rows}
    assert shown == {
        "Base": ("0.635", "0.615 to 0.655", False, ""),
        "ARMOR": ("0.655", "0.635 to 0.675", True, tables.ABOVE),
        "REPLUG": ("0.610", "0.590 to 0.630", False, tables.BELOW),
        "Mix": ("0.640", "0.620 to 0.660", False, ""),
    }
    assert tables.results_table(few_rows(), ["F1"], lambda method: True, "base") is None


def test_headline_says_how_sure_it_is():
    assert tables.headline(few_rows(), "R@3") == (
        "ARMOR finds a gold passage among the top 3 for 65.5 % of 1,583 test questions, against 63.5 % with the base encoder: "
        "+2.0 points, 95 % interval +1.0 to +3.0, a significant gain. It is the best of 3 adapted encoders on these questions."
    )
    unsure = [*rows_of("base", "R@1", 0.4), *rows_of("mix", "R@1", 0.41, (0.01, -0.01, 0.03))]
    assert "at rank 1 for 41.0 %" in tables.headline(unsure, "R@1")
    assert "which could be chance. It is the only adapted encoder here." in tables.headline(unsure, "R@1")
    worse = [*rows_of("base", "R@1", 0.4), *rows_of("mix", "R@1", 0.3, (-0.1, -0.2, -0.05))]
    assert "a significant loss" in tables.headline(worse, "R@1")
    assert tables.headline(rows_of("base", "R@1", 0.4), "R@1").startswith("No adapted encoder")


def test_examples_are_the_largest_changes_of_reciprocal_rank():
    before, after = np.array([2, 50, 1, 0, 3, 1]), np.array([1, 40, 0, 4, 3, 2])
    chosen = choose_examples("armor", 100, [f"q{i}" for i in range(6)], ["word " * 100] * 6, before, after, limit=2)
    assert [example.question for example in chosen.helped] == ["q0", "q3"]
    assert [(example.question, example.before, example.after) for example in chosen.hurt] == [("q2", 1, 0), ("q5", 1, 2)]
    assert len(chosen.helped[0].passage) <= 282
    assert chosen.helped[0].passage.endswith("word …")


def test_labels():
    assert method_label("bm25+armor/interpolated") == "BM25 + ARMOR, interpolated"
    assert method_label("my_encoder") == "my_encoder"
    assert method_label("bm25+armor>rankgpt") == "BM25 + ARMOR → rankgpt"


def test_only_recipes_are_adapted_encoders():
    """The report's headline compares the best of these with Base; a published encoder or a reranker must never be it."""
    assert is_adapted("armor/swept/interpolated")
    assert not any(map(is_adapted, ("base", "bm25", "base_rag", "bm25+armor", "splade", "armor>rankgpt")))
