"""The black-box attack: its loss by hand, its rows, and that an image does not depend on the others."""

from functools import partial

import pytest
import torch
from torch import nn

from methods.zeroth_order.radazo import RAdaZO
from tasks.data.mnist import MNIST
from tasks.training import mnist_cnn
from tasks.zeroth_order.attack import MnistAttack, TargetedLoss
from tests.fake_run import FakeRun

FILES = {
    "mnist/MNIST/raw/train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "mnist/MNIST/raw/train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "mnist/MNIST/raw/t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "mnist/MNIST/raw/t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


class Brightness(nn.Module):
    """Class 0 gets the sum of the pixels as its log-probability, class 1 gets 1, all others -10."""

    def forward(self, images):
        out = torch.full((len(images), 10), -10.0)
        out[:, 0] = images.flatten(1).sum(1)
        out[:, 1] = 1.0
        return out


def test_loss_by_hand():
    image = torch.tensor([[[0.5, 0.9], [0.0, 0.1]]])
    loss = TargetedLoss(Brightness(), image, target=0, limit=0.2)
    points = torch.tensor([[0.0, 0.0, 0.0, 0.0], [5.0, 5.0, -5.0, 0.1], [-0.1, -0.1, 0.1, 0.1]])
    torch.testing.assert_close(
        loss.attacked(points)[:, 0].flatten(1),
        torch.tensor([[0.5, 0.9, 0.0, 0.1], [0.7, 1.0, 0.0, 0.2], [0.4, 0.8, 0.1, 0.2]]),
    )
    torch.testing.assert_close(loss(points), 1 - torch.tensor([1.5, 1.9, 1.5]))
    free = TargetedLoss(Brightness(), image, target=1, limit=None)
    torch.testing.assert_close(free(points), torch.tensor([1.5, 1.0 + 1.0 + 0.0 + 0.2, 1.5]) - 1)


@pytest.fixture
def data(require_data):
    require_data("mnist/MNIST/raw")
    return MNIST(FILES, name="MNIST", size_mb=11.6, licence="CC BY-SA 3.0")


def test_mnist(data):
    images, labels = data.images("test"), data.labels("test")
    assert images.shape == (10000, 1, 28, 28)
    assert 0 <= images.min() < images.max() <= 1
    assert labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    train = data.images("train")
    assert len(train) == len(data.labels("train")) == 60000
    assert train.mean().item() == pytest.approx(0.13066, abs=1e-5)


@pytest.fixture
def node(data):
    """A small classifier, trained for seconds."""
    small = {
        "width": 4,
        "epochs": 1,
        "train_size": 3000,
        "batch_size": 50,
        "lr": 1.0,
        "decay": 0.7,
        "seed": 0,
    }
    return {"_target_": "tasks.training.mnist_cnn.build", "_artifact_": True, "data": data, **small}


def attacked(data, node, images, run, steps=25):
    method = partial(RAdaZO, lr=0.05, n_samples=5, mu=0.5, direction="gaussian")
    MnistAttack(data, node, images=images, steps=steps, limit=0.4).evaluate(method, run)
    return run


def test_attack(data, node):
    run = FakeRun()
    table = attacked(data, node, 3, run).tables["image"]
    folder = run.artifact(node)
    assert run.summaries["test_accuracy"] == mnist_cnn.accuracy(folder) > 0.6
    assert (table["target"] == (table["label"] + 1) % 10).all()
    assert (table["last_loss"] < table["first_loss"]).all()
    done = table["steps_to_success"].notna()
    assert (table["last_loss"][done] <= 0).all()
    assert (table["last_loss"][~done] > 0).all()
    assert run.summaries["success_rate"] == run.curve["success_rate"].iloc[-1] == done.mean()
    model, labels = mnist_cnn.load(folder), data.labels("test")
    clean = model(data.images("test")[table["index"].tolist()]).argmax(-1)
    assert clean.tolist() == labels[table["index"].tolist()].tolist() == table["label"].tolist()

    alone = FakeRun()
    alone.artifact = run.artifact
    first = attacked(data, node, 1, alone).tables["image"]
    assert first.iloc[0].equals(table.iloc[0])

    stopped = FakeRun()
    stopped.artifact, stopped.stop_after = run.artifact, 2
    with pytest.raises(KeyboardInterrupt):
        attacked(data, node, 3, stopped)
    stopped.stop_after = None
    assert attacked(data, node, 3, stopped).tables["image"].equals(table)


def test_training_is_repeatable(data, node, tmp_path):
    args = {name: value for name, value in node.items() if not name.startswith("_")} | {"train_size": 500}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        mnist_cnn.build(tmp_path / name, **args)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]
