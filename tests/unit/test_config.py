"""A config says what is wrong with it in one line, at the place where it is wrong, before anything runs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from armor_ray.config import DEFAULT_SWEEP, RECIPES, Config, load_config, parse_yaml, validate_config, with_overrides
from armor_ray.errors import ArmorError
from armor_ray.pipeline import resolved_config
from armor_ray.stages.methods import adapted_methods, needs_bm25, recipe_config, training_identity

SECRET = "hunter2"


def refused(*overrides: str) -> str:
    with pytest.raises(ArmorError) as caught:
        load_config(None, list(overrides))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("objective.lamda_q=1", "unknown key 'objective.lamda_q'; did you mean 'objective.lambda_q'?"),
        ("objective.learning_rate=1", "did you mean 'training.learning_rate'?"),  # the right key in the wrong section
        ("training.lora.rnk=4", "did you mean 'training.lora.rank'?"),
        ("trainning.epochs=1", "did you mean 'training'?"),
        ("foo=1", "known keys: baselines, cache, candidates, curation, data,"),
    ],
)
def test_unknown_key_names_the_nearest(override: str, hint: str) -> None:
    assert hint in refused(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epochs=two", "training.epochs: input should be a valid integer"),
        ("training.epochs=0", "training.epochs: input should be greater than or equal to 1 (got 0)"),
        ("data.test_fraction=1.5", "data.test_fraction: input should be less than 1 (got 1.5)"),
        ("objective.recipe=arnor", "'replug', 'uae' or 'armor_uae' (got 'arnor')"),
        ("resources.embed_actors=0", "resources.embed_actors: input should be greater than or equal to 1 (got 0)"),
        ("resources.cluster_cpus=many", "resources.cluster_cpus: input should be a valid number"),
        ("evaluation.ks=[1, 0]", "evaluation.ks.1: input should be greater than or equal to 1"),
        ("evaluation.ks=[1, 1]", "evaluation.ks: 1 occurs twice"),
        ("evaluation.seeds=[0, 0]", "evaluation.seeds: 0 occurs twice"),
        ("evaluation.recipes=[]", "evaluation.recipes: list should have at least 1 item"),
        ("candidates.pool_size=4", "candidates: top_k 16 is larger than pool_size 4"),
        ("training.workers=3", "training: batch_size 16 cannot be shared evenly by 3 workers"),
        ("training.interpolate=[2]", "every α must lie in [0, 1]"),
        ("objective.tau_start=0.001", "tau_start 0.001 lies below tau_min 0.01"),
        ("generator.base_url=http://user:pw@host/v1", "generator.base_url: must not hold a user or password"),
    ],
)
def test_bad_value_is_named_with_its_key(override: str, message: str) -> None:
    assert message in refused(override)


@pytest.mark.parametrize("override", ["training.epochs", "=1", "training..epochs=1", ".x=1"])
def test_override_without_key_and_value(override: str) -> None:
    assert refused(override) == f"--set: '{override}' is not of the form section.key=value"


def test_override_with_bad_yaml_or_below_a_value() -> None:
    assert refused("evaluation.ks=[1") == "--set: the value of 'evaluation.ks' is not valid YAML"
    assert refused("seed=1", "seed.x=1") == "--set: 'seed.x' goes below a plain value"


# -- files -----------------------------------------------------------------------------------------------------------------------


def test_bad_yaml_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("seed: 1\ntraining:\n  epochs: [1\nworkspace: x\n")
    with pytest.raises(ArmorError, match=r"c.yaml:4: not valid YAML \("):
        load_config(path)


@pytest.mark.parametrize(("content", "message"), [(b"- 1\n", "a mapping of sections"), (b"\xff\xfe\x00", "not a text file in UTF-8")])
def test_not_a_config(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ArmorError, match=message):
        load_config(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ArmorError, match=r"no such config file; pass --config"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ArmorError, match="Is a directory"):
        load_config(tmp_path)


def test_empty_file_and_empty_sections_are_defaults(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("training:\n  # epochs: 2\nsweep:\n")
    assert load_config(path) == load_config(None) == Config()


# -- parameters that do nothing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["objective.recipe=rag", "objective.lambda_q=2"],
            "objective.lambda_q has no effect on recipe 'rag' (read by armor, armor_uae, static_reg)",
        ),
        (["objective.recipe=infonce", "objective.length_normalised=true"], "no effect on recipe 'infonce'"),
        (["objective.recipe=rag", "sweep.parameters={objective.lambda_q: [1, 2]}"], "sweep.parameters.objective.lambda_q has no effect"),
        (["objective.tau_max=5"], "tau_max has no effect on temperature_form 'softplus'"),
        (["objective.negative_order=easiest"], "negative_order has no effect where all negatives are taken"),
        (["sweep.parameters={objective.lambda_q: [1]}"], "nothing to sweep"),
    ],
)
def test_parameter_that_is_ignored_is_refused(overrides: list[str], message: str) -> None:
    assert message in refused(*overrides)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("{objective.lamda_q: [1, 2]}", "unknown key 'objective.lamda_q' (at objective.lamda_q=1); did you mean 'objective.lambda_q'?"),
        ("{encoder.max_length: [64, 128]}", "'encoder.max_length' cannot be swept"),
        ("{candidates.pool_size: [8, 16]}", "'candidates.pool_size' cannot be swept"),
        ("{objective.lambda_q: [1, 1]}", "1.0 occurs twice"),
        ("{objective.lambda_q: []}", "at least 1 item"),
        ("{objective.lambda_q: [1, -2]}", "input should be greater than or equal to 0 (got -2.0) (at objective.lambda_q=-2)"),
        ("{training.epochs: [1, 1.5]}", "training.epochs: input should be a valid integer"),
    ],
)
def test_every_point_of_a_sweep_is_checked_before_it_starts(parameters: str, message: str) -> None:
    assert message in refused(f"sweep.parameters={parameters}")


def test_points_are_checked_together() -> None:
    grid = "sweep.parameters={objective.tau_min: [0.01, 1.0]}"
    assert "tau_start 0.5 lies below tau_min 1.0 (at objective.tau_min=1)" in refused(grid, "objective.tau_start=0.5")


@pytest.mark.parametrize("recipe", RECIPES)
def test_default_sweep_holds_what_the_recipe_reads(recipe: str) -> None:
    swept = load_config(None, [f"objective.recipe={recipe}"]).sweep.parameters
    expected = {
        "armor": {"objective.lambda_q", "objective.tau_min"},
        "dynamic": {"objective.tau_min"},
        "static_reg": {"objective.lambda_q"},
        "replug": {"objective.kl_temperature"},
        "uae": {"objective.tau_min", "objective.kl_temperature"},
        "armor_uae": set(DEFAULT_SWEEP),
    }
    assert swept.keys() == expected.get(recipe, set())
    assert all(swept[key] == DEFAULT_SWEEP[key] for key in swept)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("main", ["armor", "replug"])
def test_every_recipe_can_be_trained_beside_every_main_recipe(recipe: str, main: str) -> None:
    main_setting = "objective.lambda_q=2" if main == "armor" else "objective.kl_temperature=2"
    config = recipe_config(load_config(None, [f"objective.recipe={main}", main_setting]), recipe, seed=3)
    assert (config.objective.recipe, config.seed) == (recipe, 3)


def test_a_trial_changes_only_its_parameters() -> None:
    config = load_config(None, ["objective.preset=released", "training.lora.rank=4"])
    trial = with_overrides(config, {"objective.tau_min": 1e-05, "sweep.parameters": {}})
    assert trial.objective.tau_min == 1e-05
    assert trial.objective.model_copy(update={"tau_min": config.objective.tau_min}) == config.objective
    assert trial.training == config.training


# -- secrets ---------------------------------------------------------------------------------------------------------------------


def test_password_is_read_and_written_nowhere() -> None:
    config = load_config(None, [f"data.password={SECRET}", "data.format=teleqna"])
    assert config.data.password == SECRET
    assert pickle.loads(pickle.dumps(config)).data.password == SECRET  # workers need it
    for written in (repr(config), config.model_dump_json(), resolved_config(config), str(config.model_dump())):
        assert SECRET not in written
    assert SECRET not in refused(f"data.password=[{SECRET}]")


# -- the stored config -----------------------------------------------------------------------------------------------------------


def test_resolved_config_holds_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    config = load_config(None, ["data.path=data", "encoder.model=model", "generator.model=org/name"])
    stored = parse_yaml(resolved_config(config), "stored")
    assert stored["data"]["path"] == str(tmp_path / "data")
    assert stored["encoder"]["model"] == str(tmp_path / "model")
    assert stored["generator"]["model"] == "org/name"
    assert validate_config(stored).objective == config.objective


def test_what_was_trained_before_lexical_weight_existed_stays_valid() -> None:
    plain, lexical = (load_config(None, [f"objective.lexical_weight={weight}"]) for weight in (0, 0.5))
    assert "lexical_weight" not in training_identity(plain)["objective"]
    assert training_identity(lexical)["objective"]["lexical_weight"] == 0.5


@pytest.mark.parametrize(
    ("override", "needed"),
    [
        ("objective.lambda_q=1", False),
        ("objective.lexical_weight=0.5", True),
        ("sweep.parameters={objective.lexical_weight: [0, 0.5]}", True),
        ("evaluation.recipe_settings={infonce: {objective.lexical_weight: 0.5}}", True),
    ],
)
def test_bm25_is_built_for_whatever_trains_beside_it(override: str, needed: bool) -> None:
    assert needs_bm25(load_config(None, [override])) is needed


def test_a_recipe_may_have_settings_of_its_own() -> None:
    config = load_config(
        None,
        ["objective.recipe=armor_uae", "training.learning_rate=4e-5", "evaluation.recipe_settings={uae: {training.learning_rate: 1.0e-5}}"],
    )
    rates = {recipe: recipe_config(config, recipe, seed=0).training.learning_rate for recipe in ("armor", "uae")}
    assert rates == {"armor": 4e-5, "uae": 1e-5}
    assert recipe_config(config, "uae", 0, {"training.learning_rate": 3e-5}).training.learning_rate == 3e-5
    assert training_identity(recipe_config(config, "armor", 0)) == training_identity(
        recipe_config(load_config(None, ["objective.recipe=armor", "training.learning_rate=4e-5"]), "armor", 0)
    )
    unread = load_config(None, ["evaluation.recipe_settings={uae: {objective.lambda_q: 1}}"])
    with pytest.raises(ArmorError, match=r"objective\.lambda_q has no effect on recipe 'uae'"):
        recipe_config(unread, "uae", 0)
    with pytest.raises(ArmorError, match=r"'data\.name' cannot differ between recipes"):
        load_config(None, ["evaluation.recipe_settings={uae: {data.name: x}}"])
    # The training table is one for all: a recipe's own value would have no effect.
    with pytest.raises(ArmorError, match=r"'objective.length_normalised' cannot differ between recipes: what all of them train on"):
        load_config(None, ["evaluation.recipe_settings={armor: {objective.length_normalised: true}}"])


def test_the_main_recipe_is_fused_with_bm25_and_those_that_are_named() -> None:
    config = load_config(
        None,
        [
            "objective.recipe=armor_uae",
            "evaluation.recipes=[rag, armor, armor_uae]",
            "evaluation.fused=[armor]",
            "training.interpolate=[0, 1]",
        ],
    )
    fused = [row.method for row in adapted_methods(config) if row.is_fused]
    presets = ["armor", "armor/interpolated", "armor_uae", "armor_uae/interpolated"]
    assert fused == [*presets, "armor_uae/swept", "armor_uae/swept/interpolated"]
