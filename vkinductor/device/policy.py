"""What happens when an operator would run on the CPU: an error, a warning, or nothing.

Owns the policy of the process and, by thread, that of the compiled graph whose operator is running. Who asks is
`fallback`; what a graph knows of its operators at compile time is `codegen.fallbacks`'.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType

from vkinductor.device.registry import registry

POLICIES = ("error", "warn", "allow")


@dataclass(frozen=True)
class Site:
    """An operator of a compiled graph. `policy`: the graph's. `where`: the user's source line, "" if unknown."""

    policy: str
    where: str


_here = threading.local()


def check(policy: str) -> str:
    """`policy` itself. Raises ValueError that lists the valid ones for any other."""
    if policy not in POLICIES:
        raise ValueError(f"unknown fallback policy {policy!r}: it is one of {', '.join(POLICIES)}")
    return policy


def current() -> Site:
    """The policy that holds on this thread now: that of the graph that is running, else the process's."""
    sites = getattr(_here, "sites", None)
    return sites[-1] if sites else Site(registry.fallback_policy, "")


class fallback_site:
    """What generated programs put around an operator that is not one of their kernels."""

    __slots__ = ("_site",)

    def __init__(self, policy: str, where: str) -> None:
        self._site = Site(policy, where)

    def __enter__(self) -> None:
        if not hasattr(_here, "sites"):
            _here.sites = []
        _here.sites.append(self._site)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _here.sites.pop()


class set_fallback:
    """Sets what an operator that would run on the CPU does from now on, in every thread of the process.

    "error" raises FallbackError, "warn" (the default) warns once for each operator, "allow" says nothing. In a `with`
    statement the policy before comes back at its end. A graph compiled with ``options={"fallback": ...}`` has its own.

    Raises ValueError for another policy.
    """

    def __init__(self, policy: str) -> None:
        check(policy)
        self._before = registry.fallback_policy
        registry.fallback_policy = policy

    def __enter__(self) -> set_fallback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        registry.fallback_policy = self._before
