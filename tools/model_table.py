"""Writes docs/models.md: each model family run on this machine's Vulkan device and compared with the CPU.

    python tools/model_table.py [--output docs/models.md] [FAMILY ...]

Every family is compiled and run here, so this takes minutes. Named families are printed and not written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

import vkinductor
from vkinductor.conformance.families import BY_NAME, FAMILIES, Family
from vkinductor.conformance.model_check import Report, forward, training_step

HEAD = """# Models

Written by `tools/model_table.py` on {device}, torch {torch}, transformers {transformers}.

Small models with random weights (`vkinductor/conformance/families.py`), each compiled as one graph
(`torch.compile(model, backend="vulkan", fullgraph=True)`) from CPU tensors. *Error*: the largest absolute difference
from CPU eager in any result; "wrong" where one is outside `torch.testing.assert_close`. *Kernels*: ours, and those of
Inductor's GPU code generation for the same post-grad graph, as its scheduler fuses it (conformance/kernel_count.py): a
fused group, a template with its epilogue, and an extern kernel count one each. Attention is composed on both sides.
*Training*: forward and backward, the largest error of results and gradients.

| Model | Parameters | Full graph | Error | Fallbacks | Kernels | Inductor (GPU) | Ratio | Training |
|---|---|---|---|---|---|---|---|---|
"""


def error(report: Report) -> str:
    """The worst error, or that it is too large."""
    return f"{report.compared.worst:.1e}" if not report.compared.wrong else f"wrong ({report.compared.worst:.1e})"


def fallbacks(report: Report) -> str:
    """Operators that ran on the CPU, with their counts."""
    return ", ".join(f"{name} x{count}" for name, count in sorted(report.fallbacks.items())) or "none"


def row(family: Family) -> str:
    """One line of the table."""
    torch._dynamo.reset()
    try:
        report = forward(family)
    except Exception as failure:
        return f"| {family.name} | | no: {type(failure).__name__} | | | | | | |"
    training = ""
    if family.trains:
        torch._dynamo.reset()
        step = training_step(family)
        training = error(step) + ("" if not step.fallbacks else f" (fallbacks: {fallbacks(step)})")
    counts = report.kernels
    return (
        f"| {family.name} | {report.parameters} | yes | {error(report)} | {fallbacks(report)} | {counts.ours} | "
        f"{counts.inductor} | {counts.ratio:.2f} | {training} |"
    )


def main() -> int:
    """Print the table, and write it when every family was run."""
    import transformers

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs/models.md"))
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(BY_NAME))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.families if name not in BY_NAME]
    if unknown:
        parser.error(f"no family {', '.join(unknown)}: there are {', '.join(BY_NAME)}")
    rows = []
    for family in [BY_NAME[name] for name in arguments.families] or FAMILIES:
        rows.append(row(family))
        print(rows[-1], flush=True)
    if not arguments.families:
        text = HEAD.format(
            device=vkinductor.device_name(), torch=torch.__version__, transformers=transformers.__version__
        )
        arguments.output.write_text(text + "\n".join(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
