"""Where a second-order optimizer takes its Hessian: its first step on functions whose diagonal any signs reveal."""

import torch
from torch import Tensor

from tasks.run import Run
from tasks.training.recipe import Method, Recipe


class FirstStep:
    """One step on f(x) = Σ a_i x_i⁴ / 4, whose Hessian is diagonal: random signs estimate it exactly.

    Without momentum, decay, ε and square root the step is Δ = -lr g(x^)/|h|, so that the curvature that was used can be
    read off: |h| = lr |g(x^)| / |Δ|. Here x^ = x + ρ g(x)/(‖g(x)‖ + 1e-12), with ρ and lr of the optimizer's first
    group (ρ = 0 if it has none). The functions have coefficients of both signs; double precision.

    Rows (unit `function`), each the worst over the coordinates:
        newton_error: |Δ + lr g/|h|| over |lr g/|h||, g and h at x^.
        perturbed_error: |h used - h(x^)| over |h(x^)|.
        restored_error: |h used - h(x)| over |h(x)|.

    Args:
        functions: number of random functions.
        dim: coordinates of each.

    Raises:
        ValueError: a size below 1; the optimizer has momentum, decay, ε or a square root.
    """

    def __init__(self, functions: int = 20, dim: int = 50) -> None:
        if min(functions, dim) < 1:
            raise ValueError("functions and dim must be at least 1")
        self.functions, self.dim = functions, dim

    def evaluate(self, method: Method, run: Run) -> None:
        """One step on every function."""
        table = []
        for i in run.track(range(self.functions)):
            generator = run.generator("function", i)
            a, start = (
                (torch.rand(self.dim, generator=generator, dtype=torch.float64) + 0.5)
                * (torch.randint(0, 2, (self.dim,), generator=generator) * 2 - 1)
                for _ in "ab"
            )
            table.append(self._step(Recipe.of(method), a, start, run.generator("signs", i)))
        run.rows("function", table)

    def _step(self, recipe: Recipe, a: Tensor, start: Tensor, generator: torch.Generator) -> dict[str, float]:
        holder = torch.nn.ParameterList([torch.nn.Parameter(start.clone())])
        (x,) = holder
        optimizer = recipe.make_optimizer(holder, generator=generator, total_steps=1)
        group = optimizer.param_groups[0]
        wanted = {"beta1": 0, "eps": 0, "weight_decay": 0, "hessian_power": 1}
        if any(group.get(name) != value for name, value in wanted.items()):
            raise ValueError(f"the curvature can only be read off with {wanted}")

        def closure(create_graph: bool = False) -> Tensor:
            x.grad = None
            loss = (a * x**4).sum() / 4
            loss.backward(create_graph=create_graph)
            return loss

        optimizer.step(closure)
        lr, slope = group["lr"], a * start**3
        there = start + group.get("rho", 0.0) * slope / (slope.norm() + 1e-12)
        g, h_there, h_here = a * there**3, (3 * a * there**2).abs(), (3 * a * start**2).abs()
        move = x.detach() - start
        expected, used = -lr * g / h_there, lr * g.abs() / move.abs()

        def worst(found: Tensor, truth: Tensor) -> float:
            return float(((found - truth).abs() / truth.abs()).max())

        return {
            "newton_error": worst(move, expected),
            "perturbed_error": worst(used, h_there),
            "restored_error": worst(used, h_here),
        }
