"""The `armor-ray` command and the entry point of every job: parse, call, print. One line and exit status 2 for what users can mend."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table

from armor_ray import pipeline
from armor_ray.config import Config, load_config
from armor_ray.errors import ArmorError
from armor_ray.workspace import Workspace

_ROOT = Path(__file__).resolve().parent.parent


def say(text: str) -> None:
    """Progress lines go out at once, also through `ray job submit`."""
    click.echo(text)
    sys.stdout.flush()


class OneLineErrors(click.Group):
    """Turns ArmorError into one line on stderr and exit status 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ArmorError as error:
            click.echo(f"armor-ray: {error}", err=True)
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
    return load_config(config_path, [*overrides, *([f"workspace={workspace}"] if workspace else [])])


def execute(config: Config, until: str | None = None, force: str | None = None) -> None:
    """Runs the pipeline, keeps the resolved config in the workspace, and ends with the results' places."""
    workspace = Workspace(config.workspace)
    pipeline.run(config, until=until, force=force, say=say)
    workspace.write_bytes("config.yaml", yaml.safe_dump(config.model_dump(exclude_unset=True, mode="json"), sort_keys=False).encode())
    show_results(workspace)


def show_results(workspace: Workspace) -> None:
    """The results table, the report's path and the serve command, when the report is there."""
    manifest = workspace.manifest("reports")
    if manifest is None:
        return
    rows = json.loads(workspace.read_bytes("reports/summary.json") or b"[]")
    Console(width=120 if not sys.stdout.isatty() else None).print(_results_table(rows))
    say(f"report:  {workspace.path('reports')}/report.html")
    say(f"serve:   serve run serve_configs/retriever.yaml workspace={workspace.uri}")
    say(f"summary: {workspace.path('reports')}/summary.json")


def _results_table(rows: list[dict[str, Any]]) -> Table:
    metrics = list(dict.fromkeys(row["metric"] for row in rows if row["metric"].startswith("R@")))
    metrics = [metric for metric in metrics if " " not in metric]
    table = Table(title="Test set: share of questions with a gold passage in the top k, with 95 % intervals")
    table.add_column("method")
    for metric in metrics:
        table.add_column(metric, justify="right")
    values = {(row["method"], row["metric"]): row for row in rows}
    for method in dict.fromkeys(row["method"] for row in rows if row["metric"] in metrics):
        cells = [values.get((method, metric)) for metric in metrics]
        table.add_row(method, *(f"{c['value']:.3f} [{c['low']:.3f}, {c['high']:.3f}]" if c else "" for c in cells))
    return table


@main.command()
@click.argument("workspace")
def status(workspace: str) -> None:
    """What is done, stale or missing, with sizes and times."""
    table = Table("artifact", "state", "rows", "MB", "seconds", "created")
    for artifact in pipeline.status(_config_of(workspace)):
        manifest = artifact.manifest
        cells = ["", "", "", ""]
        if manifest is not None:
            rows = ", ".join(f"{name} {count}" for name, count in manifest.rows.items())
            cells = [rows, f"{sum(manifest.files.values()) / 1e6:.1f}", f"{manifest.seconds:.1f}", manifest.created]
        table.add_row(artifact.plan.name, artifact.problem or "done", *cells)
    Console(width=140 if not sys.stdout.isatty() else None).print(table)


def _config_of(workspace: str) -> Config:
    raw = Workspace(workspace).read_bytes("config.yaml")
    if raw is None:
        raise ArmorError("no config.yaml: not a workspace of a finished run", where=workspace, hint="use `armor-ray run --config C`")
    from armor_ray.config import validate_config

    return validate_config({**yaml.safe_load(raw), "workspace": workspace}, f"{workspace}/config.yaml")


@main.command()
@click.argument("workspace")
def evaluate(workspace: str) -> None:
    """Evaluate again whatever changed, and rewrite the report."""
    execute(_config_of(workspace), until="evaluate")


@main.command()
@click.argument("workspace")
def report(workspace: str) -> None:
    """Print the results table and where the report is."""
    Workspace(workspace).require("reports")
    show_results(Workspace(workspace))


@main.command()
@click.argument("workspace")
@click.argument("question")
@click.option("-k", default=5, show_default=True, type=click.IntRange(1, 100))
def search(workspace: str, question: str, k: int) -> None:
    """Base and adapted results for a question, side by side."""
    from armor_ray.stages.search import compare

    table = Table("rank", "base", "adapted", title=question, show_lines=True)
    for rank, (base, adapted) in enumerate(compare(Workspace(workspace), _config_of(workspace), question, k), start=1):
        table.add_row(str(rank), base.line(), adapted.line(moved=True))
    Console().print(table)


@main.command()
@click.argument("workspace")
@click.option("--to", "folder", required=True, type=click.Path(path_type=Path), help="New folder for the encoder.")
def promote(workspace: str, folder: Path) -> None:
    """Copy the promoted query encoder out of the workspace."""
    from armor_ray.stages.promote import promote_to

    promote_to(Workspace(workspace), folder)
    say(f"promoted encoder: {folder}")


@main.command()
def doctor() -> None:
    """Versions, devices, FAISS builds, vLLM, demo models, writable paths."""
    from armor_ray.stages.doctor import examine

    table = Table("what", "found", "verdict")
    faults = 0
    for finding in examine():
        faults += not finding.good
        table.add_row(finding.what, finding.found, "ok" if finding.good else finding.remedy)
    Console().print(table)
    if faults:
        raise ArmorError(f"{faults} finding(s) need attention", where="doctor")


def run_job(default_config: str, until: str | None = None, argv: list[str] | None = None) -> None:
    """Main of a `jobs/*.py` script: the CLI's own options, a default config, the CLI's own errors and exit status."""

    @click.group(cls=OneLineErrors, invoke_without_command=True)
    @click.option("--config", "config_path", metavar="FILE", help=f"YAML configuration (default: {default_config}).")
    @_run_options
    def job(config_path: str | None, workspace: str | None, overrides: tuple[str, ...], until: str | None, force: str | None) -> None:
        if config_path is None:
            say(f"no --config given: running the demo, {default_config}")
            config_path = default_config if os.path.exists(default_config) else str(_ROOT / default_config)
        execute(_load(config_path, workspace, overrides), until or stop_after, force)

    stop_after = until
    job(argv)
