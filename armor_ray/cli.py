"""The `armor-ray` command and the entry point of every job: parse, call, print. One line and exit status 2 for what users can mend.

Whatever brings in Ray, torch or models is imported by the command that needs it, so that help and complaints come at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from armor_ray import pipeline
from armor_ray.config import Config, load_config, parse_yaml
from armor_ray.errors import ArmorError
from armor_ray.stages.context import config_of
from armor_ray.workspace import Manifest, Workspace

_ROOT = Path(__file__).resolve().parent.parent
_SERVE_CONFIG = "serve_configs/retriever.yaml"
_PIPED_WIDTH = 120  # of tables that go into a file or through `ray job submit`
_QUIET = {
    # Bars and reports of loading weights; what is wrong with a model is raised, not logged.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def say(text: str) -> None:
    """Progress lines go out at once, also through `ray job submit`."""
    click.echo(text)
    sys.stdout.flush()


class OneLineErrors(click.Group):
    """Turns ArmorError into one line on stderr and exit status 2; keeps libraries from chatting."""

    def invoke(self, ctx: click.Context) -> Any:
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        try:
            return super().invoke(ctx)
        except ArmorError as error:
            click.echo(f"armor-ray: {' '.join(ArmorError.__str__(error).split())}", err=True)
            ctx.exit(2)


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--force", metavar="STAGE", help="Run this stage again even when it is up to date."),
        click.option("--until", metavar="STAGE", help=f"Stop after this stage: {', '.join(pipeline.STAGE_NAMES)}."),
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a config key, e.g. training.epochs=2."),
        click.option("--workspace", metavar="W", help="Folder or URI for all artifacts (overrides the config)."),
    ):
        command = option(command)
    return command


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Adapt the query side of a retriever to your LLM and domain; keep the index."""


@main.command()
@click.option("--config", "config_path", required=True, metavar="FILE", help="YAML configuration; examples are in jobs/configs/.")
@_run_options
def run(config_path: str, workspace: str | None, overrides: tuple[str, ...], until: str | None, force: str | None) -> None:
    """Run every stage that is missing or stale."""
    execute(_load(config_path, workspace, overrides), until, force)


def _load(config_path: str | None, workspace: str | None, overrides: tuple[str, ...]) -> Config:
    config = load_config(config_path, list(overrides))
    return config.model_copy(update={"workspace": workspace}) if workspace else config


def execute(config: Config, until: str | None = None, force: str | None = None) -> None:
    """Runs the pipeline and ends with the results' places."""
    show_results(pipeline.run(config, until=until, force=force, say=say))


def show_results(workspace: Workspace) -> None:
    """The results table, the report's path and the serve command, when the report is there."""
    if workspace.manifest("reports") is None:
        return
    rows = json.loads(workspace.read_bytes("reports/summary.json") or b"[]")
    _print(_results_table([row for row in rows if row["dataset"] == rows[0]["dataset"]]))  # other data sets come after the own
    show_places(workspace)


def show_places(workspace: Workspace) -> None:
    """Where the report and the summary are, and how to serve."""
    say(f"report:  {workspace.location('reports/report.html')}")
    say(f"serve:   {_serve_command(workspace)}")
    say(f"summary: {workspace.location('reports/summary.json')}")


def _serve_command(workspace: Workspace) -> str:
    # Beside a config file `serve run` ignores arguments, so the file is named only where it serves this very workspace.
    config = Path(_SERVE_CONFIG)
    if config.is_file() and workspace.is_local:
        applications = parse_yaml(config.read_text(encoding="utf-8"), _SERVE_CONFIG).get("applications", [])
        served = [application.get("args", {}).get("workspace", "") for application in applications]
        if [Path(name).resolve() for name in served] == [Path(workspace.uri).resolve()]:
            return f"serve run {_SERVE_CONFIG}"
    return f"serve run armor_ray.serving:app workspace={workspace.uri}"


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)


def _results_table(rows: list[dict[str, Any]]) -> Table:
    metrics = list(dict.fromkeys(row["metric"] for row in rows if row["metric"].startswith("R@") and " " not in row["metric"]))
    table = _table("Test set: share of questions with a gold passage in the top k, and its 95 % interval")
    table.add_column("method", no_wrap=True)
    for metric in metrics:
        table.add_column(metric, no_wrap=True)
    values = {(row["method"], row["metric"]): row for row in rows}
    for method in dict.fromkeys(row["method"] for row in rows if row["metric"] in metrics):
        table.add_row(method, *(_interval(values.get((method, metric))) for metric in metrics))
    return table


def _table(title: str | None = None) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _interval(row: dict[str, Any] | None) -> str:
    """`.437 .401–.470`, short enough for four columns in a terminal."""
    if row is None:
        return ""
    value, low, high = (f"{row[name]:.3f}".removeprefix("0") for name in ("value", "low", "high"))
    return f"{value} [dim]{low}–{high}[/dim]"


@main.command()
@click.option("--config", "config_path", required=True, metavar="FILE", help="YAML configuration of the run.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a config key, e.g. candidates.pool_size=50.")
@click.option("--gpu-tflops", default=120.0, show_default=True, type=click.FloatRange(min=0, min_open=True), help="One GPU, sustained.")
@click.option("--core-gflops", default=100.0, show_default=True, type=click.FloatRange(min=0, min_open=True), help="One core, sustained.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list instead of a table.")
def plan(config_path: str, overrides: tuple[str, ...], gpu_tflops: float, core_gflops: float, as_json: bool) -> None:
    """What a run would take, with every assumption, from a sample of the data; writes nothing."""
    config = load_config(config_path, list(overrides))
    from armor_ray.stages.estimates.estimate import estimate
    from armor_ray.stages.estimates.lines import Rates

    lines = estimate(config, Rates(gpu_tflops * 1e12, core_gflops * 1e9))
    if as_json:
        click.echo(json.dumps([asdict(line) for line in lines], indent=1, allow_nan=False))
        return
    table = _table(f"Before the first stage of {config_path}")
    for name in ("stage", "what"):
        table.add_column(name, no_wrap=True)
    table.add_column("amount", justify="right", no_wrap=True)
    table.add_column("assumption", overflow="fold")
    for line in lines:
        table.add_row(line.stage, line.what, f"{_amount(line.amount)} {line.unit}".strip(), escape(line.assumption))
    _print(table)


def _amount(value: float | None) -> str:
    """Three digits of what is estimated, all of what is counted."""
    if value is None:
        return "?"
    return f"{round(value):,}" if value >= 100 or value == int(value) else f"{value:.3g}"


@main.command()
@click.argument("workspace")
def status(workspace: str) -> None:
    """What is done, stale or missing, with sizes and times."""
    table = _table()
    table.add_column("artifact", no_wrap=True)
    table.add_column("state", overflow="fold")
    table.add_column("rows")
    for name in ("MB", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for artifact in pipeline.status(config_of(workspace)):
        table.add_row(artifact.plan.name, _state(artifact.problem), *_size(artifact.manifest))
    _print(table)


def _state(problem: str | None) -> str:
    return "[green]done[/green]" if problem is None else f"[yellow]{problem}[/yellow]"


def _size(manifest: Manifest | None) -> tuple[str, str, str]:
    if manifest is None:
        return "", "", ""
    rows = ", ".join(f"{count} {name}" for name, count in manifest.rows.items())
    return rows, f"{sum(manifest.files.values()) / 1e6:.1f}", f"{manifest.seconds:.1f}"


@main.command()
@click.argument("workspace")
def evaluate(workspace: str) -> None:
    """Evaluate again whatever changed, and rewrite the report."""
    execute(config_of(workspace), until="evaluate")


@main.command()
@click.argument("workspace")
def report(workspace: str) -> None:
    """Print the results table and where the report is."""
    opened = Workspace(workspace)
    opened.require("reports")
    show_results(opened)


@main.command()
@click.argument("workspace")
@click.argument("question")
@click.option("-k", default=5, show_default=True, type=click.IntRange(1, 100))
def search(workspace: str, question: str, k: int) -> None:
    """Base and adapted results for a question, side by side."""
    config = config_of(workspace)
    from armor_ray.stages.search import compare

    table = Table(title=escape(question), title_justify="left", show_lines=True, box=box.SIMPLE)
    table.add_column("#", justify="right")
    table.add_column("base", ratio=1)
    table.add_column("adapted", ratio=1)
    for rank, (base, adapted) in enumerate(compare(Workspace(workspace), config, question, k), start=1):
        table.add_row(str(rank), escape(base.line()), escape(adapted.line(moved=True)))
    _print(table)


@main.command()
@click.argument("workspace")
@click.argument("others", nargs=-1, required=True)
@click.option("--method", "methods", multiple=True, metavar="ROW", help="Trained row to try, e.g. uae (default: the main recipe's).")
def transfer(workspace: str, others: tuple[str, ...], methods: tuple[str, ...]) -> None:
    """The retrievers of one workspace on the test questions of others, beside the base encoder."""
    config = config_of(workspace)
    from armor_ray.stages.transfer import NAME
    from armor_ray.stages.transfer import transfer as evaluate_transfer

    found = evaluate_transfer(config, others, methods, say)
    table = _table("▲ ▼ significantly above or below the base encoder on that data set")
    for number, name in enumerate(found.header):
        table.add_column(name, no_wrap=number > 1, overflow="fold")
    for row in found.rows:
        table.add_row(*(f"{escape(cell.value)} {cell.mark} [dim]{cell.note}[/dim]" for cell in row))
    _print(table)
    say(f"transfer: {Workspace(workspace).location(NAME)}")


@main.command()
@click.argument("workspace")
@click.option("--retriever", metavar="NAME", help="Promote this one of retrievers/ first; later runs keep it (undo: run --force promote).")
@click.option("--force", is_flag=True, help="Promote it even where it is worse than base; the manifest keeps that.")
@click.option("--rollback", is_flag=True, help="Promote what was promoted before; once more undoes that.")
@click.option("--to", "folder", type=click.Path(path_type=Path), help="New folder for the encoder.")
def promote(workspace: str, retriever: str | None, force: bool, rollback: bool, folder: Path | None) -> None:
    """Choose the served query encoder, or copy it out of the workspace."""
    from armor_ray.stages import promote as stage

    if retriever is None and folder is None and not rollback:
        raise ArmorError("nothing to do", where="promote", hint="give --retriever NAME, --rollback, --to FOLDER or several")
    if rollback and retriever is not None:
        raise ArmorError("--rollback and --retriever exclude each other", where="promote", hint="give one of them")
    opened = Workspace(workspace)
    if retriever is not None or rollback:
        config = config_of(workspace)  # refuses what is no workspace before the lock makes a folder of it
        with opened.lock():
            manifest = stage.rollback(opened) if retriever is None else stage.promote_gated(opened, config, retriever, force)
        say(f"promoted: {manifest.details['retriever']}")
    if folder is not None:
        stage.promote_to(opened, folder)
        say(f"promoted encoder: {folder}")


@main.command()
def doctor() -> None:
    """Versions, devices, FAISS builds, vLLM, demo models, writable paths."""
    from armor_ray.stages.doctor import examine

    table = _table()
    for name in ("what", "found", "verdict"):
        table.add_column(name)
    faults = 0
    for finding in examine():
        faults += not finding.good
        table.add_row(finding.what, finding.found, "ok" if finding.good else f"[red]{escape(finding.remedy)}[/red]")
    _print(table)
    if faults:
        raise ArmorError(f"{faults} finding(s) need attention", where="doctor", hint="see the last column")


def run_job(default_config: str, until: str | None = None, argv: list[str] | None = None) -> None:
    """Main of a `jobs/*.py` script: the CLI's own options, a default config, the CLI's own errors and exit status."""

    @click.group(cls=OneLineErrors, invoke_without_command=True)
    @click.option("--config", "config_path", metavar="FILE", help=f"YAML configuration (default: {default_config}).")
    @_run_options
    def job(config_path: str | None, workspace: str | None, overrides: tuple[str, ...], until: str | None, force: str | None) -> None:
        if config_path is None:
            say(f"no --config given: running the demo, {default_config}")
            config_path = default_config if Path(default_config).exists() else str(_ROOT / default_config)
        execute(_load(config_path, workspace, overrides), until or stop_after, force)

    stop_after = until
    job(argv)
