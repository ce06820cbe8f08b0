"""A process that judges numbered pairs, to be killed: `python judging_driver.py URL CACHE OUTPUT COUNT`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from armor_ray.config import JudgeConfig
from armor_ray.judges.client import ChatClient
from armor_ray.judges.domain import load_domain, shipped_domains
from armor_ray.judges.judge import Judgement, judge_items
from armor_ray.judges.qa_domain import QADomain, QuestionAnswer

CONCURRENCY = 4


def pairs(count: int) -> list[QuestionAnswer]:
    return [QuestionAnswer(f"question {number}?", f"answer {number}") for number in range(count)]


def qa_domain(timeout_seconds: float = 5.0) -> QADomain:
    return QADomain(tuple(map(load_domain, shipped_domains())), timeout_seconds=timeout_seconds)


async def judge_pairs(url: str, cache: Path, count: int) -> Judgement:
    config = JudgeConfig(base_url=url, model="tiny", concurrency=CONCURRENCY)
    async with ChatClient(config, cache, backoff_seconds=0.01) as client:
        return await judge_items(qa_domain(), pairs(count), client)


def as_rows(judgement: Judgement) -> list[dict]:
    return [{"keep": verdict.keep, "scores": dict(verdict.scores), "failure": verdict.failure} for verdict in judgement.verdicts]


if __name__ == "__main__":
    url, cache, output, count = sys.argv[1:]
    print("ready", flush=True)
    judgement = asyncio.run(judge_pairs(url, Path(cache), int(count)))
    Path(output).write_text(json.dumps(as_rows(judgement)))
