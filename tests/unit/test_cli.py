"""What a user sees: one line and exit status 2 for what they can mend, at once, and nothing half-written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest
import yaml
from click.testing import CliRunner, Result
from pipeline_cases import Tiny
from test_stage_plans import finish

from armor_ray import pipeline
from armor_ray.cli import main, run_job, show_places
from armor_ray.config import load_config
from armor_ray.errors import ArmorError
from armor_ray.workspace import Workspace

HEAVY = ("ray", "torch", "transformers", "faiss", "vllm")


@pytest.fixture
def tiny(tiny: Tiny, tmp_path: Path) -> Tiny:
    """The miniature in a folder and with a corpus of its own, to be spoilt."""
    return replace(tiny, root=tmp_path, corpus=Path(shutil.copytree(tiny.corpus, tmp_path / "corpus")))


@pytest.fixture(autouse=True)
def nothing_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """`prepare` may run; every fault here must be found before any other stage starts."""
    run = pipeline._run

    def run_prepare(stage: str, *rest: object) -> None:
        assert stage == "prepare", f"{stage} was started"
        run(stage, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "_run", run_prepare)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def refused(*arguments: str) -> str:
    """The one line that a refused command prints."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("armor-ray: ")
    return lines[0].removeprefix("armor-ray: ")


# -- speed -----------------------------------------------------------------------------------------------------------------------


def imported_by(*arguments: str) -> tuple[int, str, set[str]]:
    """(exit status, output, heavy packages imported) of the command in a process of its own."""
    code = f"""
import sys
from armor_ray.cli import main
try:
    main({list(arguments)!r})
except SystemExit as end:
    print("HEAVY", *(set({HEAVY!r}) & sys.modules.keys()))
    raise
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    output, _, heavy = done.stdout.partition("HEAVY")
    return done.returncode, output + done.stderr, set(heavy.split())


def test_help_and_complaints_import_nothing_heavy(tiny: Tiny) -> None:
    status, output, heavy = imported_by("run", "--help")
    assert (status, heavy) == (0, set())
    assert all(stage in output for stage in pipeline.STAGE_NAMES)
    status, output, heavy = imported_by("run", "--config", str(tiny.config("w")), "--set", "trainning.epochs=1")
    assert (status, heavy) == (2, set())
    assert "did you mean 'training'?" in output


def test_unchanged_rerun_and_status_import_nothing_heavy(tiny: Tiny) -> None:
    path = tiny.config("w")
    finish(load_config(path))
    status, output, heavy = imported_by("run", "--config", str(path))
    assert (status, heavy) == (0, set())
    assert output.count("up to date") == len({status.plan.stage for status in pipeline.status(load_config(path))})
    status, output, heavy = imported_by("status", str(tiny.workspace("w")))
    assert (status, heavy) == (0, set())


# -- faults ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "objective.lamda_q=1"], "did you mean 'objective.lambda_q'?"),
        (["--set", "objective.recipe=rag", "--set", "objective.lambda_q=1"], "no effect on recipe 'rag'"),
        (["--set", "training.epochs"], "--set: 'training.epochs' is not of the form section.key=value"),
        (["--until", "trian"], "--until: no stage 'trian'; stages: curate, prepare,"),
        (["--set", "candidates.pool_size=99"], "candidates.pool_size: asks for 99 passages, the corpus has"),
        (["--workspace", "s3://key:secret@bucket/x"], "s3: a workspace URI must not hold a key or password"),
        (["--set", "encoder.model=nobody/nothing"], "nobody/nothing: cannot load the model"),
        (["--set", "generator.model=nobody/nothing"], "nobody/nothing: cannot load the model"),
        (["--set", "encoder.model=/nowhere"], "/nowhere: no such model folder"),
        (["--set", "data.path=/nowhere"], "/nowhere"),
    ],
)
def test_bad_config(tiny: Tiny, options: list[str], message: str) -> None:
    assert message in refused("run", "--config", str(tiny.config("w")), *options)
    assert Workspace(str(tiny.workspace("w"))).names() == []


def rewrite(folder: Path, name: str, change: Callable[[list[dict[str, object]]], object]) -> None:
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    change(rows)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def break_line(folder: Path) -> None:
    lines = (folder / "qa.jsonl").read_text().splitlines()
    lines[4] = lines[4][:-5]
    (folder / "qa.jsonl").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_line, r"qa.jsonl:5: "),
        (lambda f: rewrite(f, "qa.jsonl", lambda rows: rows[2].pop("question")), r"qa.jsonl:3: .*question"),
        (lambda f: rewrite(f, "corpus.jsonl", lambda rows: rows[3].update(text=" ")), r"corpus.jsonl:4: "),
        (lambda f: rewrite(f, "corpus.jsonl", lambda rows: rows[1].update(id="doc00")), r"corpus.jsonl:2: .*doc00"),
        (lambda f: rewrite(f, "qa.jsonl", lambda rows: rows[0].update(doc_id="nobody")), r"qa.jsonl:1: .*nobody"),
        (lambda f: (f / "corpus.jsonl").write_text(""), r"corpus"),
        (lambda f: (f / "qa.jsonl").unlink(), r"qa.jsonl"),
    ],
)
def test_bad_data_names_file_and_line(tiny: Tiny, damage: Callable[[Path], object], message: str) -> None:
    damage(tiny.corpus)
    assert re.search(message, refused("run", "--config", str(tiny.config("w"))))
    assert Workspace(str(tiny.workspace("w"))).names() == []


def test_model_folder_without_weights(tiny: Tiny, tmp_path: Path) -> None:
    folder = tmp_path / "hollow"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    line = refused("run", "--config", str(tiny.config("w")), "--set", f"generator.model={folder}")
    assert line == f"{folder}: model folder without weights; it needs *.safetensors or pytorch_model*.bin"


def test_second_run_names_the_first(tiny: Tiny) -> None:
    with Workspace(str(tiny.workspace("w"))).lock():
        assert "another run holds this workspace (pid " in refused("run", "--config", str(tiny.config("w")))


def test_damaged_workspace(tiny: Tiny) -> None:
    path, folder = tiny.config("w"), tiny.workspace("w")
    finish(load_config(path))
    assert invoke("run", "--config", str(path)).exit_code == 0
    (folder / "embeddings" / "manifest.json").write_text("{")
    for command in (["run", "--config", str(path)], ["status", str(folder)]):
        assert "embeddings/manifest.json: not a readable manifest; delete that artifact's folder and rerun" in refused(*command)
    (folder / "config.yaml").write_text("seed: [1\n")
    assert "config.yaml:2: not valid YAML" in refused("status", str(folder))


@pytest.mark.parametrize(
    "command", ["status W", "evaluate W", "report W", "search W question", "promote W --to X", "promote W --retriever X"]
)
def test_commands_on_what_is_no_workspace(tmp_path: Path, command: str) -> None:
    line = refused(*(str(tmp_path / "none") if word == "W" else word for word in command.split()))
    assert "no config.yaml" in line or "no artifact" in line
    assert not (tmp_path / "none").exists()


def test_promoting_nothing_is_refused(tmp_path: Path) -> None:
    assert refused("promote", str(tmp_path)) == "promote: nothing to do; give --retriever NAME, --rollback, --to FOLDER or several"


def test_a_message_of_several_lines_becomes_one(monkeypatch: pytest.MonkeyPatch, tiny: Tiny) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ArmorError("first\n  second", where="place")

    monkeypatch.setattr(pipeline, "run", fail)
    assert refused("run", "--config", str(tiny.config("w"))) == "place: first second"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, tiny: Tiny) -> None:
    monkeypatch.setattr(pipeline, "run", lambda *_, **__: [][0])
    assert isinstance(invoke("run", "--config", str(tiny.config("w"))).exception, IndexError)


# -- what is kept and shown ------------------------------------------------------------------------------------------------------


def test_prepare_keeps_the_config_without_the_password(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.root)
    path = tiny.config("w", data={"path": "corpus"})
    result = invoke("run", "--config", str(path), "--until", "prepare", "--set", "data.max_train=20")
    assert result.exit_code == 0, result.output
    stored = yaml.safe_load((tiny.workspace("w") / "config.yaml").read_text())
    assert stored["data"]["path"] == str(tiny.corpus)
    assert stored["data"]["max_train"] == 20
    monkeypatch.chdir("/")
    assert invoke("status", str(tiny.workspace("w"))).exit_code == 0


def test_workspace_option_is_taken_literally(tiny: Tiny) -> None:
    folder = tiny.root / "123: x"
    assert invoke("run", "--config", str(tiny.config("w")), "--until", "prepare", "--workspace", str(folder)).exit_code == 0
    assert (folder / "passages" / "manifest.json").exists()


def test_status_says_what_changed(tiny: Tiny) -> None:
    path = tiny.config("w")
    finish(load_config(path))
    assert invoke("run", "--config", str(path)).exit_code == 0
    stored = tiny.workspace("w") / "config.yaml"
    stored.write_text(stored.read_text().replace("pool_size: 4", "pool_size: 5"))
    lines = {line.split()[0]: line for line in invoke("status", str(tiny.workspace("w"))).output.splitlines() if len(line.split()) > 2}
    assert "done" in lines["embeddings"]
    assert "stale: config pool_size changed" in lines["candidates"]
    assert "stale: candidates changed" in lines["utilities"]


def test_results_table_and_places(tiny: Tiny) -> None:
    path = tiny.config("w")
    finish(load_config(path))
    row = {"dataset": "data", "metric": "R@1", "value": 0.5, "low": 0.25, "high": 1.0, "n": 4}
    rows = [{**row, "method": "base"}, {**row, "method": "armor/swept/interpolated", "value": 0.75}]
    (tiny.workspace("w") / "reports" / "summary.json").write_text(json.dumps(rows))
    output = invoke("report", str(tiny.workspace("w"))).output
    assert ".500 .250–1.000" in output
    assert "armor/swept/interpolated" in output
    assert output.splitlines()[-1] == f"summary: {tiny.workspace('w')}/reports/summary.json"


def test_job_without_config_says_that_it_runs_the_demo(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_job(str(tiny.config("w")), until="prepare", argv=[])
    assert ended.value.code == 0
    assert f"no --config given: running the demo, {tiny.config('w')}" in capsys.readouterr().out
    assert Workspace(str(tiny.workspace("w"))).names() == ["examples", "passages"]


def test_job_faults_are_one_line_too(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_job(str(tiny.config("w")), argv=["--set", "seed=x"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("armor-ray: ")


def test_serve_config_is_named_only_for_its_own_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # `serve run CONFIG workspace=…` ignores the argument and would serve the demo.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve_configs").mkdir()
    shutil.copy(Path(__file__).parents[2] / "serve_configs" / "retriever.yaml", tmp_path / "serve_configs")
    show_places(Workspace(str(tmp_path / "runs" / "demo")))
    assert "serve run serve_configs/retriever.yaml\n" in capsys.readouterr().out
    show_places(Workspace("runs/mine"))
    assert f"serve run armor_ray.serving:app workspace={tmp_path}/runs/mine\n" in capsys.readouterr().out
