"""PARQ: training quantized networks with a proximal map that hardens from clipping into rounding.

Jin, Ma, Liu, Gromov, Defazio, Xiao: PARQ: Piecewise-Affine Regularized Quantization (ICML 2025).
"""

import fnmatch
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from methods.train.aprox import AProx, ProxSGD
from methods.train.packing import PackedModel, PackedTensor
from methods.train.prox_maps import (
    ProxBinaryRelax,
    ProxHard,
    ProxMap,
    ProxPARQ,
    inverse_slope,
    nearest_level,
    par_prox,
    par_value,
    piecewise_affine,
)
from methods.train.quantizers import LSBQuantizer, Quantizer, TernaryQuantizer

__all__ = [
    "AProx",
    "LSBQuantizer",
    "PackedModel",
    "PackedTensor",
    "ProxBinaryRelax",
    "ProxHard",
    "ProxMap",
    "ProxPARQ",
    "ProxSGD",
    "QuantOptimizer",
    "Quantizer",
    "TernaryQuantizer",
    "inverse_slope",
    "nearest_level",
    "par_prox",
    "par_value",
    "piecewise_affine",
    "quantized",
    "weight_groups",
]

FULL_PRECISION = 16  # a group of so many bits or more is not quantized
OURS = ("latent", "levels")


class QuantOptimizer(torch.optim.Optimizer):
    r"""Any optimizer, made to train quantized weights.

    The model's weights w of a quantized group are a function of latent weights u, of which the optimizer keeps a copy:
    gradients are taken at w, the base optimizer moves u (its weight decay too), every `quant_period` steps the levels
    are fitted to u anew, and w = prox(u). Before the first step w is what it was. `param_groups` are the base
    optimizer's, and so is everything in them; schedulers act on this optimizer. Evaluate the model as it is: with w.

    Args:
        base_optimizer: a fresh optimizer over the model's parameters, with plain steps (it is not given the closure). A
            group with `quant_bits` from 0 (ternary) to 8 is quantized, one without it, or with 16 or more, is not.
        quantizer: finds the levels.
        prox_map: ProxPARQ, ProxHard (STE), ProxBinaryRelax or another `ProxMap`. Its steps count from the very first.
        warmup_steps: first steps without quantization, >= 0.
        quant_period: steps between two fits of the levels, >= 1.
        per_channel: levels for every row of a weight flattened to (out, -1).
        assignment: what hard maps use in steps that fit the levels: the "nearest" level as in all other steps, or the
            quantizer's own code, as the official implementation does ("code"; from 3 greedy bits on they differ).
        total_steps: from the step of this number on w is hard, whatever the map says; None: as the map says. A schedule
            that is to end with the last step never reaches its end.

    Raises:
        ValueError: a value out of its range, complex or integer parameters in a quantized group, a base optimizer that
            has taken steps or that cannot do without a closure.

    Source: section 4; the official QuantOptimizer, which copies weights to and from the base optimizer instead.

    >>> w = torch.tensor([0.3, -1.0, 0.5], requires_grad=True)
    >>> base = torch.optim.SGD([{"params": [w], "quant_bits": 1}], lr=0.1)
    >>> optimizer = QuantOptimizer(base, LSBQuantizer(), ProxHard())
    >>> w.grad = torch.tensor([1.0, 0.0, -1.0])
    >>> optimizer.step()
    >>> w.tolist(), optimizer.latent(w).tolist()
    ([0.6, -0.6, 0.6], [0.2, -1.0, 0.6])
    """

    def __init__(
        self,
        base_optimizer: torch.optim.Optimizer,
        quantizer: Quantizer,
        prox_map: ProxMap,
        warmup_steps: int = 0,
        quant_period: int = 10,
        per_channel: bool = False,
        assignment: Literal["nearest", "code"] = "nearest",
        total_steps: int | None = None,
    ) -> None:
        if warmup_steps < 0 or quant_period < 1:
            raise ValueError(
                f"warmup_steps must be at least 0 and quant_period at least 1, not {warmup_steps} and {quant_period}"
            )
        if assignment not in ("nearest", "code"):
            raise ValueError(f"assignment must be nearest or code, not {assignment!r}")
        if total_steps is not None and total_steps <= warmup_steps:
            raise ValueError(f"total_steps must be above warmup_steps, not {total_steps}")
        closure = inspect.signature(base_optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(
                f"{type(base_optimizer).__name__} needs a closure, which evaluates latent weights"
            )
        if base_optimizer.state:
            raise ValueError(
                "base_optimizer has taken steps already: its state belongs to weights, not to latent ones"
            )
        super().__init__(base_optimizer.param_groups, dict(base_optimizer.defaults))
        self.base_optimizer, self.quantizer, self.prox_map = base_optimizer, quantizer, prox_map
        self.warmup_steps, self.quant_period, self.per_channel = warmup_steps, quant_period, per_channel
        self.assignment, self.total_steps, self.num_steps = assignment, total_steps, 0
        self.param_groups = (
            base_optimizer.param_groups
        )  # one list, shared: what is set in ours is set in the base's
        self._latents: dict[Tensor, Tensor] = {}
        for group in self.param_groups:
            self._check_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer; `quant_bits` in it makes it quantized."""
        if not hasattr(self, "base_optimizer"):  # the base optimizer's own groups, which are complete
            self.param_groups.append(param_group)
            return
        self.base_optimizer.add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what the closure returns, which is called once, at w.

        Raises:
            FloatingPointError: a gradient is not finite; weights and state are as before.
            RuntimeError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_gradients()
        pairs = self._pairs()
        with self._on_latents():
            for p, u, _ in pairs:
                u.grad = p.grad
            self.base_optimizer.step()
            for _, u, _ in pairs:
                u.grad = None
        if self.num_steps >= self.warmup_steps:
            self._write_weights(pairs)
        self.num_steps += 1
        return loss

    def latent(self, p: Tensor) -> Tensor:
        """u of a parameter (during the warm-up p's own memory); p itself where it is not quantized."""
        return self._latents.get(p, p).detach()

    def levels(self, p: Tensor) -> Tensor | None:
        """Sorted levels of a parameter, [k] or [rows, k]; None before the end of the warm-up, or if not quantized."""
        found: Tensor | None = self.state[p].get("levels") if p in self.state else None
        return found

    def quantized_parameters(self) -> Iterator[tuple[Tensor, int]]:
        """Parameters of quantized groups and their bits."""
        for group in self.param_groups:
            if _is_quantized(group):
                yield from ((p, group["quant_bits"]) for p in group["params"] if p.requires_grad)

    @torch.no_grad()
    def harden(self) -> None:
        """Write the nearest level of u into every quantized w, for the levels as they are (fitted now, if never)."""
        for p, u, bits in self._pairs():
            levels, _ = self._levels_of(p, u, bits, fit=self.levels(p) is None)
            self._part(p, u)
            p.copy_(nearest_level(u, levels, ties=getattr(self.prox_map, "ties", "up")))

    def export(self, model: nn.Module) -> PackedModel:
        """The model's state with quantized weights as packed level numbers; w must be hard (`harden` makes it so).

        Raises:
            ValueError: a weight that is none of its levels.
        """
        levels = {id(p): self.levels(p) for p, _ in self.quantized_parameters()}
        state = {}
        names = {id(p): name for name, p in model.named_parameters()}
        by_name = {names[key]: found for key, found in levels.items() if key in names and found is not None}
        for name, tensor in model.state_dict().items():
            state[name] = (
                PackedTensor.of(tensor, by_name[name]) if name in by_name else tensor.detach().clone()
            )
        return PackedModel(state)

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state, in its format; latent weights and levels stand beside it in each parameter's
        entry, the number of steps in the groups."""
        with self._on_latents():
            found = self.base_optimizer.state_dict()
        numbers = self._numbers()
        state = {key: dict(entry) for key, entry in found["state"].items()}
        for p, u in self._latents.items():
            state.setdefault(numbers[p], {})["latent"] = u.detach()
            if (levels := self.levels(p)) is not None:
                state[numbers[p]]["levels"] = levels
        groups = [{**group, "quant_steps": self.num_steps} for group in found["param_groups"]]
        return {**found, "state": state, "param_groups": groups}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Back to a checkpoint; the model's weights are loaded apart, from its own."""
        groups = [dict(group) for group in state_dict["param_groups"]]
        steps = {group.pop("quant_steps", 0) for group in groups}
        numbers = {number: p for p, number in self._numbers().items()}
        entries = state_dict["state"]
        theirs = {
            key: {name: value for name, value in entry.items() if name not in OURS}
            for key, entry in entries.items()
        }
        self.num_steps = max(steps)
        self._latents.clear()
        self.state.clear()
        for key, entry in entries.items():
            p = numbers[key]
            if "latent" in entry:
                shared = self.num_steps <= self.warmup_steps
                u = p.detach() if shared else torch.empty_like(p, requires_grad=False)
                self._latents[p] = u.copy_(entry["latent"]).requires_grad_()
            if "levels" in entry:
                self.state[p]["levels"] = entry["levels"].to(p.device, p.dtype).clone()
        with self._on_latents():
            own = {key: entry for key, entry in theirs.items() if entry}
            self.base_optimizer.load_state_dict({**state_dict, "state": own, "param_groups": groups})
        self.param_groups = self.base_optimizer.param_groups

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check_group(self, group: dict[str, Any]) -> None:
        if not _is_quantized(group):
            return
        self.quantizer.size(group["quant_bits"])  # bits out of range
        for p in group["params"]:
            if not p.is_floating_point():
                raise ValueError(f"a quantized parameter must be real and floating-point, not {p.dtype}")

    def _check_gradients(self) -> None:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if any(gradient.is_sparse for gradient in gradients):
            raise RuntimeError("QuantOptimizer does not take sparse gradients")
        if not gradients:
            return
        # A sum is finite unless an entry is not, or it overflows, which the second look tells apart.
        if not torch.stack([gradient.sum().float() for gradient in gradients]).sum().isfinite() and not all(
            bool(gradient.isfinite().all()) for gradient in gradients
        ):
            raise FloatingPointError("a gradient is not finite")

    def _pairs(self) -> list[tuple[Tensor, Tensor, int]]:
        """Quantized parameters, their latent weights and bits. In the warm-up both share memory: w = u is free."""
        pairs = []
        for p, bits in self.quantized_parameters():
            if p not in self._latents:
                self._latents[p] = p.detach().requires_grad_()
            pairs.append((p, self._latents[p], bits))
        return pairs

    def _write_weights(self, pairs: list[tuple[Tensor, Tensor, int]]) -> None:
        fit = (self.num_steps - self.warmup_steps) % self.quant_period == 0
        last = self.total_steps is not None and self.num_steps + 1 >= self.total_steps
        for p, u, bits in pairs:
            self._part(p, u)
            levels, code = self._levels_of(p, u, bits, fit)
            out = p.detach() if p.is_contiguous() else torch.empty(p.shape, dtype=p.dtype, device=p.device)
            if last:
                nearest_level(u, levels, ties=getattr(self.prox_map, "ties", "up"), out=out)
            else:
                self.prox_map.apply(u, levels, self.num_steps, out=out, code=code)
            if not p.is_contiguous():
                p.copy_(out)

    @staticmethod
    def _part(p: Tensor, u: Tensor) -> None:
        """After the warm-up u has memory of its own."""
        if u.data_ptr() == p.data_ptr():
            u.data = p.detach().clone()

    def _levels_of(self, p: Tensor, u: Tensor, bits: int, fit: bool) -> tuple[Tensor, Tensor | None]:
        code, rows = None, self.per_channel and p.dim() > 1
        if fit and self.assignment == "code":
            code, self.state[p]["levels"] = self.quantizer.quantize(u, bits, rows)
        elif fit:
            self.state[p]["levels"] = self.quantizer.levels(u, bits, rows)
        return self.state[p]["levels"], code

    @contextmanager
    def _on_latents(self) -> Iterator[None]:
        """The base optimizer's groups list latent weights in the place of the model's."""
        lists = [group["params"] for group in self.base_optimizer.param_groups]
        for group in self.base_optimizer.param_groups:
            group["params"] = [self._latents.get(p, p) for p in group["params"]]
        try:
            yield
        finally:  # loading a state makes new groups
            for group, params in zip(self.base_optimizer.param_groups, lists, strict=True):
                group["params"] = params

    def _numbers(self) -> dict[Tensor, int]:
        params = (p for group in self.param_groups for p in group["params"])
        return {p: number for number, p in enumerate(params)}


def weight_groups(
    model: nn.Module, bits: int, full_precision: Sequence[str] = (), **options: Any
) -> list[dict[str, Any]]:
    """A model's trainable parameters in three groups: quantized weights, others, and those without weight decay.

    Weights (of at least two dimensions) of all layers but normalization are quantized, biases are not and have no
    weight decay, everything else is neither quantized nor without.

    Args:
        model: the network.
        bits: of the quantized group (`quant_bits`).
        full_precision: patterns of names (`head.*`) of parameters that stay as they are.
        options: go into every group.

    Source: official split_param_groups, which leaves out patch embeddings and the head of vision transformers.

    >>> groups = weight_groups(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), bits=2)
    >>> [(len(group["params"]), group.get("quant_bits"), group.get("weight_decay")) for group in groups]
    [(2, 2, None), (1, None, None), (3, None, 0.0)]
    """
    chosen: dict[str, list[Tensor]] = {"quantized": [], "others": [], "biases": []}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        norm = isinstance(module, (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm))
        for name, p in module.named_parameters(recurse=False):
            whole = f"{prefix}.{name}" if prefix else name
            if id(p) in seen or not p.requires_grad:
                continue
            seen.add(id(p))
            if name == "bias":
                chosen["biases"].append(p)
            elif (
                norm
                or not name.endswith("weight")
                or p.dim() < 2
                or any(fnmatch.fnmatch(whole, pattern) for pattern in full_precision)
            ):
                chosen["others"].append(p)
            else:
                chosen["quantized"].append(p)
    extras: dict[str, dict[str, Any]] = {
        "quantized": {"quant_bits": bits},
        "others": {},
        "biases": {"weight_decay": 0.0},
    }
    return [{"params": params, **options, **extras[name]} for name, params in chosen.items() if params]


def quantized(
    params: Iterable[Any],
    base: Callable[..., torch.optim.Optimizer],
    bits: int,
    prox: Callable[..., ProxMap] | None = None,
    quantizer: Quantizer | None = None,
    anneal: tuple[float, float] = (0.0, 1.0),
    warmup_steps: int = 0,
    quant_period: int = 10,
    per_channel: bool = False,
    full_precision: Sequence[str] = (),
    assignment: Literal["nearest", "code"] = "nearest",
    model: nn.Module | None = None,
    total_steps: int | None = None,
) -> torch.optim.Optimizer:
    """A `QuantOptimizer` for a whole training, ready for its first step.

    Args:
        params: parameters or groups; not used with `model`.
        base: groups -> base optimizer.
        bits: 1 to 8; 0 ternary; 16 trains in full precision with the base optimizer alone.
        prox: (anneal_start, anneal_end) -> map; None with 16 bits only.
        quantizer: default: greedy `LSBQuantizer`.
        anneal: start and end of the annealing, as shares of all steps.
        warmup_steps, quant_period, per_channel, assignment: see `QuantOptimizer`.
        full_precision: see `weight_groups`.
        model: the network whose weights are quantized.
        total_steps: of the training; the last one ends hard.

    Raises:
        ValueError: a value out of its range.
    """
    groups = list(params) if model is None else weight_groups(model, bits, full_precision)
    optimizer = base(groups)
    if bits >= FULL_PRECISION:
        return optimizer
    if prox is None or total_steps is None:
        raise ValueError("quantized weights need prox and total_steps")
    start, end = (round(share * total_steps) for share in anneal)
    return QuantOptimizer(
        optimizer,
        quantizer or LSBQuantizer(),
        prox(anneal_start=start, anneal_end=end),
        warmup_steps=warmup_steps,
        quant_period=quant_period,
        per_channel=per_channel,
        assignment=assignment,
        total_steps=total_steps,
    )


def _is_quantized(group: Mapping[str, Any]) -> bool:
    bits = group.get("quant_bits", FULL_PRECISION)
    return bits is not None and bits < FULL_PRECISION
