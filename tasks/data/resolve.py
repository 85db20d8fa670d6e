"""Finding the files of a dataset: `$REPRISE_DATA`, then the user cache, then the public source.

A file counts as found when its SHA-256 is the one its YAML states. Verified files are remembered by path,
size and modification time, so that a file is read in full once and costs one `stat` afterwards.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

_verified: dict[tuple[str, int, int], str] = {}


class MissingData(FileNotFoundError):
    """A dataset or model is not on this machine; the message is one line: what, how large, how to get it.

    The command in it holds the placeholder `<paper>`, which the harness replaces by the paper's name.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


def cache_dir() -> Path:
    """`$REPRISE_CACHE`, else the user's cache folder for `reprise` (not created here)."""
    if path := os.environ.get("REPRISE_CACHE"):
        return Path(path).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("reprise"))


def data_roots() -> list[Path]:
    """Folders searched for data files, in order: `$REPRISE_DATA` if set, then `<cache>/data`."""
    roots = [Path(path).expanduser() for path in [os.environ.get("REPRISE_DATA")] if path]
    return [*roots, cache_dir() / "data"]


def sha256(path: Path) -> str:
    """SHA-256 of a file (hexadecimal), remembered by real path, size and modification time.

    Raises:
        OSError: the file cannot be read.
    """
    path = Path(os.path.realpath(path))
    stat = path.stat()
    key = (str(path), stat.st_size, stat.st_mtime_ns)
    if key in _verified:
        return _verified[key]
    note = cache_dir() / "checksums" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(
        OSError, ValueError, KeyError, TypeError
    ):  # no note, or a torn one: compute again
        known = json.loads(note.read_text())
        if (known["path"], known["size"], known["mtime_ns"]) == key:
            _verified[key] = known["sha256"]
            return _verified[key]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _verified[key] = digest
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
        write_atomic(note, json.dumps({"path": key[0], "size": key[1], "mtime_ns": key[2], "sha256": digest}))
    return digest


def write_atomic(path: Path, text: str) -> None:
    """Write a small text file so that readers see the old or the new one, never a part.

    Raises:
        OSError: the folder cannot be created or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


class Door:
    """A dataset known by its files. Subclasses add the loaders.

    Args:
        files: path below a data root -> SHA-256; part of a run's config, and so of its id.
        name: what a message calls the dataset.
        size_mb: size of all files in MB.
        licence: licence or terms in one phrase.
        urls: path -> public URL of the same bytes; "archive.zip#member" names a file in an archive.
        source: where the files come from, in words.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        *,
        name: str,
        size_mb: float,
        licence: str,
        urls: Mapping[str, str] | None = None,
        source: str = "",
    ) -> None:
        self.files = dict(files)
        self.name = name
        self.size_mb = size_mb
        self.licence = licence
        self.urls = dict(urls or {})
        self.source = source
        if unknown := set(self.urls) - set(self.files):
            raise ValueError(f"{name}: urls for files without a checksum: {', '.join(sorted(unknown))}")

    def path(self, file: str) -> Path:
        """Verified local path of one of `files`, downloaded if need be and possible.

        Raises:
            KeyError: `file` is not one of `files`.
            MissingData: it is nowhere, or only with another checksum, and cannot be downloaded.
        """
        wanted = self.files[file]
        wrong = []
        for root in data_roots():
            path = root / file
            if path.is_file():
                if sha256(path) == wanted:
                    return path
                wrong.append(str(path))
        reason = f"; {' and '.join(wrong)} has another checksum" if wrong else ""
        if file in self.urls and not os.environ.get("REPRISE_OFFLINE"):
            try:
                return self._download(file)
            except Exception as error:  # whatever the network does, the user's way out is the same
                first_line = (str(error).splitlines() or [type(error).__name__])[0]
                reason += f"; download failed: {first_line[:120]}"
        origin = f" (source: {self.source})" if self.source else ""
        raise MissingData(
            f"{self.name} is missing: {file} ({self.size_mb:g} MB in all, {self.licence}){reason}; "
            f"point REPRISE_DATA at a folder that holds it, or run: make fetch-<paper>{origin}"
        )

    def paths(self) -> dict[str, Path]:
        """Verified local paths of all files; raises `MissingData` as `path` does."""
        return {file: self.path(file) for file in self.files}

    def fetch(self) -> None:
        """Make every file available locally (what `make fetch-<paper>` calls); raises `MissingData`."""
        self.paths()

    def _download(self, file: str) -> Path:
        import pooch

        target = cache_dir() / "data" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        url, _, member = self.urls[file].partition("#")
        known = f"sha256:{self.files[file]}"
        if not member:
            # pooch writes to a temporary name, checks it and renames: two processes at once do no harm.
            return Path(pooch.retrieve(url, known_hash=known, fname=target.name, path=target.parent))
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            pooch.retrieve(url, known_hash=None, fname="archive.zip", path=folder)
            with zipfile.ZipFile(Path(folder) / "archive.zip") as archive:
                extracted = Path(archive.extract(member, folder))
            if sha256(extracted) != self.files[file]:
                raise ValueError(f"{member} in {url} has another checksum")
            os.replace(extracted, target)
        return target
