"""The report's part on utilities, the reward model and the gate."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import numpy as np

from armor_ray.evaluation.agreement import agreement, gold_accuracy
from armor_ray.evaluation.report import ReportData, write_report
from armor_ray.evaluation.reward_report import GateExample, GatePassage, RewardReport, gold_deltas
from armor_ray.evaluation.summary import Row

NAN = float("nan")
HOSTILE = "<b>x</b> | *y*"


def reward_report(questions: int = 40, pool: int = 8) -> RewardReport:
    """Heavy-tailed utilities, one gold passage a question, and a reward that follows them with noise."""
    rng = np.random.default_rng(0)
    positive_QN = np.arange(pool) == rng.integers(pool, size=(questions, 1))
    utility_QN = np.exp(rng.normal(size=(questions, pool)) * 2 + 2 * positive_QN)
    utility_QN[0, -1] = NAN
    reward_QN = np.log(utility_QN) + rng.normal(size=utility_QN.shape) * 0.5
    scores = {"base": rng.normal(size=utility_QN.shape), "reward": np.nan_to_num(reward_QN)}
    known = ~np.isnan(utility_QN)
    rows = [
        {"method": m, **agreement(s, utility_QN, 0.0, 5.0), "gold_accuracy": gold_accuracy(s, positive_QN, known)}
        for m, s in scores.items()
    ]
    example = GateExample(HOSTILE, [GatePassage(HOSTILE, 0.9, 2.0)], [GatePassage("far", 0.1, -1.0)], [GatePassage("near", None, 1.9)])
    return RewardReport(
        kind="perplexity_reduction",
        utility_QN=utility_QN,
        reward_QN=reward_QN,
        positive_QN=positive_QN,
        noise_floor=1e-4,
        agreements=rows,
        gold_accuracy=0.98,
        counts={"train": {"questions": 1200, "kept": 3456, "rejected": 789, "questions without a negative": 12}},
        margin=0.5,
        examples=[example],
    )


def written(folder: Path, rewards: RewardReport | None) -> tuple[str, str]:
    rows = [Row("demo", "base", "R@3", 0.6, 0.5, 0.7, 100)]
    pages = write_report(folder, ReportData(dataset="demo", rows=rows, rewards=rewards))
    return pages[0].read_text(), pages[1].read_text()


def test_deltas_are_taken_within_a_question_and_agree_with_the_accuracy() -> None:
    values = np.array([[3.0, 1.0, NAN], [0.0, 5.0, 5.0]])
    gold = np.array([[True, False, False], [False, True, True]])
    deltas = gold_deltas(values, gold)
    np.testing.assert_array_equal(deltas, [2.0, 5.0, 5.0])
    values[1, 0] = 6.0
    assert gold_accuracy(values, gold, ~np.isnan(values)) == np.mean(gold_deltas(values, gold) > 0) == 1 / 3


class Text(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.bold = "", 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.bold += tag == "b"

    def handle_data(self, data: str) -> None:
        self.text += data


def test_both_pages_show_figures_agreement_and_gate_and_escape_passages(tmp_path: Path) -> None:
    html, markdown = written(tmp_path, reward_report())
    page = Text(html)
    assert page.bold == 0
    assert page.text.count(HOSTILE) == 2  # question and gold passage
    for words in (
        "Reward model",
        "3,456",
        "789",
        "accepted",
        "rejected",
        "in 98.0 % of pairs",
        "perplexity reduction",
        "more than 0.5 below",
    ):
        assert words in page.text
        assert words in markdown
    assert "| rejected | – | 1.90 | near |" in markdown
    assert "| gold | 0.900 | 2.00 | &lt;b&gt;x&lt;/b&gt; \\| \\*y\\* |" in markdown
    for name in ("utility", "agreement"):
        assert f"(figures/{name}.png)" in markdown
        assert matplotlib.image.imread(tmp_path / "figures" / f"{name}.png").shape[1] >= 1200


def test_a_run_without_rewards_says_nothing_of_them(tmp_path: Path) -> None:
    html, markdown = written(tmp_path, None)
    assert "reward" not in html.lower() + markdown.lower()
    assert not (tmp_path / "figures" / "utility.png").exists()


def test_the_best_method_is_bold_and_an_undefined_metric_a_dash() -> None:
    report = reward_report()
    rows = [{**row, "nDCG@5": NAN} for row in report.agreements]
    table = replace(report, agreements=rows).agreement_table
    assert table.header == ["Method", "Pairwise accuracy", "nDCG@1", "nDCG@5", "Recall@5", "Gold above other"]
    cells = {row[0].value: row[1:] for row in table.rows}
    assert [cell.best for cell in cells["Reward model"]] == [True, True, False, True, True]
    assert cells["Base"][2].value == cells["Reward model"][2].value == "–"


def test_figures_survive_utilities_that_are_all_alike(tmp_path: Path) -> None:
    values = np.zeros((3, 4))
    report = replace(reward_report(), utility_QN=values, reward_QN=values, positive_QN=np.tile(np.arange(4) == 0, (3, 1)))
    written(tmp_path, report)
    assert (tmp_path / "figures" / "utility.png").exists()
