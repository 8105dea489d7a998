"""The fused LSTM and GRU cells: torch sends recurrent layers on this device to them, and the CPU has no
kernels of theirs.

They are composed from other operators. Gates arrive as the products of input and hidden state with the
weights, side by side in one dimension: input, forget, cell, output for the LSTM; reset, update, new for the
GRU. What a forward pass saves for its backward pass ("workspace") is private to the two.
"""

from __future__ import annotations

from typing import Any

import torch

_Optional = torch.Tensor | None


def _sum(a: torch.Tensor, *others: _Optional) -> torch.Tensor:
    for other in others:
        if other is not None:
            a = a + other
    return a


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: _Optional = None,
    hidden_bias: _Optional = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`_thnn_fused_lstm_cell`: gates (batch, 4 * hidden), cx (batch, hidden) -> hy, cy, workspace (batch, 4 *
    hidden)."""
    i, f, g, o = _sum(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), 1)


def lstm_cell_backward(
    grad_hy: _Optional,
    grad_cy: _Optional,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[Any, Any, Any]:
    """`_thnn_fused_lstm_cell_backward_impl`: gradients of the gates, of cx, and of the bias (or None)."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, 1)
    tanh = cy.tanh()
    hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    cell = _sum(hy * o * (1 - tanh * tanh), grad_cy)
    gates = torch.cat(
        (cell * g * i * (1 - i), cell * cx * f * (1 - f), cell * i * (1 - g * g), hy * tanh * o * (1 - o)), 1
    )
    return gates, cell * f, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: _Optional = None,
    hidden_bias: _Optional = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`_thnn_fused_gru_cell`: gates (batch, 3 * hidden), hx (batch, hidden) -> hy, workspace (batch, 5 *
    hidden)."""
    ir, iz, inew = _sum(input_gates, input_bias).chunk(3, 1)
    hr, hz, hnew = _sum(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (inew + r * hnew).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, hnew), 1)


def gru_cell_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[Any, ...]:
    """`_thnn_fused_gru_cell_backward`: gradients of the input gates, hidden gates, hx, and the two biases (or
    None)."""
    r, z, n, hx, hnew = workspace.chunk(5, 1)
    new = grad_hy * (1 - z) * (1 - n * n)
    reset = new * hnew * r * (1 - r)
    update = grad_hy * (hx - n) * z * (1 - z)
    inputs = torch.cat((reset, update, new), 1)
    hidden = torch.cat((reset, update, new * r), 1)
    biases = (inputs.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return inputs, hidden, grad_hy * z, *biases


KERNELS: dict[str, Any] = {
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
}


def register(library: torch.library.Library) -> None:
    """Add the kernels to torch's "aten" library."""
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "PrivateUse1")
