"""CIFAR-10 and CIFAR-100: colour photographs of 32x32 pixels, 50,000 and 10,000 (Krizhevsky, 2009)."""

import json
import os
import tarfile
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tasks.data.resolve import Door, MissingData, cache_dir, data_roots

Split = Literal["train", "test"]
_PIXELS = 3 * 32 * 32


class CIFAR(Door):
    """The record files of the "binary version": labels, then red, green and blue pixels of one image after the other.

    Where a record file is missing, the same images as a PNG file beside it will do (`<name>.png`, one image a row,
    colours last, with `<name>_labels.json`); otherwise the public archive is downloaded. Both are turned into record
    files in the user cache, once, and have to give the same bytes.

    Args:
        files: record file -> SHA-256; those whose name starts with "test" are the test set.
        archive: URL of the tar file with all of them.
        archive_sha256: its checksum.
        label_bytes: bytes of labels before each image, of which the last is the class.
        name, size_mb, licence, source: as `Door`.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        *,
        archive: str,
        archive_sha256: str,
        label_bytes: int,
        name: str,
        size_mb: float,
        licence: str,
        source: str = "",
    ) -> None:
        super().__init__(files, name=name, size_mb=size_mb, licence=licence, source=source)
        self.archive, self.archive_sha256, self.label_bytes = archive, archive_sha256, label_bytes

    def images(self, split: Split) -> Tensor:
        """Red, green and blue as bytes, uint8 [n, 3, 32, 32], in the order of the files; raises `MissingData`."""
        return torch.from_numpy(self._records(split)[:, self.label_bytes :].reshape(-1, 3, 32, 32).copy())

    def labels(self, split: Split) -> Tensor:
        """Classes, int64 [n]; raises `MissingData`."""
        return torch.from_numpy(self._records(split)[:, self.label_bytes - 1].astype(np.int64))

    def path(self, file: str) -> Path:
        """Verified local path of a record file, made of a PNG file or downloaded if need be; raises `MissingData`."""
        try:
            return super().path(file)
        except MissingData as missing:
            if not self._from_png(file):
                self._from_archive(missing)
        return super().path(file)

    def _records(self, split: Split) -> np.ndarray:
        """Bytes [n, label_bytes + 3072]."""
        files = [file for file in self.files if Path(file).name.startswith("test") == (split == "test")]
        return np.concatenate(
            [np.fromfile(self.path(file), np.uint8).reshape(-1, self.label_bytes + _PIXELS) for file in files]
        )

    def _from_png(self, file: str) -> bool:
        """Whether a PNG file has given the record file."""
        from PIL import Image

        for root in data_roots():
            picture = (root / file).with_suffix(".png")
            labels = picture.with_name(f"{picture.stem}_labels.json")
            if not (picture.is_file() and labels.is_file()):
                continue
            with Image.open(picture) as opened:
                pixels = np.asarray(opened.convert("RGB")).reshape(-1, 32, 32, 3)
            classes = np.array(json.loads(labels.read_text()), np.uint8)
            flat = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
            records = np.concatenate([classes[:, None], flat], 1).tobytes()
            if sha256(records).hexdigest() == self.files[file]:
                _write(cache_dir() / "data" / file, records)
                return True
        return False

    def _from_archive(self, missing: MissingData) -> None:
        """Download the archive and take all record files out of it."""
        if os.environ.get("REPRISE_OFFLINE"):
            raise missing
        import pooch

        folder = cache_dir() / "data"
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {Path(file).name: file for file in self.files}
        with tempfile.TemporaryDirectory(dir=folder) as spare:
            try:
                known = f"sha256:{self.archive_sha256}"
                path = pooch.retrieve(self.archive, known_hash=known, fname="archive", path=spare)
            except Exception as error:  # whatever the network does, the user's way out is the same
                first_line = (str(error).splitlines() or [type(error).__name__])[0]
                raise MissingData(f"{missing}; download failed: {first_line[:120]}") from error
            with tarfile.open(path) as archive:
                for member in archive:
                    content = archive.extractfile(member)
                    if content and (file := wanted.get(Path(member.name).name)):
                        _write(folder / file, content.read())


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, spare = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(spare, path)
