"""`python -m benchmarks.serve --data FOLDER`: serving under load beside a plain app, and index kinds at a million vectors.

Both servers run at once and are loaded in turn, from this process, on this machine: its cores are shared by client and server alike.
"""

from __future__ import annotations

import copy
import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
import torch
import yaml

from armor_ray.cli import OneLineErrors, say
from armor_ray.errors import ArmorError
from armor_ray.models.hardware import choose_dtype, dtype_name
from armor_ray.retrieval.exact import exact_top_k
from armor_ray.serving.arguments import ServingArguments
from benchmarks import faults, index_kinds
from benchmarks.inputs import Inputs, load_inputs
from benchmarks.load import Load, closed_loop, open_loop, top_passages
from benchmarks.measure import one_thread
from benchmarks.report import Outcome, Row, draw, print_table, write_page, write_summary
from benchmarks.servers import publish_encoder, serve_ours, serve_plain, write_workspace

Name = TypeVar("Name", bound=str)

PARTS = ("load", "scale", "faults")
CLIENTS = (1, 8, 32, 128)
_OVERLOAD = 4
_MOST_AT_ONE, _LEAST_AT_32, _LEAST_ALIKE = 1.3, 2.0, 0.98
_RECALL_AT, _LEAST_RECALL = 10, 0.995
_CHECKED, _WARM_UP, _QUERIES = 40, 40, 200
_SECONDS_WARM = 2.0
# Of the weights' own spread: enough for other passages to be found.
_NOISE = 0.2
# A full queue drains in (requests held) / (requests a second); twice that is still "not queued for ever".
_MOST_OF_DRAIN = 2.0


@click.group(cls=OneLineErrors, invoke_without_command=True)
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Folder with telequad/ as published.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/bench-serve"), show_default=True, help="Folder for the results.")
@click.option("--only", default="load", show_default=True, help="Parts to run: load, scale, faults.")
@click.option("--seconds", type=click.FloatRange(min=0.5), default=6.0, show_default=True, help="Length of each stretch of load.")
@click.option("--environment", multiple=True, metavar="NAME=VALUE", help="For `serve run`, such as RAY_SERVE_ENABLE_HA_PROXY=1.")
@click.option("--argument", multiple=True, metavar="NAME=VALUE", help="Serving argument (YAML), such as threads=2.")
@click.option("--vectors", type=click.IntRange(min=1000), default=1_000_000, show_default=True, help="Vectors of the part scale.")
@click.option("--kinds", default=",".join(index_kinds.KINDS), show_default=True, help="Index kinds of the part scale.")
def main(
    data: Path, out: Path, only: str, seconds: float, environment: tuple[str, ...], argument: tuple[str, ...], vectors: int, kinds: str
) -> None:
    """Measure serving on this machine's CPU, one thread of arithmetic a server."""
    parts, chosen = _chosen(only, PARTS, "--only"), _chosen(kinds, index_kinds.KINDS, "--kinds")
    settings = _pairs(environment, "--environment")
    arguments = {"dtype": fast_dtype(), **{name: yaml.safe_load(value) for name, value in _pairs(argument, "--argument").items()}}
    one_thread()
    out.mkdir(parents=True, exist_ok=True)
    load = f"1-minute load {os.getloadavg()[0]:.1f} at the start, {os.cpu_count()} cores for servers and clients together"
    changed = "".join(f", {name}={value}" for name, value in (settings | arguments).items())
    conditions = f"TeleQuAD, {seconds:g} s a stretch{changed}; {load}"
    inputs = load_inputs(data)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="armor-bench-") as folder:
        if "load" in parts:
            outcomes.append(measure_load(inputs, Path(folder), seconds, settings, arguments))
        if "faults" in parts:
            outcomes.append(_faults(inputs, Path(folder), settings))
        if "scale" in parts:
            say(f"{vectors} vectors, kinds {', '.join(chosen)} ...")
            outcomes.append(_scale(inputs, Path(folder), vectors, chosen, out))
    rows = [row for outcome in outcomes for row in outcome.rows]
    write_page(out / "report.md", outcomes, conditions)
    if rows:
        draw(out / "ratios.png", rows, conditions)
    summary = write_summary(out / "summary.json", rows)
    print_table(outcomes, conditions)
    say(str(summary))


def fast_dtype() -> str:
    """The arithmetic that one would serve with here: bfloat16 where the CPU multiplies in it."""
    return dtype_name(choose_dtype("auto", torch.device("cpu")))


def _chosen(given: str, known: Sequence[Name], option: str) -> list[Name]:
    names = [name.strip() for name in given.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ArmorError(f"no {unknown[0]!r}", where=option, hint=f"known: {', '.join(known)}")
    return [name for name in known if name in names]


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    pairs = dict(text.partition("=")[::2] for text in given)
    if not all(pairs.values()):
        raise ArmorError("not NAME=VALUE", where=option)
    return pairs


# -- load ------------------------------------------------------------------------------------------------------------------------


def measure_load(inputs: Inputs, folder: Path, seconds: float, environment: dict[str, str], arguments: dict[str, Any]) -> Outcome:
    """Loads both servers in turn at every number of clients, then ours with four times what it can do.

    Args:
        seconds: of every stretch of load.
        environment: of `serve run`.
        arguments: serving arguments that differ from the shipped config's.

    Raises:
        RuntimeError: they do not find the same passages, so the times say nothing.
    """
    workspace = write_workspace(folder / "workspace", inputs)
    questions = inputs.splits["test"].texts
    say("starting both servers ...")
    with serve_plain(workspace, folder / "plain") as plain, serve_ours(workspace, arguments, environment) as ours:
        urls = {"ours": f"{ours.url}/v1/retrieve", "theirs": f"{plain}/v1/retrieve"}
        alike = _alike(urls, questions[:_CHECKED])
        loads: dict[int, dict[str, Load]] = {}
        for clients in CLIENTS:
            loads[clients] = {}
            for side in ("ours", "theirs") if clients % 3 else ("theirs", "ours"):
                closed_loop(urls[side], questions[-_WARM_UP:], clients, _SECONDS_WARM)
                say(f"{clients} clients, {side} ...")
                loads[clients][side] = closed_loop(urls[side], questions, clients, seconds)
        rate = _OVERLOAD * max(load["ours"].rate for load in loads.values())
        say(f"overload: {rate:.0f} requests a second ...")
        overloaded = open_loop(urls["ours"], questions, rate, seconds)
    limits = ServingArguments(workspace=workspace.uri, **arguments)
    outcome = _load_outcome(loads, overloaded, rate, alike, limits)
    return Outcome([*outcome.rows, _recall_row(inputs, limits.dtype)], outcome.notes)


def _alike(urls: dict[str, str], questions: Sequence[str]) -> float:
    """Share of the best passages that both servers name."""
    ours, theirs = (top_passages(urls[side], questions) for side in ("ours", "theirs"))
    alike = sum(len(set(a) & set(b)) for a, b in zip(ours, theirs, strict=True)) / sum(map(len, ours))
    if alike < _LEAST_ALIKE:
        raise RuntimeError(f"the race is void: only {alike:.1%} of the passages are the same")
    return alike


def _load_outcome(loads: dict[int, dict[str, Load]], overloaded: Load, rate: float, alike: float, limits: ServingArguments) -> Outcome:
    rows = [_latency_row(**loads[1]), *(_rate_row(clients, **loads[clients]) for clients in CLIENTS[1:])]
    held = limits.max_ongoing_requests + limits.max_queued_requests
    drain = 1000 * held / max(load["ours"].rate for load in loads.values())
    rows += _overload_rows(overloaded, drain)
    notes = [f"{alike:.1%} of the best passages are the same on both sides ({_CHECKED} questions)"]
    for clients, sides in loads.items():
        notes += [f"{clients} clients, {side}: {_describe(load)}" for side, load in sides.items()]
    notes.append(f"overload, {rate:.0f} requests a second, ours: {_describe(overloaded)}; a full queue of {held} takes {drain:.0f} ms")
    return Outcome(rows, notes)


def _latency_row(ours: Load, theirs: Load) -> Row:
    a, b = ours.percentile(50), theirs.percentile(50)
    return Row("p50 of a lone client", a, b, "ms", a / b, _MOST_AT_ONE, at_most=True)


def _recall_row(inputs: Inputs, dtype: str) -> Row:
    """Whether the served arithmetic finds what fp32 finds."""
    questions = inputs.splits["test"].texts
    best = [
        exact_top_k(inputs.encoder.encode(questions, "query", dtype=arithmetic), np.asarray(inputs.vectors_CD, np.float32), _RECALL_AT)[1]
        for arithmetic in (getattr(torch, dtype), torch.float32)
    ]
    kept = float(np.mean([np.isin(ours, theirs).mean() for ours, theirs in zip(*best, strict=True)]))
    return Row(f"recall@{_RECALL_AT} of {dtype} queries against fp32", kept, 1.0, f"recall@{_RECALL_AT}", kept, _LEAST_RECALL)


def _rate_row(clients: int, ours: Load, theirs: Load) -> Row:
    target = _LEAST_AT_32 if clients == 32 else 1.0
    return Row(f"throughput at {clients} clients", ours.rate, theirs.rate, "requests/s", ours.rate / theirs.rate, target)


def _overload_rows(load: Load, drain: float) -> list[Row]:
    total = sum(load.statuses.values())
    well = (total - load.failed) / total
    p99 = load.percentile(99)
    return [
        Row(f"{_OVERLOAD}x overload: answered 200 or 503", well, 1.0, "share of requests", well, 1.0),
        Row(f"{_OVERLOAD}x overload: p99 against a full queue's time", p99, drain, "ms", p99 / drain, _MOST_OF_DRAIN, at_most=True),
    ]


def _describe(load: Load) -> str:
    quantiles = ", ".join(f"p{q} {load.percentile(q):.1f} ms" for q in (50, 95, 99))
    refused = f"; {len(load.refusals)} answered 503, slowest after {1000 * max(load.refusals):.0f} ms" if load.refusals else ""
    failed = f"; {load.failed} failed" if load.failed else ""
    return f"{load.rate:.1f} requests/s, {quantiles}{refused}{failed}"


# -- faults ----------------------------------------------------------------------------------------------------------------------


def _faults(inputs: Inputs, folder: Path, environment: dict[str, str]) -> Outcome:
    """Two replicas in fp32, so that every answer can be checked, and a second retriever: the first one's weights with noise."""
    workspace = write_workspace(folder / "faults", inputs)
    other = copy.deepcopy(inputs.encoder)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in other.body.parameters():
            weight.add_(_NOISE * weight.std(unbiased=False) * torch.randn(weight.shape, generator=generator))
    publish_encoder(workspace, "retrievers/other", other, inputs)
    questions = inputs.splits["test"].texts[:_QUERIES]
    passages_CD = np.asarray(inputs.vectors_CD, np.float32)
    scores = {
        name: encoder.encode(questions, "query") @ passages_CD.T for name, encoder in (("promoted", inputs.encoder), ("other", other))
    }
    say("a minute of killed replicas, then encoder swaps ...")
    with serve_ours(workspace, {"num_replicas": 2}, environment) as server:
        return faults.measure(server, questions, scores)


# -- scale -----------------------------------------------------------------------------------------------------------------------


def _scale(inputs: Inputs, folder: Path, count: int, kinds: Sequence[index_kinds.Kind], out: Path) -> Outcome:
    queries = inputs.encoder.encode(inputs.splits["test"].texts[:_QUERIES], "query")
    measured = index_kinds.measure(np.asarray(inputs.vectors_CD, np.float32), queries, folder, count, kinds)
    (out / "index_kinds.json").write_text(json.dumps([asdict(line) for line in measured], indent=1) + "\n", encoding="utf-8")
    notes = [
        f"{line.kind}, {line.vectors:,} vectors: recall@{index_kinds.K} {line.recall:.4f}, lone query p50 {line.p50_ms:.2f} ms, "
        f"p99 {line.p99_ms:.2f} ms; start {line.start_seconds:.2f} s; memory {line.private_mb:.0f} MB of its own, "
        f"{line.resident_mb:.0f} MB with the file's pages; file {line.file_mb:.0f} MB; built in {line.build_cpu_seconds:.0f} CPU-s"
        for line in measured
    ]
    flat = next((line for line in measured if line.kind == "flat"), None)
    others = [line for line in measured if line.kind != "flat"]
    if flat is None:
        return Outcome([], notes)
    return Outcome([_kind_row(line, flat) for line in others if math.isfinite(line.p50_ms)], notes)


def _kind_row(line: index_kinds.Measured, flat: index_kinds.Measured) -> Row:
    return Row(f"{line.kind} against flat, lone query", line.p50_ms, flat.p50_ms, "ms", flat.p50_ms / line.p50_ms, 1.0)


if __name__ == "__main__":
    main()
