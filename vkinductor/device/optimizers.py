"""Kernels of torch's fused optimizers and of gradient scaling: operators over lists of tensors, in foreach operators.

Each is torch's own update rule, as torch.optim's documentation states it. A step with ``found_inf`` set changes
nothing, and nobody waits for the device to find that out.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

Tensors = list[torch.Tensor]


@contextlib.contextmanager
def _unless(found_inf: torch.Tensor | None, written: Sequence[Tensors]) -> Iterator[None]:
    """Undo what is written inside where ``found_inf`` is not zero."""
    if found_inf is None:
        yield
        return
    tensors = [t for group in written for t in group]
    before = [t.clone() for t in tensors]
    yield
    failed = found_inf != 0
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(torch.where(failed, old, tensor))


def _below_autograd(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return kernel(*args, **kwargs)

    return run


def _prepared(params: Tensors, grads: Tensors, scale: torch.Tensor | None, decay: float, maximize: bool) -> list[Any]:
    """Gradients unscaled (in place, as torch does), their sign turned, and weight decay added."""
    if scale is not None:
        torch._foreach_div_(grads, scale)
    ready = list(torch._foreach_neg(grads)) if maximize else list(grads)
    return list(torch._foreach_add(ready, params, alpha=decay)) if decay else ready


def _adam(
    decoupled: bool,
    params: Tensors,
    grads: Tensors,
    averages: Tensors,
    squares: Tensors,
    largest: Tensors,
    steps: Tensors,
    *,
    lr: Any,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """`_fused_adam_` and, ``decoupled``, `_fused_adamw_`; ``lr`` is a number or a tensor of one element."""
    if not params:
        return
    if isinstance(lr, torch.Tensor):
        lr = lr.to(params[0].device)
    with _unless(found_inf, [params, averages, squares, largest]):
        grads = _prepared(params, grads, grad_scale, 0.0 if decoupled else weight_decay, maximize)
        if decoupled and weight_decay:
            torch._foreach_mul_(params, 1 - lr * weight_decay)
        torch._foreach_lerp_(averages, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        if amsgrad:
            torch._foreach_maximum_(largest, squares)
        correction1 = torch._foreach_neg(torch._foreach_sub(torch._foreach_pow(beta1, steps), 1))
        correction2 = torch._foreach_neg(torch._foreach_sub(torch._foreach_pow(beta2, steps), 1))
        roots = torch._foreach_sqrt(largest if amsgrad else squares)
        denominators = torch._foreach_add(torch._foreach_div(roots, torch._foreach_sqrt(correction2)), eps)
        moves = torch._foreach_div(torch._foreach_div(averages, correction1), denominators)
        torch._foreach_sub_(params, torch._foreach_mul(moves, lr))


def _sgd(
    params: Tensors,
    grads: Tensors,
    buffers: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """`_fused_sgd_`; ``buffers`` is empty without momentum, and not yet set at the first step."""
    if not params:
        return
    if isinstance(lr, torch.Tensor):
        lr = lr.to(params[0].device)
    with _unless(found_inf, [params, buffers]):
        moves = _prepared(params, grads, grad_scale, weight_decay, maximize)
        if momentum:
            if is_first_step:
                torch._foreach_copy_(buffers, moves)
            else:
                torch._foreach_mul_(buffers, momentum)
                torch._foreach_add_(buffers, moves, alpha=1 - dampening)
            moves = list(torch._foreach_add(moves, buffers, alpha=momentum)) if nesterov else list(buffers)
        torch._foreach_sub_(params, torch._foreach_mul(moves, lr))


def _adagrad(
    params: Tensors,
    grads: Tensors,
    sums: Tensors,
    steps: Tensors,
    *,
    lr: Any,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """`_fused_adagrad_`; ``steps`` counts this one."""
    if not params:
        return
    if isinstance(lr, torch.Tensor):
        lr = lr.to(params[0].device)
    with _unless(found_inf, [params, sums]):
        grads = _prepared(params, grads, grad_scale, weight_decay, maximize)
        torch._foreach_addcmul_(sums, grads, grads, 1.0)
        slower = torch._foreach_add(torch._foreach_mul(torch._foreach_sub(steps, 1), lr_decay), 1)
        denominators = torch._foreach_add(torch._foreach_sqrt(sums), eps)
        moves = torch._foreach_div(torch._foreach_div(grads, denominators), [s.to(params[0].device) for s in slower])
        torch._foreach_sub_(params, torch._foreach_mul(moves, lr))


def _unscale(grads: Tensors, found_inf: torch.Tensor, inverse_scale: torch.Tensor) -> None:
    """`_amp_foreach_non_finite_check_and_unscale_`: found_inf becomes 1 if any gradient is not finite."""
    if not grads:
        return
    sizes = [norm.float() for norm in torch._foreach_norm(grads, float("inf"))]
    found_inf.copy_(torch.maximum(found_inf, (~torch.isfinite(torch.stack(sizes)).all()).to(found_inf.dtype)))
    torch._foreach_mul_(grads, inverse_scale.reshape(()))


def _update_scale(
    scale: torch.Tensor, tracker: torch.Tensor, found_inf: torch.Tensor, growth: float, backoff: float, interval: int
) -> torch.Tensor:
    """`_amp_update_scale_`: smaller after a bad step, larger after ``interval`` good ones while it stays finite."""
    failed = found_inf != 0
    good = torch.where(failed, 0, tracker + 1)
    due = good == interval
    grown = scale * growth
    larger = torch.where(due & torch.isfinite(grown), grown, scale)
    scale.copy_(torch.where(failed, scale * backoff, larger))
    tracker.copy_(torch.where(due, 0, good))
    return scale


KERNELS: dict[str, Callable[..., Any]] = {
    "_amp_foreach_non_finite_check_and_unscale_": _below_autograd(_unscale),
    "_amp_update_scale_": _below_autograd(_update_scale),
    "_fused_adagrad_": _below_autograd(_adagrad),
    "_fused_adagrad_.tensor_lr": _below_autograd(_adagrad),
    "_fused_adam_": _below_autograd(functools.partial(_adam, False)),
    "_fused_adam_.tensor_lr": _below_autograd(functools.partial(_adam, False)),
    "_fused_adamw_": _below_autograd(functools.partial(_adam, True)),
    "_fused_adamw_.tensor_lr": _below_autograd(functools.partial(_adam, True)),
    "_fused_sgd_": _below_autograd(_sgd),
    "_fused_sgd_.tensor_lr": _below_autograd(_sgd),
}
