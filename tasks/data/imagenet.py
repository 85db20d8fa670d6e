"""ImageNet-1k (ILSVRC 2012) as folders of JPEG files, one folder a class."""

from pathlib import Path

from tasks.data.resolve import Door, MissingData, data_roots


class ImageFolders(Door):
    """`<data root>/<folder>/{train,val}/<class>/<image>`; images are too many to be checked one by one, so their
    numbers are.

    Args:
        folder: below a data root.
        train, val: number of images of each split.
        classes: number of classes.
        files: none.
        name, size_mb, licence, source: as `Door`.
    """

    def __init__(
        self,
        folder: str,
        train: int,
        val: int,
        classes: int,
        *,
        name: str,
        size_mb: float,
        licence: str,
        source: str = "",
        files: dict[str, str] | None = None,
    ) -> None:
        super().__init__(files or {}, name=name, size_mb=size_mb, licence=licence, source=source)
        self.folder, self.sizes, self.classes = folder, {"train": train, "val": val}, classes

    def fetch(self) -> None:
        """Check that both splits are there; raises `MissingData`."""
        for split in self.sizes:
            self.listing(split)

    def listing(self, split: str) -> tuple[list[Path], list[int]]:
        """Paths and labels of a split, classes in the order of their folders' names.

        Raises:
            MissingData: not here, or not all of it.
        """
        for root in data_roots():
            if not (place := root / self.folder / split).is_dir():
                continue
            folders = sorted(path for path in place.iterdir() if path.is_dir())
            found = [
                (path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())
            ]
            if (len(found), len(folders)) == (self.sizes[split], self.classes):
                return [path for path, _ in found], [label for _, label in found]
            raise MissingData(
                f"{self.name}: {place} holds {len(found)} images in {len(folders)} classes, not {self.sizes[split]} "
                f"in {self.classes}"
            )
        raise MissingData(
            f"{self.name} is missing: {self.folder}/{split} ({self.size_mb:g} MB in all, {self.licence}); point "
            f"REPRISE_DATA at a folder that holds it (source: {self.source})"
        )
