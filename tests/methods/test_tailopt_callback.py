"""Synchronization inside a Hugging Face Trainer."""

import functools

import pytest
import torch

transformers = pytest.importorskip("transformers")

from methods.train.tailopt import BiClipSGD, OuterBiClip, SynchronizeEvery  # noqa: E402


class Line(torch.nn.Module):
    """y = w x, with its own loss."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1.0, -1.0]))

    def forward(self, x, labels):
        guesses = x @ self.w
        return {"loss": (guesses - labels).square().mean(), "logits": guesses}


@pytest.mark.slow
def test_every_second_step_is_followed_by_a_step_of_the_server(tmp_path):
    data = [{"x": torch.tensor([1.0, k]), "labels": torch.tensor(2.0)} for k in range(4)]
    model = Line()
    optimizer = BiClipSGD(model.parameters(), lr=0.1, u=0.5, d=0.01)
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=5, per_device_train_batch_size=4, report_to=[], use_cpu=True, save_strategy="no",
        lr_scheduler_type="constant", max_grad_norm=0.0, disable_tqdm=True,
    )  # fmt: skip
    outer = OuterBiClip(lr=0.5, u=0.06, d=0.001)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    transformers.Trainer(
        model,
        arguments,
        train_dataset=data,
        optimizers=(optimizer, constant),
        callbacks=[SynchronizeEvery(outer, 2)],
    ).train()

    other = Line()
    local, server = BiClipSGD(other.parameters(), lr=0.1, u=0.5, d=0.01), other.w.detach().clone()
    batch = {key: torch.stack([row[key] for row in data]) for key in ("x", "labels")}
    clip = functools.partial(torch.clamp, min=-0.06, max=0.06)
    for step in range(1, 6):
        other.zero_grad()
        other(**batch)["loss"].backward()
        local.step()
        if step % 2 == 0:
            server += 0.5 * clip(other.w.detach() - server)
            other.w.data.copy_(server)
    assert model.w.tolist() == pytest.approx(other.w.tolist(), rel=1e-6)


def test_bad_interval():
    with pytest.raises(ValueError):
        SynchronizeEvery(OuterBiClip(), 0)
