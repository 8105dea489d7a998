"""Choosing kernels by measurement on the device they run on.

A family (``family``) has candidates for a problem. ``tuner`` compiles each as a program of one operator (``build``),
checks it (``compare``), times it (``clock``, ``workspace``) and chooses (``select``); ``results`` keeps what was found
on disk, and ``learned`` guesses from neighbours. Here is what code generation asks: ``choice``.

With the setting "vulkan.tune" (mode="max-autotune") a problem that is not stored is measured while the graph that has
it is compiled. Else stored results and what is learnt from them are used, and the family's heuristic where there are
none.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from vkinductor.runtime import context
from vkinductor.runtime.errors import DeviceLostError, VulkanError

from ..compat import setting
from ..eager.program import is_compiling
from .family import Family
from .learned import nearest
from .results import Results, results
from .session import complete, current, session
from .tuner import NothingWorksError, tune

__all__ = ["choice", "complete", "fingerprint", "install", "session"]

log = logging.getLogger(__name__)


def searching_now() -> bool:
    """Whether what is compiled on this thread is to be measured."""
    return bool(setting("tune")) and not is_compiling()


def _asks(family: Family) -> bool:
    """Whether there is anything to know about problems of ``family``: naming one may take time."""
    return searching_now() or bool(results().index(family))


def choice(family: Family, problem: Any) -> Any:
    """The candidate that measurements on the open device chose for ``problem``, None where they say nothing."""
    searching = searching_now()
    known = results()
    bucket = family.bucket(problem)
    if not searching and not known.index(family):
        return None
    candidates = {family.label(c): c for c in family.candidates(known.device.info, problem)}
    if len(candidates) < 2:
        return None
    found = known.find(family, bucket)
    if found is not None and found.choice in candidates:
        return candidates[found.choice]
    if searching:
        label = _search(family, problem, known)
        if label is not None:
            return candidates[label]
    label = nearest(bucket, known.index(family).values())
    return candidates.get(label) if label is not None else None


def _search(family: Family, problem: Any, known: Results) -> str | None:
    here = current()
    about = f"{family.name} {family.bucket(problem)}"
    if here.seconds <= 0 or known.device.stream.tracer is not None:
        # A trace would show the candidates, and its timestamps would be part of what is measured.
        here.untuned.append(about)
        return None
    start = time.monotonic()

    def progress(done: int, total: int, what: str) -> None:
        log.debug("tuning %s: %d of %d, %s", about, done, total, what)

    try:
        result = tune(family, problem, here.seconds, progress)
    except DeviceLostError:
        raise
    except Exception as error:  # the heuristic is the answer to whatever keeps a problem from being measured
        result = None
        if isinstance(error, NothingWorksError) and error.late:
            here.untuned.append(about)
        else:
            log.warning("tuning %s: %s", about, error, exc_info=not isinstance(error, VulkanError))
    took = time.monotonic() - start
    here.left -= took
    if result is None:
        return None
    here.tuned += 1
    known.add(family, result)
    base, chosen = result.row(result.baseline), result.row(result.choice)
    gain = ""
    if base is not None and chosen is not None and base.mean and chosen.mean:
        gain = f"{base.mean / chosen.mean:.2f} times the heuristic's speed"
    log.info("tuned %s in %.1f s: %s, %.1f us, %s", about, took, result.choice, result.time, gain)
    return result.choice


def fingerprint() -> str:
    """What a graph compiled now would depend on, for graph caches; "" while nothing has been measured.

    A graph that is tuned as it is compiled depends on nothing that was there before.
    """
    from .families import FAMILIES

    if not context.is_open() or setting("tune"):
        return ""
    return results().fingerprint(list(FAMILIES.values()))


def install() -> None:
    """Let every family ask ``choice``. Idempotent."""
    from .. import convolution_tiles, depthwise, scheduling, splits
    from ..attention import tiles
    from ..fused import choose as linears
    from ..gemm import choose
    from . import kernels
    from .attention import ATTENTION
    from .convolution import CONVOLUTION
    from .depthwise import DEPTHWISE
    from .gemm import GEMM
    from .linears import LINEARS
    from .splits import SPLITS

    choose.tuned = lambda problem: choice(GEMM, problem)
    linears.tuned = lambda layers: choice(LINEARS, layers) if _asks(LINEARS) else None
    convolution_tiles.tuned = lambda problem: choice(CONVOLUTION, problem)
    depthwise.tuned = lambda problem: choice(DEPTHWISE, problem)

    def attention(problem: Any) -> dict[str, Any]:
        chosen = choice(ATTENTION, problem)
        return {} if chosen is None else chosen.settings()

    tiles.tuned = attention
    splits.tuned = lambda problem: choice(SPLITS, problem()) if _asks(SPLITS) else None
    scheduling.tuned = lambda scheduling, features: kernels.settings(
        scheduling, features, choice, searching_now(), results()
    )
