"""A small decoder-only transformer in the manner of GPT-2."""

import math

import torch
from torch import Tensor, nn


class Transformer(nn.Module):
    """Logits [n, length, tokens] of the next token, from tokens [n, length].

    Learned positions, normalization before each part, GELU, input embeddings that serve as the output matrix, the
    start of Radford et al. (2019). Attention is written out, so that gradients can be differentiated again.

    Args:
        tokens: size of the vocabulary.
        length: longest sequence.
        width: size of hidden states, a multiple of `heads`.
        layers, heads: blocks, attention heads of each.
        dropout: probability for embeddings and for what each part adds, in [0, 1).

    Example:
        >>> Transformer(tokens=65, length=64, width=32)(torch.zeros(2, 10, dtype=torch.long)).shape
        torch.Size([2, 10, 65])
    """

    def __init__(
        self, tokens: int, length: int, width: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is no multiple of heads {heads}")
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                added = name.endswith(("attention.out.weight", "contract.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if added else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(place))
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(self.norm(x), self.tokens.weight)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        hidden = nn.functional.gelu(self.expand(self.norm2(x)))
        return x + self.dropout(self.contract(hidden))


class _Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.project(x).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        mixed: Tensor = self.out((weights @ value).transpose(1, 2).reshape(n, length, width))
        return mixed
