"""R-AdaZO: adaptive zeroth-order optimization with a refined second moment (Shu et al., ICML 2025)."""

from torch import Tensor

from methods.zeroth_order.zo_adamm import ZOAdaMM


class RAdaZO(ZOAdaMM):
    """ZO-AdaMM whose second moment is that of the first moment, not of the raw gradient estimate.

    With an estimate g_t of the gradient from function values::

        m_t = beta1 m_{t-1} + (1 - beta1) g_t
        v_t = beta2 v_{t-1} + (1 - beta2) m_t^2          (ZO-AdaMM: g_t^2)
        x_t = x_{t-1} - lr m_t / (sqrt(v_t) + eps)       (no bias correction)

    The first step moves each coordinate by lr / sqrt(1 - beta2): ten times lr at beta2 = 0.99.

    Source: arXiv 2502.01014, Algorithm 1; the place of eps is the official implementation's
    (shuyao95/R-AdaZO). Unlike that one, all tensors are perturbed jointly and f(x) is evaluated once a step;
    ``blockwise=True`` gives its tensor-by-tensor form. Arguments are those of `ZOAdaMM`; `eps_inside` is the
    form of the paper's text, and wants `scale_by_dim`, since an estimate on the sphere without the factor d
    is d times smaller than the gradient. `amsgrad` is not part of the paper's method.

    Example:
        >>> import torch
        >>> x = torch.full((10,), 2.0, requires_grad=True)
        >>> optimizer = RAdaZO([x], lr=0.02, n_samples=10, generator=torch.Generator().manual_seed(0))
        >>> for _ in range(300):
        ...     loss = optimizer.step(lambda: x.square().sum())
        >>> bool(loss < 0.4)  # from 40
        True
    """

    def squared(self, first: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """The first moment: its variance is lower than that of the estimate by (1 - beta1) / (1 + beta1)."""
        return first
