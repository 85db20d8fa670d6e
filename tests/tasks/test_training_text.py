"""Training on text: a language model, a classifier of sentences; both tasks and images resume and take any closure."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tasks.data.cola_rte import RTE, CoLA
from tasks.data.text import Text
from tasks.language.encoder import build
from tasks.training.language_model import Windows
from tasks.training.loop import Loop
from tasks.training.sentences import Encoded, SentenceClassification, _finish
from tasks.training.transformer import Transformer
from tests.fake_run import locate
from tests.tasks.training_cases import ENCODER, DiskRun, Killed, Statements, Verses, on_task

transformers = pytest.importorskip("transformers")

TASKS = ["images", "language", "sentences"]


@pytest.mark.parametrize("optimizer", ["adamw", "curvature", "sharp"])
@pytest.mark.parametrize("task", TASKS)
def test_a_killed_run_goes_on_bit_by_bit(task: str, optimizer: str) -> None:
    """One and several gradients a step, and Hessian-vector products, which need the whole graph."""
    settings: dict[str, Any] = {"task": task, "optimizer": optimizer, "checkpoint_every": 3}
    undisturbed, run = on_task(DiskRun(), **settings), DiskRun()
    with pytest.raises(Killed):
        on_task(run, kill_at=5, **settings)
    assert run.saves == 1
    on_task(run, **settings)
    assert run.metrics == undisturbed.metrics
    assert run.summaries == undisturbed.summaries
    assert run.summaries["loss"] != run.metrics[1]["loss"]


def test_the_language_model_learns() -> None:
    run = on_task(DiskRun(), "language", steps=200)
    assert run.summaries["validation_loss"] < 0.8 * run.metrics[0]["validation_loss"]
    assert run.summaries["validation_perplexity"] == pytest.approx(math.exp(run.summaries["validation_loss"]))
    alphabet = len(set(Verses().text("train")))
    assert run.metrics[0]["validation_loss"] == pytest.approx(math.log(alphabet), abs=0.05)


def test_the_transformer_does_not_see_the_future() -> None:
    torch.manual_seed(0)
    model = Transformer(tokens=7, length=9, width=8, heads=2)
    tokens = torch.randint(0, 7, (3, 9))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 7
    assert torch.allclose(model(tokens)[:, :5], model(changed)[:, :5], atol=1e-6)
    assert not torch.allclose(model(tokens)[:, 5:], model(changed)[:, 5:], atol=1e-3)
    with pytest.raises(ValueError, match="multiple"):
        Transformer(tokens=7, length=9, width=9, heads=2)


def test_windows_take_every_token_once() -> None:
    tokens = torch.arange(23)
    windows = Windows(tokens, length=5)
    inputs, targets = windows.batch(torch.arange(len(windows)), torch.empty(4, 0))
    assert torch.equal(inputs.flatten(), tokens[:20])
    assert torch.equal(targets, inputs + 1)
    with pytest.raises(ValueError, match="too short"):
        Windows(tokens, length=23)


def test_matthews_correlation() -> None:
    from sklearn.metrics import matthews_corrcoef

    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        labels, guesses = torch.randint(0, 2, (2, 9), generator=generator).double()
        means = {"label": labels.mean(), "guess": guesses.mean(), "both": (labels * guesses).mean()}
        found = _finish({name: value.item() for name, value in means.items()})
        assert found["matthews"] == pytest.approx(matthews_corrcoef(labels, guesses), abs=1e-9)
    assert _finish({"loss": 1.0, "label": 0.3, "guess": 1.0, "both": 0.3}) == {"loss": 1.0, "matthews": 0.0}


# -- the encoder ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("encoder")
    make(out)
    return out


def make(out: Path, **changes: Any) -> None:
    args = {key: value for key, value in ENCODER.items() if not key.startswith("_")} | {"data": Verses()}
    build(out, **(args | changes))


def test_the_encoder_is_the_same_every_time(folder: Path, tmp_path: Path) -> None:
    make(tmp_path)
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_pretraining_learns(folder: Path, tmp_path: Path) -> None:
    make(tmp_path, steps=60)
    before, after = (json.loads((path / "report.json").read_text())["loss"] for path in (folder, tmp_path))
    assert after < 0.9 * before


def test_a_pretrained_encoder_is_taken_over(folder: Path) -> None:
    """All but the pooling layer and the head, which masked language modelling has not."""
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=2, output_loading_info=True
    )
    assert {name.split(".")[-2] for name in report["missing_keys"]} == {"pooler", "classifier"}
    masked = transformers.AlbertForMaskedLM.from_pretrained(folder)
    theirs = dict(masked.albert.named_parameters())
    assert all(torch.equal(p, theirs[name]) for name, p in model.albert.named_parameters() if name in theirs)


def test_dropout_before_the_head_is_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(Loop, "fit", lambda self, run, recipe, model, problem: seen.append(model) or {})
    on_task(DiskRun(), "sentences")
    assert seen[0].dropout.p == 0.2


def test_padding_does_not_matter(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts, labels = Statements().examples("dev")
    data = Encoded(tokenizer, texts, labels, max_length=12)
    inputs, _ = data.batch(torch.arange(12), torch.empty(12, 0))
    assert inputs["input_ids"].shape == inputs["attention_mask"].shape == inputs["token_type_ids"].shape
    assert inputs["input_ids"].shape[1] <= 12
    assert (inputs["attention_mask"].sum(1) < inputs["input_ids"].shape[1]).any()
    for i in range(12):
        alone, _ = data.batch(torch.tensor([i]), torch.empty(1, 0))
        assert torch.allclose(model(**alone).logits[0], model(**inputs).logits[i], atol=1e-5)
    pair = tokenizer.decode(data.encoded["input_ids"][0])
    assert pair.startswith("[CLS]")
    assert pair.count("[SEP]") == 2


def test_subsets_are_the_seeds(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    drawn = []
    for seed in (0, 0, 1):
        task = SentenceClassification(Statements(), ENCODER, None, max_length=12, train_size=9)  # type: ignore[arg-type]
        drawn.append(task.examples("train", tokenizer, DiskRun(seed)).encoded["input_ids"])
        assert len(task.examples("dev", tokenizer, DiskRun(seed))) == 37
    assert len(drawn[0]) == 9
    assert drawn[0] == drawn[1] != drawn[2]
    task.sizes["train"] = 38
    with pytest.raises(ValueError, match="train_size"):
        task.examples("train", tokenizer, DiskRun())


# -- data ----------------------------------------------------------------------------------------------------------


def real(name: str) -> Any:
    node = yaml.safe_load((Path(__file__).parents[2] / f"conf/data/{name}.yaml").read_text())
    return locate(node.pop("_target_"))(**node)


def test_cola_and_rte(require_data: Any) -> None:
    """Row and label counts as the benchmark states them."""
    require_data("glue/CoLA/train.tsv")
    cola, rte = real("cola"), real("rte")
    assert isinstance(cola, CoLA)
    assert isinstance(rte, RTE)
    assert [torch.tensor(cola.examples("train")[1]).bincount().tolist(), len(cola.examples("dev")[1])] == [
        [2528, 6023],
        1043,
    ]
    assert [torch.tensor(rte.examples("train")[1]).bincount().tolist(), len(rte.examples("dev")[1])] == [
        [1249, 1241],
        277,
    ]
    assert cola.examples("train")[0][1] == ("One more pseudo generalization and I'm giving up.",)
    _, hypothesis = rte.examples("train")[0][0]
    assert hypothesis == "Weapons of Mass Destruction Found in Iraq."
    assert rte.examples("train")[1][:2] == [1, 0]


def test_texts(require_data: Any) -> None:
    require_data("tinyshakespeare/input.txt")
    shakespeare = real("text/tinyshakespeare")
    parts = [shakespeare.text(split) for split in ("train", "validation")]
    assert [len(part) for part in parts] == [1003855, 111539]
    assert len(set("".join(parts))) == 65
    with pytest.raises(ValueError, match="held_out"):
        Text({}, held_out=1.0, name="", size_mb=0, licence="")
