"""A small ALBERT with a vocabulary of its own, pretrained on plain text, and kept in Hugging Face's format."""

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL))
POSITIONS = 512


class Corpus(Protocol):
    """A text."""

    def text(self, split: Any) -> str: ...


def build(
    out: Path,
    data: Corpus,
    vocabulary: int,
    width: int,
    layers: int,
    heads: int,
    length: int,
    steps: int,
    batch_size: int,
    lr: float,
    seed: int,
) -> None:
    """Train a vocabulary and, by masked language modelling (Devlin et al., 2019), an encoder.

    Of every 20 tokens three are to be guessed: 80% of these are masked, 10% replaced by random ones. AdamW, learning
    rate falling linearly from `lr` to 0 after a warm-up over the first tenth of the steps.

    Writes weights, config, tokenizer and `report.json` (mean loss over the last tenth of the steps, nats) into `out`.

    Args:
        out: folder.
        data: its training part is learned from.
        vocabulary: largest number of tokens.
        width, layers, heads: hidden size, number of layers (which share their weights, as in ALBERT), heads of each.
        length: tokens of a training sequence.
        steps, batch_size, lr: length of the training, sequences a step, highest learning rate.
        seed: of weights, order and masks.
    """
    from transformers import AlbertConfig, AlbertForMaskedLM

    torch.manual_seed(seed)
    lines = [line for line in data.text("train").splitlines() if line.strip()]
    tokenizer = _tokenizer(lines, vocabulary)
    found = tokenizer.backend_tokenizer.encode_batch(lines, add_special_tokens=False)
    tokens = torch.tensor([token for line in found for token in line.ids])
    body = length - 2
    rows = tokens[: len(tokens) // body * body].view(-1, body)
    edge = torch.ones(len(rows), 1, dtype=torch.long)
    rows = torch.cat([CLS * edge, rows, SEP * edge], 1)
    config = AlbertConfig(
        vocab_size=len(tokenizer),
        embedding_size=width // 2,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=POSITIONS,
        classifier_dropout_prob=0.0,
        pad_token_id=PAD,
        bos_token_id=CLS,
        eos_token_id=SEP,
    )
    model = AlbertForMaskedLM(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    warmup = max(1, steps // 10)
    losses = []
    for step in range(steps):
        factor = min((step + 1) / warmup, (steps - step) / (steps - warmup))
        optimizer.param_groups[0]["lr"] = lr * factor
        batch = rows[torch.randint(len(rows), (batch_size,))]
        inputs, chosen = _mask(batch, len(tokenizer))
        hidden = model.albert(input_ids=inputs).last_hidden_state
        loss = nn.functional.cross_entropy(model.predictions(hidden[chosen]), batch[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    last = losses[-warmup:]
    (out / "report.json").write_text(json.dumps({"loss": sum(last) / len(last)}))


def _tokenizer(lines: list[str], vocabulary: int) -> Any:
    """Lower-case byte-pair encoding (not WordPiece, whose trainer breaks ties at random) of words and punctuation.

    Examples become `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]`.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    inner.train_from_iterator(
        lines,
        trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False),
    )
    inner.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=POSITIONS,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **dict(zip(names, SPECIAL, strict=True)),
    )


def _mask(batch: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Sequences with guesses to be made, and where."""
    chosen = torch.rand(batch.shape) < 0.15
    chosen[:, 0] = chosen[:, -1] = False
    what = torch.rand(batch.shape)
    random = torch.randint(len(SPECIAL), vocabulary, batch.shape)
    inputs = torch.where(chosen & (what < 0.8), torch.full_like(batch, MASK), batch)
    return torch.where(chosen & (what >= 0.9), random, inputs), chosen
