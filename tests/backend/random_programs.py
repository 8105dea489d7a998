"""Random programs that are recorded and replayed with new data: the generator, and a stress run of any size.

    python tests/backend/random_programs.py --count 1000 --workers 2

A program is a random graph of elementwise operators, reductions, in-place updates, views and matrix products over
random shapes. It is compiled, called once, recorded at its second call and replayed; results of earlier calls are kept
and looked at again at the end, so that memory which is lent twice shows.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import torch

Values = list[torch.Tensor]
Step = Callable[[Values], torch.Tensor]

REPLAYS = 5
# Up to 14 operators in a row, norms and comparisons among them, against eager in the same precision: what one rounding
# moves grows on the way (worst of 400 programs: 2.4e-5).
TOLERANCE = 5e-5


@dataclass
class Program:
    """``run(inputs)`` returns a tuple; ``shapes(call)`` are those of the inputs, ``updated`` the inputs it writes."""

    seed: int
    dynamic: bool
    steps: list[tuple[str, Step]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    updated: dict[int, int] = field(default_factory=dict)
    base: tuple[int, int] = (1, 1)

    def run(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for _, step in self.steps:
            values.append(step(values))
        for target, source in self.updated.items():
            inputs[target].mul_(0.5).add_(values[source])
        return tuple(values[i] for i in self.results)

    def shapes(self, call: int) -> list[tuple[int, int]]:
        rows, columns = self.base
        if self.dynamic:
            rows = 2 + (rows + 7 * call) % 61
        return [(rows, columns), (rows, columns), (1, columns), (columns, columns)]


def program(seed: int) -> Program:
    """The program of a seed. All values have the shape (rows, columns) of the first input."""
    rng = random.Random(seed)
    made = Program(seed, dynamic=rng.random() < 0.4, base=(rng.choice((3, 8, 33, 64)), rng.choice((1, 5, 16, 40))))
    count = 4  # inputs: two of the full shape, a row, and a square matrix
    full = [0, 1]
    for _ in range(rng.randint(4, 14)):
        name, step = _step(rng, full)
        made.steps.append((name, step))
        full.append(count)
        count += 1
    made.results = rng.sample(full[2:], k=min(len(full) - 2, rng.randint(1, 4)))
    for target in rng.sample((0, 1), k=rng.choice((0, 0, 1, 2))):
        made.updated[target] = rng.choice(full[2:])
    return made


def _step(rng: random.Random, full: list[int]) -> tuple[str, Step]:
    """One operator on values drawn from ``full``, with results of that shape and of moderate size."""
    a, b = rng.choice(full), rng.choice(full)
    recent = full[-1]
    # At most the smallest number of rows: where a slice comes out one row short and broadcasts, Inductor (torch 2.13)
    # gives the same wrong values for the CPU.
    shift = min(rng.randint(0, 3), 2)
    kinds: dict[str, Step] = {
        "add": lambda v: v[a] + 0.5 * v[b],
        "mul": lambda v: torch.tanh(v[a]) * v[recent],
        "where": lambda v: torch.where(v[a] > v[b], v[recent], -v[a]),
        "row": lambda v: v[recent] * v[2] + 0.1,
        "softmax": lambda v: torch.softmax(v[recent], -1) + v[a] * 0.25,
        "norm": lambda v: torch.nn.functional.layer_norm(v[recent], v[recent].shape[-1:]),
        "mean": lambda v: v[recent] - v[a].mean(0, keepdim=True),
        "amax": lambda v: v[recent] - v[recent].amax(1, keepdim=True),
        "cumulative": lambda v: v[a].sum() / v[a].numel() + v[recent],
        "matmul": lambda v: torch.tanh(v[recent] @ v[3]),
        "gram": lambda v: torch.tanh((v[a] @ v[b].t()) @ v[recent] * 0.05),
        "roll": lambda v: torch.roll(v[recent], shift, 0) + v[b],
        "flip": lambda v: torch.cat([v[recent][1:], v[a][:1]], 0),
        "strided": lambda v: v[recent].t().contiguous().t() * 1.5,
        "inplace": lambda v: v[recent].clone().mul_(0.5).add_(v[a]),
        "cat": lambda v: torch.cat([v[recent].softmax(-1), v[a]], 0)[shift : shift + v[recent].shape[0]] + v[b],
        "slice": lambda v: _write_slice(v[recent], v[b]),
    }
    if rng.random() < 0.03:  # runs on the CPU: splits the program
        return "sort", lambda v: torch.sort(v[recent], 0)[0] + torch.cat([v[a], v[recent]], 0)[shift:][: v[a].shape[0]]
    name = rng.choice(list(kinds))
    return name, kinds[name]


def _write_slice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    out[: out.shape[0] // 2] = torch.sin(y[: out.shape[0] // 2])
    return out


def check(seed: int, device: str = "vulkan") -> dict[str, int]:
    """Run the program of a seed; returns the recordings and replays it took. Raises AssertionError where it differs
    from eager on the CPU, and where the validation layer complains."""
    import vkinductor
    from vkinductor.runtime.loader import validation_messages

    made = program(seed)
    torch._dynamo.reset()
    compiled = torch.compile(made.run, backend="vulkan", dynamic=made.dynamic, fullgraph=True)
    generator = torch.Generator().manual_seed(seed)
    kept = []
    before = vkinductor.stats()
    for call in range(2 + REPLAYS):
        inputs = [torch.randn(shape, generator=generator) for shape in made.shapes(call)]
        ours = [x.clone().to(device) for x in inputs]
        got = compiled(*ours)
        want = made.run(*[x.clone() for x in inputs])
        updated = [x.clone() for x in inputs]
        made.run(*updated)
        kept.append((call, got, want, ours, updated))
        if call % 3 == 2:
            kept = kept[-2:]  # some results die, so that their memory is lent again
    names = [name for name, _ in made.steps]
    for call, got, want, ours, updated in kept:
        for g, w in zip((*got, *ours), (*want, *updated), strict=True):
            error = (g.cpu() - w).abs().max().item() if w.numel() else 0.0
            assert g.shape == w.shape, (seed, call, names)
            assert error <= TOLERANCE * max(1.0, w.abs().max().item()), (seed, call, error, names)
    assert not validation_messages(), (seed, validation_messages())  # with VKINDUCTOR_VALIDATION=1
    after = vkinductor.stats()
    return {name: after[name] - before[name] for name in ("recordings", "replays", "dispatches")}


def _check(seed: int) -> tuple[int, str, dict[str, int]]:
    try:
        return seed, "", check(seed)
    except Exception as error:
        return seed, f"{type(error).__name__}: {error}", {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    start, failed, total = time.perf_counter(), 0, {"recordings": 0, "replays": 0, "dispatches": 0}
    replayed = 0
    with ProcessPoolExecutor(arguments.workers) as pool:
        seeds = range(arguments.seed, arguments.seed + arguments.count)
        for done, (seed, error, counts) in enumerate(pool.map(_check, seeds, chunksize=4), 1):
            for name, n in counts.items():
                total[name] += n
            replayed += bool(counts.get("replays"))
            if error:
                failed += 1
                print(f"seed {seed}: {error}", flush=True)
            if done % 50 == 0:
                print(f"{done} programs, {failed} failed, {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{arguments.count} programs, {replayed} replayed, {failed} failed: {total}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
