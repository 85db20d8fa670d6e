"""CIFAR: its files in every form, subsets, label noise, normalization; training a residual network on it."""

import functools
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from tasks.data import cifar, resolve
from tasks.data.cifar import CIFAR
from tasks.data.resolve import MissingData
from tasks.training.classification import Classification
from tasks.training.examples import CropFlip, Normalize
from tasks.training.loop import Loop
from tasks.training.models import MLP, ResNet
from tests.tasks.training_cases import DiskRun

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), np.uint8)
COARSE, FINE = np.arange(6, dtype=np.uint8) // 2, np.array([3, 1, 4, 1, 5, 9], np.uint8)


def records(rows: slice, label_bytes: int) -> bytes:
    labels = np.stack([COARSE, FINE], 1)[rows, 2 - label_bytes :]
    return np.concatenate([labels, PIXELS[rows].reshape(-1, 3072)[: len(labels)]], 1).tobytes()


def door(label_bytes: int = 1, archive: str = "http://127.0.0.1:9/a.tar.gz", sha: str = "00") -> CIFAR:
    contents = {
        "small/batch_1.bin": slice(0, 3),
        "small/batch_2.bin": slice(3, 5),
        "small/test.bin": slice(5, 6),
    }
    files = {f: hashlib.sha256(records(rows, label_bytes)).hexdigest() for f, rows in contents.items()}
    return CIFAR(
        files,
        archive=archive,
        archive_sha256=sha,
        label_bytes=label_bytes,
        name="small",
        size_mb=1,
        licence="none",
    )


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, with an empty cache beside it."""
    monkeypatch.setenv("REPRISE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REPRISE_OFFLINE", "1")
    monkeypatch.setattr(resolve, "_verified", {})
    (tmp_path / "data/small").mkdir(parents=True)
    return tmp_path / "data/small"


def write_records(folder: Path, label_bytes: int = 1) -> None:
    for name, rows in [("batch_1", slice(0, 3)), ("batch_2", slice(3, 5)), ("test", slice(5, 6))]:
        (folder / f"{name}.bin").write_bytes(records(rows, label_bytes))


def check(data: CIFAR) -> None:
    assert torch.equal(data.images("train"), torch.from_numpy(PIXELS[:5]))
    assert torch.equal(data.images("test"), torch.from_numpy(PIXELS[5:]))
    assert data.labels("train").tolist() == [3, 1, 4, 1, 5]
    assert data.labels("test").tolist() == [9]


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_record_files(places: Path, label_bytes: int) -> None:
    write_records(places, label_bytes)
    check(door(label_bytes))


def test_png_files_become_record_files(places: Path) -> None:
    for name, rows in [("batch_1", slice(0, 3)), ("batch_2", slice(3, 5)), ("test", slice(5, 6))]:
        pixels = PIXELS[rows].transpose(0, 2, 3, 1).reshape(-1, 1024, 3)
        Image.fromarray(pixels).save(places / f"{name}.png")
        (places / f"{name}_labels.json").write_text(json.dumps(FINE[rows].tolist()))
    check(door())
    cached = places.parents[1] / "cache/data/small/batch_1.bin"
    assert cached.read_bytes() == records(slice(0, 3), 1)
    for path in places.iterdir():
        path.unlink()
    check(door())  # the pictures are not looked at again


def test_a_png_file_with_other_images_is_passed_over(places: Path) -> None:
    write_records(places)
    (places / "test.bin").unlink()
    Image.fromarray(np.zeros((1, 1024, 3), np.uint8)).save(places / "test.png")
    (places / "test_labels.json").write_text("[9]")
    with pytest.raises(MissingData, match=r"test\.bin"):
        door().images("test")


def test_the_archive_gives_all_record_files(
    places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pooch

    inside = tmp_path / "inside"
    inside.mkdir()
    write_records(inside)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(inside, "small-binary")
    content = (tmp_path / "a.tar.gz").read_bytes()
    data = door(sha=hashlib.sha256(content).hexdigest())
    with pytest.raises(MissingData, match="small is missing"):
        data.fetch()  # REPRISE_OFFLINE
    monkeypatch.delenv("REPRISE_OFFLINE")
    with pytest.raises(MissingData, match="download failed"):
        data.fetch()
    downloads = []

    def retrieve(url: str, known_hash: str, fname: str, path: str) -> str:
        downloads.append((url, known_hash))
        (Path(path) / fname).write_bytes(content)
        return str(Path(path) / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    data.fetch()
    assert downloads == [(data.archive, f"sha256:{hashlib.sha256(content).hexdigest()}")]
    check(data)
    assert [path.name for path in (tmp_path / "cache/data").iterdir()] == ["small"]


def real(name: str) -> CIFAR:
    node = yaml.safe_load((Path(cifar.__file__).parents[2] / f"conf/data/{name}.yaml").read_text())
    return CIFAR(**{key: value for key, value in node.items() if not key.startswith("_")})


def test_the_options_agree() -> None:
    """A run on a part of CIFAR-10 names the same files as one on all of it."""
    assert real("cifar10_10k").files.items() <= real("cifar10").files.items()


class Pictures:
    """Bytes in four classes, 40 to train on and 20 to test on; the class is the brightest quarter."""

    def labels(self, split: str) -> torch.Tensor:
        return torch.arange(40 if split == "train" else 20) % 4

    def images(self, split: str) -> torch.Tensor:
        y = self.labels(split)
        generator = torch.Generator().manual_seed(len(y))
        x = torch.randint(0, 100, (len(y), 3, 8, 8), generator=generator, dtype=torch.uint8)
        for i, label in enumerate(y.tolist()):
            x[i, :, 4 * (label // 2) :][:, :4, 4 * (label % 2) :][:, :, :4] += 100
        return x


def task(**settings: Any) -> Classification:
    settings = {"loop": Loop(batch_size=10, steps=8, evaluations=1)} | settings
    return Classification(Pictures(), functools.partial(MLP, hidden=[16]), **settings)


def test_subsets_are_the_seeds() -> None:
    parts = [task(train_size=12, test_size=7).split(DiskRun(seed)) for seed in (0, 0, 1)]
    (x, y), (test_x, test_y) = parts[0]
    assert (x.shape, y.shape, test_x.shape, test_y.shape) == ((12, 3, 8, 8), (12,), (7, 3, 8, 8), (7,))
    assert torch.equal(x, parts[1][0][0])
    assert not torch.equal(x, parts[2][0][0])
    whole = [image.tolist() for image in Pictures().images("train")]
    places = [whole.index(image.tolist()) for image in x]
    assert len(set(places)) == 12
    assert [place % 4 for place in places] == y.tolist()
    for bad in ({"train_size": 41}, {"test_size": 0}):
        with pytest.raises(ValueError, match="_size must be from 1"):
            task(**bad).split(DiskRun())


def test_label_noise() -> None:
    clean, noisy = (task(label_noise=noise).split(DiskRun()) for noise in (0.0, 0.5))
    changed = clean[0][1] != noisy[0][1]
    assert 5 <= changed.sum() <= 20  # of 20 drawn anew, a quarter are drawn as they were
    assert torch.equal(clean[0][0], noisy[0][0])
    assert torch.equal(clean[1][1], noisy[1][1])
    same, other = (task(label_noise=0.5).split(DiskRun(seed))[0][1] for seed in (0, 1))
    assert torch.equal(same, noisy[0][1])
    assert not torch.equal(other, same)
    everything = [task(label_noise=1.0).split(DiskRun(seed))[0][1] for seed in range(50)]
    shares = torch.cat(everything).bincount(minlength=4) / 2000
    assert shares.sub(0.25).abs().max() < 0.04
    with pytest.raises(ValueError, match="label_noise"):
        task(label_noise=1.1)


def test_bytes_become_numbers_after_the_augmentation() -> None:
    """Padding is black, as the papers have it, not grey."""
    seen: list[torch.Tensor] = []

    class Looking(MLP):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            seen.append(inputs)
            return super().forward(inputs)

    settings: dict[str, Any] = {
        "augmentation": CropFlip(pad=4),
        "normalize": Normalize([0.5] * 3, [0.25] * 3),
    }
    Classification(Pictures(), Looking, Loop(batch_size=40, steps=1), **settings).evaluate(
        functools.partial(torch.optim.SGD, lr=0.1), DiskRun()
    )
    tested = (Pictures().images("test").float() / 255 - 0.5) / 0.25
    assert torch.allclose(seen[0], tested)
    assert {images.dtype for images in seen} == {torch.float32}
    assert seen[1].min() == -2.0  # some padding is in sight
    assert [len(images) for images in seen] == [
        20,
        40,
        20,
        40,
    ]  # test, a step, test, training images as they are


def test_training_learns() -> None:
    run = DiskRun()
    task(loop=Loop(batch_size=10, steps=60, evaluations=1)).evaluate(
        functools.partial(torch.optim.SGD, lr=0.1), run
    )
    assert run.summaries["test_accuracy"] == 1.0


@pytest.mark.slow
def test_resnet_20_on_cifar_10(require_data: Any) -> None:
    """The paper's network at its batch size on real images; the loss falls."""
    require_data("cifar10")
    data = real("cifar10_10k")
    assert data.labels("train").bincount().tolist() == [
        1005,
        974,
        1032,
        1016,
        999,
        937,
        1030,
        1001,
        1025,
        981,
    ]
    assert data.labels("test").bincount().tolist() == [1000] * 10
    run = DiskRun()
    normalize = Normalize([0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616])
    Classification(
        data,
        functools.partial(ResNet, depth=20),
        Loop(batch_size=128, steps=20, points=20, evaluations=1),
        train_size=512,
        test_size=100,
        augmentation=CropFlip(),
        normalize=normalize,
    ).evaluate(functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), run)
    losses = [line["loss"] for line in run.metrics if "loss" in line]
    assert len(losses) == 20
    assert sum(losses[-5:]) < sum(losses[:5])
    assert run.summaries["parameters"] == 269722
