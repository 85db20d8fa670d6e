"""Prompted classifiers and fine-tuning by forward passes, on a tiny random Llama with a word-level tokenizer."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from methods.zeroth_order.radazo import RAdaZO
from methods.zeroth_order.zo_adamm import ZOAdaMM
from tests.fake_run import FakeRun

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

from tasks.language.prompted import CachedTop, WholeModel, build  # noqa: E402
from tasks.zeroth_order.finetune import FineTune  # noqa: E402

VOCABULARY = [
    "<pad>",
    "it",
    "was",
    "bad",
    "good",
    "a",
    "the",
    "film",
    "plot",
    "dull",
    "bright",
    "long",
    "short",
]


class Tokenizer:
    """Splits at spaces."""

    def __call__(self, text, add_special_tokens=True):
        return SimpleNamespace(input_ids=[VOCABULARY.index(word) for word in text.split()])


class Tiny:
    """Three blocks of width 32, always the same weights."""

    def model(self, dtype=torch.float32):
        config = transformers.LlamaConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
            tie_word_embeddings=True,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return transformers.LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)

    def tokenizer(self):
        return Tokenizer()


class Reviews:
    """Sixteen labelled phrases a split."""

    def examples(self, split):
        texts, labels = [], []
        for first in ("a", "the"):
            for noun in ("film", "plot"):
                for word, label in (("dull", 0), ("bright", 1), ("long long", 0), ("short", 1)):
                    texts.append(f"{first} {noun} {word}")
                    labels.append(label)
        return (texts, labels) if split == "train" else (texts[::-1], labels[::-1])


PROMPT = {
    "template": "{text} it was",
    "words": [" bad", " good"],
    "train_size": 12,
    "dev_size": 10,
    "max_tokens": 6,
}


def node(blocks=1):
    source = {"model": Tiny(), "data": Reviews(), **PROMPT}
    return {"_target_": "tasks.language.prompted.build", "_artifact_": True, "blocks": blocks, **source}


@pytest.mark.parametrize("blocks", [1, 2])
def test_cached_hidden_states_give_the_whole_models_logits(blocks):
    run = FakeRun()
    cached = CachedTop(node(blocks)).load(run)
    whole = WholeModel(Tiny(), Reviews(), dtype="float32", **PROMPT).load(run)
    assert len(cached.model.layers) == blocks
    model = Tiny().model()
    for split, size in (("train", 12), ("dev", 10)):
        texts, labels = Reviews().examples(split)
        index = torch.arange(size)
        assert cached.labels[split].tolist() == whole.labels[split].tolist() == labels[:size]
        direct = []
        for text in texts[:size]:
            ids = torch.tensor([Tokenizer()(f"{text} it was").input_ids])
            direct.append(model(ids).logits[0, -1, [VOCABULARY.index("bad"), VOCABULARY.index("good")]])
        torch.testing.assert_close(cached(split, index), torch.stack(direct), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(whole(split, index), torch.stack(direct), rtol=1e-4, atol=1e-5)


def test_words_must_be_single_tokens_and_prompts_short_enough(tmp_path):
    with pytest.raises(ValueError, match="2 tokens"):
        build(tmp_path, Tiny(), Reviews(), blocks=1, **(PROMPT | {"words": [" bad", " good good"]}))
    with pytest.raises(ValueError, match="at most 3 tokens"):
        build(tmp_path, Tiny(), Reviews(), blocks=1, **(PROMPT | {"max_tokens": 3}))


def tuned(run, cls=RAdaZO, artifact=None, **options):
    artifact = artifact or node()
    settings = {"steps": 40, "batch_size": 6, "rank": 2, "alpha": 4, "targets": ["q_proj", "v_proj"]}
    settings |= {"log_every": 10, "eval_every": 20} | options
    method = partial(cls, lr=0.02, n_samples=2, mu=0.01, symmetric=True, direction="gaussian")
    FineTune(CachedTop(artifact), **settings).evaluate(method, run)
    return run


def test_finetuning_lowers_the_loss():
    summary = tuned(FakeRun(), steps=120).summaries
    assert summary["parameters"] == 2 * (32 + 32) + 2 * (32 + 16)
    assert summary["final_train_loss"] < summary["initial_train_loss"] - 0.01
    assert summary["tail_loss"] < summary["initial_train_loss"]


def test_methods_start_alike_and_seeds_differ():
    first, second, third = tuned(FakeRun()), tuned(FakeRun(), cls=ZOAdaMM), tuned(FakeRun(seed=1))
    start = "initial_train_loss"
    assert (
        first.summaries[start] == second.summaries[start] == third.summaries[start]
    )  # adapters start at zero
    assert first.summaries["tail_loss"] != second.summaries["tail_loss"]
    assert first.summaries["tail_loss"] != third.summaries["tail_loss"]
    again = tuned(FakeRun())
    assert again.summaries == first.summaries
    assert again.metrics == first.metrics


def test_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    tuned(FakeRun())
    assert torch.equal(torch.rand(3), expected)


def test_an_interrupted_run_goes_on_bitwise(monkeypatch):
    monkeypatch.setattr("tasks.zeroth_order.finetune.CHECKPOINT_SECONDS", -1.0)  # at every step
    whole, run = tuned(FakeRun()), FakeRun()
    run.stop_after = 17
    with pytest.raises(KeyboardInterrupt):
        tuned(run)
    run.stop_after = None
    tuned(run)
    assert run.summaries == whole.summaries
    assert run.metrics == whole.metrics


@pytest.mark.parametrize("options", [{"steps": 5}, {"batch_size": 0}, {"batch_size": 13}])
def test_bad_settings(options):
    with pytest.raises(ValueError, match=r"batch_size|steps"):
        tuned(FakeRun(), **options)
