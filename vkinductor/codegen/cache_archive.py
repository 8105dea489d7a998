"""A cache as one file: this package's entries and Inductor's cached graphs, to be shipped with a model.

Owns the archive's form (a tar file) and what is accepted from one. Entries that do not fit the machine that unpacks
them are never asked for: device, driver, torch and code are part of every key. A cached graph is Python code: take
archives only from where you would take a program.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

from vkinductor.runtime.errors import CacheError
from vkinductor.runtime.store import DiskStore

from . import graph_cache

_OURS = "vkinductor/"
_GRAPHS = "inductor/"
_GRAPH_NAME = re.compile(rf"(?:{'|'.join(graph_cache.GRAPH_FOLDERS)})(?:/[a-z0-9_=-]+){{2,3}}")


@dataclass(frozen=True)
class Contents:
    """What was packed or unpacked: numbers of entries, and their bytes. Entries that were there already count not."""

    entries: int = 0
    graphs: int = 0
    bytes: int = 0


def pack(store: DiskStore, target: str | os.PathLike[str]) -> Contents:
    """Write everything that is cached to the file ``target``. Raises CacheError when it cannot be written."""
    entries = graphs = nbytes = 0
    root = graph_cache.folder()
    try:
        with tarfile.open(target, "w") as archive:
            for name, content in store.export():
                _add(archive, _OURS + name, content)
                entries, nbytes = entries + 1, nbytes + len(content)
            for file in graph_cache.graph_files():
                name = file.relative_to(root).as_posix()
                if not _GRAPH_NAME.fullmatch(name):
                    continue  # half written, or not Inductor's
                content = file.read_bytes()
                _add(archive, _GRAPHS + name, content)
                graphs, nbytes = graphs + 1, nbytes + len(content)
    except OSError as error:
        raise CacheError(f"the cache cannot be packed into {target}: {error}") from error
    return Contents(entries, graphs, nbytes)


def unpack(store: DiskStore, source: str | os.PathLike[str]) -> Contents:
    """Add what the archive ``source`` holds to the caches.

    Raises CacheError for a file that is no such archive (what came before the fault stays) and for a folder that
    cannot be written.
    """
    entries = graphs = nbytes = 0
    try:
        with tarfile.open(source, "r:*") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is None:
                    raise CacheError(f"{source} is no packed cache: {member.name!r} is not a plain file")
                content = file.read()
                if member.name.startswith(_OURS):
                    added = store.adopt(member.name[len(_OURS) :], content)
                    entries += added
                else:
                    added = _adopt_graph(source, member.name, content)
                    graphs += added
                nbytes += len(content) if added else 0
    except (OSError, tarfile.TarError, EOFError) as error:
        raise CacheError(f"{source} cannot be unpacked: {error}") from error
    return Contents(entries, graphs, nbytes)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)  # no times, owners or modes: the same cache packs to the same bytes
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _adopt_graph(source: object, member: str, content: bytes) -> bool:
    from torch._inductor.codecache import sha256_hash, write_atomic

    name = member[len(_GRAPHS) :]
    if not member.startswith(_GRAPHS) or not _GRAPH_NAME.fullmatch(name):
        raise CacheError(f"{source} is no packed cache: it holds {member!r}")
    path = Path(graph_cache.folder(), *name.split("/"))
    if len(path.name) >= graph_cache.HASH_LENGTH and path.name != sha256_hash(content):
        raise CacheError(f"the graph {member!r} in {source} is damaged: pack the cache anew")
    if path.exists():
        return False
    write_atomic(str(path), content, make_dirs=True)
    return True
