"""Artifacts appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from armor_ray import atomic, workspace
from armor_ray.atomic import DRAFT, OLD
from armor_ray.errors import ArmorError
from armor_ray.stages.context import Plan
from armor_ray.workspace import Draft, Manifest, Workspace, read_json, read_npy, read_parquet

FORK = multiprocessing.get_context("fork")
SECRETS = ("s3://AKIA:secret@bucket/runs", "s3://bucket/runs?access_key=AKIA")


def publish(target: Workspace, content: str, name: str = "thing", files: int = 3, fingerprint: str = "f") -> Manifest:
    def write(draft: Draft) -> None:
        for i in range(files):
            (draft.path / f"part-{i}.txt").write_text(content)
        draft.rows["parts"] = files

    return target.publish(name, stage="embed", fingerprint=fingerprint, inputs={"passages": "p"}, config={"a": 1}, write=write)


def contents(target: Workspace, name: str = "thing") -> set[str]:
    return {path.read_text() for path in target.local(name).glob("part-*")}


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return Workspace(str(tmp_path / "space"))


@pytest.fixture(params=["folder", "file URI", "object store"])
def any_space(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    if request.param == "folder":
        return Workspace(str(tmp_path / "space"))
    if request.param == "file URI":
        return Workspace((tmp_path / "space").as_uri())
    return Workspace(object_store(tmp_path, monkeypatch))


def object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URI of a store in memory: no folders, no rename, no lock."""
    store = pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("memory", skip_instance_cache=True)))
    root = f"/{tmp_path.name}-{random.random()}"

    def from_uri(uri: str) -> tuple[pafs.FileSystem, str]:
        return (store, root) if uri.startswith("s3://") else pafs.FileSystem.from_uri(uri)

    shim = SimpleNamespace(**{name: getattr(pafs, name) for name in dir(pafs) if not name.startswith("_")})
    shim.FileSystem = SimpleNamespace(from_uri=from_uri)
    monkeypatch.setattr(workspace, "pafs", shim)
    monkeypatch.setenv("ARMOR_RAY_CACHE", str(tmp_path / "cache"))
    return "s3://bucket/space"


def test_an_address_opens_the_same_place_of_the_same_store() -> None:
    """What Ray Tune and Train get as storage path: a name behind the options would change their last value."""
    opened = Workspace("s3://bucket/runs?endpoint_override=localhost:9000&region=us-east-1&scheme=http")
    store, path = pafs.FileSystem.from_uri(opened.address(".work/train"))
    assert (store, path) == (opened._fs, "bucket/runs/.work/train") == (opened._fs, opened.path(".work/train"))


def test_an_address_of_a_folder_is_its_path(tmp_path: Path) -> None:
    assert Workspace(tmp_path.as_uri()).address("a/b") == Workspace(str(tmp_path)).address("a/b") == f"{tmp_path}/a/b"


# -- publishing ------------------------------------------------------------------------------------------------------------------


def test_publishes_and_reads_back(any_space: Workspace) -> None:
    written = publish(any_space, "new")
    assert any_space.manifest("thing") == written
    assert written.files == {"part-0.txt": 3, "part-1.txt": 3, "part-2.txt": 3}
    assert written.rows == {"parts": 3}
    assert contents(any_space) == {"new"}
    assert any_space.names() == ["thing"]


def test_republishing_leaves_nothing_of_the_old_artifact(any_space: Workspace) -> None:
    publish(any_space, "old", files=5)
    assert len(list(any_space.local("thing").glob("part-*"))) == 5
    # The same fingerprint, as after --force: a worker's local copy must not serve the old files.
    publish(any_space, "new", files=2)
    assert contents(any_space) == {"new"}
    assert len(list(any_space.local("thing").glob("part-*"))) == 2
    assert any_space.files("thing") == ["thing/manifest.json", "thing/part-0.txt", "thing/part-1.txt"]


def test_failed_write_keeps_the_old_artifact_and_no_draft(any_space: Workspace) -> None:
    publish(any_space, "old")

    def fail(draft: Draft) -> None:
        (draft.path / "part-0.txt").write_text("half")
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        any_space.publish("thing", stage="embed", fingerprint="g", inputs={}, config={}, write=fail)
    assert contents(any_space) == {"old"}
    assert any_space.names() == ["thing"]
    if any_space.is_local:
        assert [path.name for path in Path(any_space.path("")).iterdir()] == ["thing"]


def test_object_store_publishes_its_manifest_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Workspace(object_store(tmp_path, monkeypatch))
    publish(remote, "old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Workspace, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publish(remote, "new")
    # Cut off just before the manifest: no artifact, never a mixture.
    assert remote.manifest("thing") is None


@pytest.mark.parametrize("kind", ["errno", "no errno"])
def test_full_disk_is_one_line_and_keeps_the_old_artifact(space: Workspace, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    publish(space, "old")

    def fill(draft: Draft) -> None:
        (draft.path / "part-0.txt").write_text("half")
        if kind == "errno":
            raise OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(atomic.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        raise RuntimeError("FAISS: write error")

    with pytest.raises(ArmorError, match="No space left on device") as caught:
        space.publish("thing", stage="embed", fingerprint="g", inputs={}, config={}, write=fill)
    assert "make room" in str(caught.value)
    assert contents(space) == {"old"}
    assert [path.name for path in Path(space.uri).iterdir()] == ["thing"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("library", ["numpy", "parquet", "faiss", "safetensors"])
def test_really_full_disk(tmp_path: Path, library: str) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mount], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted")
    try:
        small = Workspace(str(mount / "space"))
        publish(small, "old")
        write = partial(write_large, library)
        with pytest.raises(ArmorError, match="No space left on device"):
            small.publish("thing", stage="embed", fingerprint="g", inputs={}, config={}, write=write)
        with pytest.raises(ArmorError, match="No space left on device"):
            small.write_bytes("block", bytes(4 << 20))
        assert contents(small) == {"old"}
        assert sorted(path.name for path in Path(small.uri).iterdir()) == ["thing"]
    finally:
        subprocess.run(["umount", mount], check=True)


def write_large(library: str, draft: Draft) -> None:
    folder = draft.path
    values = np.random.default_rng(0).random((8192, 128), np.float32)
    if library == "numpy":
        np.save(folder / "x.npy", values)
    elif library == "parquet":
        pq.write_table(pa.table({"x": values.ravel()}), folder / "x.parquet")
    elif library == "faiss":
        import faiss

        index = faiss.IndexFlatIP(128)
        index.add(values)
        faiss.write_index(index, str(folder / "x.faiss"))
    else:
        from safetensors.numpy import save_file

        save_file({"x": values}, folder / "x.safetensors")


def test_unwritable_workspace_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArmorError, match="cannot write the artifact"):
        publish(Workspace(str(tmp_path / "file" / "space")), "new")


# -- kills -----------------------------------------------------------------------------------------------------------------------


def republish_forever(uri: str, exchange: bool, ready: Event) -> None:
    if not exchange:
        atomic._exchange = lambda *_: False
    space, number = Workspace(uri), 0
    while True:
        number += 1
        publish(space, str(number), fingerprint=str(number))
        ready.set()


@pytest.mark.parametrize("exchange", [True, False])
def test_sigkill_while_publishing_leaves_old_or_new(space: Workspace, exchange: bool) -> None:
    """Kills a process that republishes without pause, at random moments; also where folders cannot be exchanged in one step."""
    rng = random.Random(0)
    for _ in range(8):
        ready = FORK.Event()
        process = FORK.Process(target=republish_forever, args=(space.uri, exchange, ready))
        process.start()
        assert ready.wait(20)
        time.sleep(rng.uniform(0, 0.03))
        process.kill()
        process.join()
        if not exchange:  # the next run puts back what lies aside
            with space.lock():
                pass
        found = contents(space)
        assert found == {space.require("thing").fingerprint}, "missing, or files of two versions"
    with space.lock():
        leftovers = [path.name for path in Path(space.uri).iterdir()]
    assert sorted(leftovers) == [".lock", "thing"]


def test_readers_never_miss_the_artifact_while_it_is_replaced(space: Workspace) -> None:
    publish(space, "0")
    stop = threading.Event()

    def republish() -> None:
        while not stop.is_set():
            publish(space, "0")

    thread = threading.Thread(target=republish)
    thread.start()
    try:
        assert all(space.manifest("thing") is not None for _ in range(2000))
    finally:
        stop.set()
        thread.join()


def test_concurrent_publishers_leave_one_whole_artifact(space: Workspace) -> None:
    threads = [threading.Thread(target=publish, args=(space, str(i))) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(contents(space)) == 1
    assert [path.name for path in Path(space.uri).iterdir()] == ["thing"]


def test_next_run_clears_what_the_dead_left_and_spares_the_living(space: Workspace) -> None:
    publish(space, "old", name="retrievers/a")
    root = Path(space.uri)
    gone = dead_pid()
    for name in (f"{DRAFT}thing-{gone}-x1", f"retrievers/{DRAFT}a-{gone}-x2", f"{DRAFT}thing-{os.getpid()}-x3"):
        (root / name).mkdir()
        (root / name / "file").write_text("half")
    (root / f".part-block-{gone}-x4").write_text("half")
    set_aside = root / "retrievers" / f"{OLD}b-c-{gone}-x5"
    (root / "retrievers" / "a").rename(set_aside)
    with space.lock():
        assert sorted(path.name for path in root.iterdir()) == [f"{DRAFT}thing-{os.getpid()}-x3", ".lock", "retrievers"]
        assert [path.name for path in (root / "retrievers").iterdir()] == ["b-c"]


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# -- damaged artifacts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"name": 1}', b"\xff\xfe", b""])
def test_corrupt_manifest(space: Workspace, raw: bytes) -> None:
    publish(space, "x")
    space.write_bytes("thing/manifest.json", raw)
    with pytest.raises(ArmorError, match=r"thing/manifest.json: not a readable manifest; delete"):
        space.manifest("thing")


@pytest.mark.parametrize(
    ("damage", "message"), [(lambda p: p.unlink(), "is missing"), (lambda p: p.write_text("x"), "has 1 bytes instead of 3")]
)
def test_missing_or_truncated_file(space: Workspace, damage: Callable[[Path], object], message: str) -> None:
    publish(space, "abc")
    damage(space.local("thing") / "part-1.txt")
    with pytest.raises(ArmorError, match=rf"part-1.txt: artifact file {message}.*; rerun with --force embed"):
        space.local("thing")


def test_missing_artifact(space: Workspace) -> None:
    with pytest.raises(ArmorError, match="no artifact 'thing'"):
        space.local("thing")


def spoil(path: Path) -> None:
    """Other bytes, same length: what sizes cannot show."""
    raw = bytearray(path.read_bytes())
    raw[: len(raw) // 2] = bytes(len(raw) // 2)
    raw[-8:] = b"\0" * 8
    path.write_bytes(raw)


@pytest.mark.parametrize("damage", [spoil, lambda p: p.write_bytes(p.read_bytes()[:40]), lambda p: p.write_bytes(b"")])
def test_unreadable_files_name_the_stage_to_rerun(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    paths = [tmp_path / "x.parquet", tmp_path / "x.npy", tmp_path / "x.json"]
    pq.write_table(pa.table({"x": list(range(1000))}), paths[0])
    np.save(paths[1], np.zeros((10, 10)))
    paths[2].write_text(json.dumps({"encoder": "e" * 60}))
    for path, read in zip(paths, (read_parquet, read_npy, read_json), strict=True):
        damage(path)
        with pytest.raises(ArmorError, match=rf"{path.name}: not a readable .* file .*; rerun with --force embed"):
            read(path, "embed")


def test_incomplete_download_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Workspace(object_store(tmp_path, monkeypatch))
    publish(remote, "abc")
    remote.write_bytes("thing/part-0.txt", b"a")
    with pytest.raises(ArmorError, match="has 1 bytes instead of 3"):
        remote.local("thing")
    remote.write_bytes("thing/part-0.txt", b"abc")
    assert contents(remote) == {"abc"}


# -- opening ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", SECRETS)
def test_uri_with_a_secret_is_refused_without_repeating_it(uri: str) -> None:
    with pytest.raises(ArmorError, match="must not hold a key") as caught:
        Workspace(uri)
    assert "AKIA" not in str(caught.value)


def test_unknown_scheme() -> None:
    with pytest.raises(ArmorError, match=r"ftp://x: cannot open the workspace .*; use a folder or"):
        Workspace("ftp://x")


def test_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Workspace("~/runs").uri == str(tmp_path / "runs")


# -- the lock --------------------------------------------------------------------------------------------------------------------


def hold(uri: str, ready: Event) -> None:
    with Workspace(uri).lock():
        ready.set()
        time.sleep(60)


@pytest.fixture
def holder(space: Workspace) -> Iterator[BaseProcess]:
    ready = FORK.Event()
    process = FORK.Process(target=hold, args=(space.uri, ready))
    process.start()
    assert ready.wait(20)
    yield process
    process.kill()
    process.join()


def test_second_run_is_refused_and_told_who_runs(space: Workspace, holder: BaseProcess) -> None:
    with pytest.raises(ArmorError, match=rf"another run holds this workspace \(pid {holder.pid} on .* since 20"), space.lock():
        pass


def test_lock_of_a_killed_run_is_taken_over(space: Workspace, holder: BaseProcess) -> None:
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with space.lock():
        pass


def test_object_store_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Workspace(object_store(tmp_path, monkeypatch))
    with (
        remote.lock(),
        pytest.raises(ArmorError, match=rf"pid {os.getpid()} on .*; if that run is dead, delete .*\.lock"),
        Workspace(remote.uri).lock(),
    ):
        pass
    assert remote.read_bytes(".lock") is None
    remote.write_bytes(".lock", json.dumps({"pid": dead_pid(), "host": os.uname().nodename, "since": "then"}).encode())
    with remote.lock():
        pass  # its owner is dead, and was of this machine
    remote.write_bytes(".lock", json.dumps({"pid": dead_pid(), "host": "elsewhere", "since": "then"}).encode())
    with pytest.raises(ArmorError, match="on elsewhere since then"), remote.lock():
        pass


# -- staleness -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (Plan("thing", "embed", {"a": 1}, {"passages": "p"}), None),
        (Plan("thing", "embed", {"a": 1}, {"passages": "q"}), "stale: passages changed"),
        (Plan("thing", "embed", {"a": 2}, {"passages": "p"}), "stale: config a changed"),
        (Plan("thing", "embed", {"a": 1}, {"passages": "p", "index": "i"}), "stale: index changed"),
        (Plan("thing", "embed", {"a": {"b": 1}}, {}), "stale: config a, passages changed"),
        (Plan("other", "embed", {"a": 1}, {"passages": "p"}), "missing"),
    ],
)
def test_plan_says_what_changed(space: Workspace, plan: Plan, problem: str | None) -> None:
    publish(space, "x", fingerprint=Plan("thing", "embed", {"a": 1}, {"passages": "p"}).fingerprint)
    assert plan.difference(space.manifest(plan.name)) == problem
