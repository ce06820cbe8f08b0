"""The demo in one command: `python -m armor_ray.demo` (what `make demo` runs).

Fetches the demo models, starts a Ray head of its own on loopback, submits `jobs/armor_sweep.py` to it, streams the job's output,
stops the head, and prints the results and where they are. What a finished or killed run has published is reused. A second, small
data set is prepared first: the adapted encoder is tried on its questions, too, which are of other fields.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click
import yaml

from armor_ray.cli import OneLineErrors, say, show_places, show_results
from armor_ray.config import Config, load_config
from armor_ray.demo.head import end_leftover, local_head
from armor_ray.demo.submit import run_job
from armor_ray.errors import ArmorError
from armor_ray.models.hub import DEMO_MODELS
from armor_ray.pipeline import is_complete
from armor_ray.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
JOB = Path("jobs/armor_sweep.py")
CONFIG = Path("jobs/configs/demo.yaml")
OTHER_DATA = Path("jobs/configs/demo_general.yaml")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@click.group(cls=OneLineErrors, invoke_without_command=True)
@click.option("--workspace", metavar="W", help="Folder for all artifacts (default: the config's, runs/demo).")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a config key.")
def main(workspace: str | None, overrides: tuple[str, ...]) -> None:
    """Run the demo on a local Ray head that is started and stopped here."""
    if not (ROOT / JOB).is_file():
        raise ArmorError("the demo runs from a checkout of the repository", where=str(ROOT / JOB), hint="run `make demo` in a clone")
    os.chdir(ROOT)  # as the job does
    config = load_config(CONFIG, list(overrides))
    folder = _local_folder(workspace or config.workspace)
    config = config.model_copy(update={"workspace": str(folder)})
    offline = _fetch_models(config)
    preparation = _preparation(config)
    if not preparation and is_complete(config):
        end_leftover(folder / ".head")
        say("everything is published already: nothing to run")
        show_results(Workspace(config.workspace))
    else:
        state = folder / ".head"
        job = [str(JOB), *_config_arguments(state, config if workspace or overrides else None)]
        _run_on_local_head(state, [*preparation, job], OFFLINE if offline else {})
        # The job has printed the table; Ray's lines about job and head came after it.
        show_places(Workspace(config.workspace))


def _local_folder(workspace: str) -> Path:
    if "://" in workspace:
        raise ArmorError("the demo's workspace is a folder of this machine", where=workspace, hint="use jobs/armor_sweep.py on a cluster")
    folder = Path(workspace).expanduser()
    return folder if folder.is_absolute() else ROOT / folder


def _fetch_models(config: Config) -> bool:
    """Fetches the demo models that the config names; whether it names no others, so that the job needs no network."""
    models = {config.encoder.model, config.generator.model}
    for name in sorted(models & DEMO_MODELS.keys()):
        say(f"model {name}: {DEMO_MODELS[name]()}")
    return models <= DEMO_MODELS.keys()


def _preparation(config: Config) -> list[list[str]]:
    """The job that prepares the other data, where the config asks for them and they are not there."""
    other = load_config(OTHER_DATA)
    if other.workspace not in config.evaluation.transfer_to or is_complete(other, "candidates"):
        return []
    return [[str(JOB), "--config", str(OTHER_DATA), "--until", "candidates"]]


def _run_on_local_head(state: Path, jobs: list[list[str]], environment: dict[str, str]) -> None:
    """Runs the jobs one after the other."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    say("starting a local Ray head (about 20 s)")
    with local_head(state, ROOT, environment) as head:
        say(f"dashboard: {head.address} (token in {state / 'token'})")
        for job in jobs:
            status = run_job(head, ["python", *job])
            if status != "SUCCEEDED":
                raise ArmorError(f"the job ended as {status}", where=str(JOB), hint="its output is above; run again to go on from there")


def _config_arguments(state: Path, config: Config | None) -> list[str]:
    if config is None:
        return []
    # A file, since the shell of `ray job submit` would take the braces and quotes of overrides apart.
    state.mkdir(parents=True, exist_ok=True)
    path = state / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(exclude_unset=True, mode="json"), sort_keys=False), encoding="utf-8")
    return ["--config", str(path)]


def _exit_on_signal(number: int, _frame: object) -> None:
    # An exception, so that the head is stopped on the way out.
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
