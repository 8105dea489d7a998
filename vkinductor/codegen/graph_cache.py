"""Inductor's graph caches on disk, made safe to read: what a crash, a full disk or a stray tool left is a miss.

Inductor writes its files atomically but believes whatever it finds: a flipped byte in a cached graph is a kernel with
another number in it. Two of its habits make checking possible: a cached graph's file is named after the hash of its
content, and a generated program is at hand when its file is looked for. Owns these checks, and the folder's
replacement when it cannot be written. What makes two graphs different is `cache_key`'s.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from vkinductor.runtime.errors import CacheError

from . import tuning

log = logging.getLogger(__name__)

# Inductor's folders of cached graphs, under its cache folder.
GRAPH_FOLDERS = ("fxgraph", "aotautograd")
# File names of at least this length are hashes of the content (torch 2.11 also calls files "entry").
HASH_LENGTH = 40


def folder() -> Path:
    """Inductor's cache folder (TORCHINDUCTOR_CACHE_DIR, or torch's default)."""
    from torch._inductor.runtime.runtime_utils import cache_dir

    return Path(cache_dir())


def graph_files() -> list[Path]:
    """The files of cached graphs, of every backend: Inductor keeps them together."""
    return sorted(file for name in GRAPH_FOLDERS for file in (folder() / name).rglob("*") if file.is_file())


def clear() -> int:
    """Removes the cached graphs of every backend; returns the bytes that were freed.

    Raises CacheError when some cannot be removed.
    """
    freed = 0
    for file in graph_files():
        try:
            nbytes = file.stat().st_size
            file.unlink()
        except FileNotFoundError:
            continue  # another process was faster
        except OSError as error:
            raise CacheError(f"the cached graph {file} cannot be removed: {error}") from error
        freed += nbytes
    return freed


@functools.cache
def install() -> None:
    """Check what Inductor reads from its cache, and give it a folder that can be written. Idempotent."""
    from torch._inductor import codecache
    from torch._inductor.output_code import CompiledFxGraph

    _use_writable_folder()
    _check_graphs(codecache)
    _check_programs(codecache, CompiledFxGraph)
    _guard_sizes(codecache)


def _guard_sizes(codecache: Any) -> None:
    """Let cached graphs keep the guards on all sizes of their vulkan inputs.

    Inductor keeps those on the numbers among a graph's inputs. Dynamo passes every symbolic size as one; the graphs of
    eager operators have none, and one that was lowered for 5x5 kernels would serve 3x3 ones. A size that lowering has
    fixed is no guard that can be kept: such a graph is not cached.
    """
    filter_symints = codecache.GuardedCache._filter_backed_symints.__func__
    save = codecache.FxGraphCache._save_graph

    def filter_backed_symints(cls: Any, inputs: Any) -> list[torch.SymInt]:
        found: list[torch.SymInt] = filter_symints(cls, inputs)
        known = {s.node.expr for s in found}
        for size in _sizes(inputs):
            if size.node.expr.is_Symbol and size.node.expr not in known:
                known.add(size.node.expr)
                found += filter_symints(cls, [size])
        return found

    def save_graph(key: str, compiled_graph: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> None:
        guarded = {s.node._expr for s in example_inputs if isinstance(s, torch.SymInt)}
        fixed = [s for s in _sizes(example_inputs) if s.node.expr.is_number and s.node._expr not in guarded]
        # What was to be tuned and had no time for it would stay as it is for good.
        if not fixed and tuning.complete():
            save(key, compiled_graph, example_inputs, *args, **kwargs)

    codecache.GuardedCache._filter_backed_symints = classmethod(filter_backed_symints)
    codecache.FxGraphCache._save_graph = staticmethod(save_graph)


def _sizes(inputs: Any) -> list[torch.SymInt]:
    """The sizes and strides of the vulkan tensors among a graph's inputs that are, or were, symbols."""
    tensors = [t for t in inputs if isinstance(t, torch.Tensor) and t.device.type == "vulkan"]
    return [s for t in tensors for s in (*t.size(), *t.stride()) if isinstance(s, torch.SymInt)]


def _use_writable_folder() -> None:
    """Inductor fails to compile when it cannot write: a temporary folder is better than that."""
    try:
        root = folder()
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as probe:
            probe.write(bytes(4096))
    except OSError as error:
        warnings.warn(
            f"Inductor's cache folder cannot be written ({error}): graphs compiled now last for this process only. "
            "Set TORCHINDUCTOR_CACHE_DIR to a folder that can be written.",
            RuntimeWarning,
            stacklevel=2,
        )
        # Kept by the variable itself: processes that Inductor starts must find the same folder.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = _temporary_folder().name


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="vkinductor-graphs-", ignore_cleanup_errors=True)


def _check_graphs(codecache: Any) -> None:
    """Before Inductor looks at the graphs of a key, those that are not what their names say go."""
    original = codecache.GuardedCache.iterate_over_candidates.__func__

    def iterate_over_candidates(cls: Any, local: bool, remote_cache: Any, key: str) -> Any:
        if local:
            remove_damaged(Path(cls._get_tmp_dir_for_key(key)), codecache.sha256_hash)
        return original(cls, local, remote_cache, key)

    codecache.GuardedCache.iterate_over_candidates = classmethod(iterate_over_candidates)


def remove_damaged(graphs: Path, name_of: Any) -> int:
    """Removes the files of a folder of cached graphs whose content has another name; returns how many."""
    removed = 0
    try:
        names = sorted(os.listdir(graphs))
    except OSError:
        return 0
    for name in names:
        path = graphs / name

        if name.startswith(".") or len(name) < HASH_LENGTH:
            continue
        try:
            if name_of(path.read_bytes()) == name:
                continue
            path.unlink()
        except OSError:
            continue  # not ours to remove, or gone already: Inductor skips what it cannot read
        removed += 1
        log.info("%s was damaged and is removed", path)
    return removed


def _check_programs(codecache: Any, compiled_graph: Any) -> None:
    """A generated program's file is written anew when it does not hold the program."""
    write = codecache.write
    write_to_disk = compiled_graph.write_to_disk

    @functools.wraps(write)
    def checked_write(content: Any, extension: str, *args: Any, **kwargs: Any) -> Any:
        basename, path = write(content, extension, *args, **kwargs)
        if extension == "py":
            _heal(codecache, path, content)
        return basename, path

    @functools.wraps(write_to_disk)
    def checked_write_to_disk(self: Any) -> str:
        path: str = write_to_disk(self)
        _heal(codecache, path, self.source_code)
        return path

    codecache.write = checked_write
    compiled_graph.write_to_disk = checked_write_to_disk


def _heal(codecache: Any, path: str, content: str | bytes) -> None:
    wanted = content.encode() if isinstance(content, str) else content
    with contextlib.suppress(OSError):
        if Path(path).read_bytes().strip() == wanted.strip():
            return
    codecache.write_atomic(path, content, make_dirs=True)
