"""Classifiers made of a language model, a prompt and one word for each class (as in MeZO, NeurIPS 2023).

A text becomes a prompt, and a class's logit is that of its word as the prompt's next token. The softmax over the
classes is the model's own, renormalised over these words.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tasks.run import Run


class Door(Protocol):
    """A labelled text dataset."""

    def examples(self, split: Any) -> tuple[list[str], list[int]]: ...


class LanguageModel(Protocol):
    """A pretrained causal language model."""

    def model(self, dtype: torch.dtype = ...) -> Any: ...
    def tokenizer(self) -> Any: ...


class Prompted(nn.Module):
    """Logits [n, classes] of examples named by split ("train" or "dev") and index [n].

    Attributes:
        labels: split -> classes [examples].
        inputs, lengths: split -> padded inputs [examples, tokens, ...], numbers of tokens [examples].
    """

    def __init__(
        self, inputs: dict[str, Tensor], lengths: dict[str, Tensor], labels: dict[str, Tensor]
    ) -> None:
        super().__init__()
        self.inputs, self.lengths, self.labels = inputs, lengths, labels

    def hidden(self, inputs: Tensor) -> Tensor:
        """Final hidden states [n, tokens, width]."""
        raise NotImplementedError

    def words(self, hidden: Tensor) -> Tensor:
        """Logits of the classes' words [n, classes] from hidden states [n, width]."""
        raise NotImplementedError

    def forward(self, split: str, index: Tensor) -> Tensor:
        """Logits of the classes; padding stands behind the prompt, where a causal model does not look."""
        lengths = self.lengths[split][index]
        hidden = self.hidden(self.inputs[split][index][:, : int(lengths.max())])
        return self.words(hidden[torch.arange(len(index), device=hidden.device), lengths - 1])


class _Top(Prompted):
    """The last blocks of a Llama-like model, on cached hidden states."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        from transformers import AutoConfig, LlamaModel

        data = load_file(folder / "examples.safetensors", device=str(device))
        parts = [
            {s: data[f"{name}.{s}"] for s in ("train", "dev")} for name in ("inputs", "lengths", "labels")
        ]
        super().__init__(*parts)
        with torch.random.fork_rng(devices=[]):  # the constructor draws weights, which are replaced
            self.model = LlamaModel(AutoConfig.from_pretrained(folder)).to(device)
        weights = load_file(folder / "top.safetensors", device=str(device))
        self.register_buffer("rows", weights.pop("rows"))
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        if unexpected or missing != ["embed_tokens.weight"]:
            raise RuntimeError(f"{folder}: weights do not fit: missing {missing}, unexpected {unexpected}")

    def hidden(self, inputs: Tensor) -> Tensor:
        return self.model(inputs_embeds=inputs, use_cache=False).last_hidden_state

    def words(self, hidden: Tensor) -> Tensor:
        return hidden @ self.rows.T  # type: ignore[operator]


class _Whole(Prompted):
    """The whole model, on token ids."""

    def __init__(self, model: Any, words: list[int], *parts: dict[str, Tensor]) -> None:
        super().__init__(*parts)
        self.model, self.word_ids = model, words

    def hidden(self, inputs: Tensor) -> Tensor:
        return self.model.get_decoder()(input_ids=inputs, use_cache=False).last_hidden_state

    def words(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden)[:, self.word_ids].float()


class CachedTop:
    """The model's last blocks only; what the frozen blocks below give is computed once, as an artifact.

    Args:
        features: artifact made by `build`.
    """

    def __init__(self, features: Any) -> None:
        self.features = features

    def load(self, run: Run) -> Prompted:
        """The classifier, weights frozen."""
        return _Top(run.artifact(self.features), run.device).eval().requires_grad_(False)


class WholeModel:
    """All blocks; memory and time are those of the full model.

    Args:
        model, data: pretrained model and labelled texts.
        template, words, train_size, dev_size, max_tokens: see `build`.
        dtype: of the weights.
    """

    def __init__(
        self,
        model: LanguageModel,
        data: Door,
        template: str,
        words: Sequence[str],
        train_size: int,
        dev_size: int,
        max_tokens: int,
        dtype: str = "float16",
    ) -> None:
        self.model, self.data, self.dtype = model, data, getattr(torch, dtype)
        self.prompt = (template, tuple(words), {"train": train_size, "dev": dev_size}, max_tokens)

    def load(self, run: Run) -> Prompted:
        """The classifier, weights frozen."""
        ids, parts = _tokens(self.model.tokenizer(), self.data, *self.prompt)
        model = self.model.model(dtype=run.dtype or self.dtype).to(run.device)
        placed = [{split: values.to(run.device) for split, values in part.items()} for part in parts]
        return _Whole(model, ids, *placed)


def build(
    out: Path,
    model: LanguageModel,
    data: Door,
    template: str,
    words: Sequence[str],
    train_size: int,
    dev_size: int,
    max_tokens: int,
    blocks: int,
    seed: int = 0,
) -> None:
    """Cut a Llama-like model below its last `blocks` and compute the hidden states that enter them.

    Args:
        out: folder for `examples.safetensors`, `top.safetensors` and the cut model's config.
        template: the prompt, with `{text}` where the text goes.
        words: one word a class, each a single token with its leading space.
        train_size, dev_size: the first so many examples of a split whose prompts are short enough.
        max_tokens: longest prompt taken.
        seed: not used; the result is deterministic.

    Raises:
        ValueError: a word is not one token, or too few prompts are short enough.
    """
    full = model.model()
    sizes = {"train": train_size, "dev": dev_size}
    ids, (tokens, lengths, labels) = _tokens(model.tokenizer(), data, template, words, sizes, max_tokens)
    below = full.config.num_hidden_layers - blocks
    arrays: dict[str, Tensor] = {}
    with torch.no_grad():
        for split, rows in tokens.items():
            # One prompt at a time: the numbers must not depend on which prompts stand beside it.
            states = [
                full.model(input_ids=row[None], output_hidden_states=True, use_cache=False) for row in rows
            ]
            arrays[f"inputs.{split}"] = torch.cat([state.hidden_states[below] for state in states])
            arrays[f"lengths.{split}"], arrays[f"labels.{split}"] = lengths[split], labels[split]
    save_file(arrays, out / "examples.safetensors")
    weights = {
        "rows": full.get_output_embeddings().weight[ids].clone(),
        "norm.weight": full.model.norm.weight,
    }
    for name, value in full.model.layers[below:].state_dict().items():
        weights[f"layers.{name}"] = value
    save_file({name: value.contiguous() for name, value in weights.items()}, out / "top.safetensors")
    config = deepcopy(full.config)
    config.num_hidden_layers, config.vocab_size = (
        blocks,
        1,
    )  # hidden states come in, so no embedding is needed
    config.pad_token_id = config.bos_token_id = config.eos_token_id = None
    config.save_pretrained(out)
    (out / "prompt.json").write_text(json.dumps({"template": template, "words": list(words)}))


def _tokens(
    tokenizer: Any,
    data: Door,
    template: str,
    words: Sequence[str],
    sizes: dict[str, int],
    max_tokens: int,
) -> tuple[list[int], list[dict[str, Tensor]]]:
    """Ids of the words; token ids, lengths and labels by split."""
    ids = []
    for word in words:
        pieces = tokenizer(word, add_special_tokens=False).input_ids
        if len(pieces) != 1:
            raise ValueError(f"the word {word!r} is {len(pieces)} tokens; one is needed")
        ids.append(pieces[0])
    tokens, lengths, labels = {}, {}, {}
    for split, size in sizes.items():
        texts, classes = data.examples(split)
        kept: list[list[int]] = []
        truth: list[int] = []
        for text, label in zip(texts, classes, strict=True):
            if len(kept) == size:
                break
            prompt = tokenizer(template.format(text=text)).input_ids
            if len(prompt) <= max_tokens:
                kept.append(prompt)
                truth.append(label)
        if len(kept) < size:
            raise ValueError(
                f"only {len(kept)} prompts of {split} have at most {max_tokens} tokens; {size} asked"
            )
        width = max(map(len, kept))
        tokens[split] = torch.tensor([row + [0] * (width - len(row)) for row in kept])
        lengths[split] = torch.tensor([len(row) for row in kept])
        labels[split] = torch.tensor(truth)
    return ids, [tokens, lengths, labels]
