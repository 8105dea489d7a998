"""What a committed file must not hold: paths of one machine, names of package registries."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Folders under which only one machine's own files lie. A path that any Debian system has (/usr/share) is
# fine.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|work|opt|mnt|Users|private)/\w|(?<!\w)[A-Z]:\\\\?Users")

# An address of a package index, by the words in such host names, by the usual path of an index, or as the
# value of an option of pip. Indexes come from the environment, never from a file here.
REGISTRY = re.compile(
    r"https?://[^/\s]*\b(?:pypi|registry|mirrors?|packages?|files|downloads?|deb|index)\b"
    r"|https?://[^\s\"')]*/(?:simple|whl)\b"
    r"|--(?:extra-)?index-url[= ]+https?:|(?:INDEX_URL|FIND_LINKS)=https?:",
    re.IGNORECASE,
)

TEXT_SIZE = 1 << 20  # bytes; a committed file is smaller, or it is not text that people read


def committed_files() -> list[Path]:
    try:
        result = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    paths = [ROOT / name for name in result.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


FILES = committed_files()


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in FILES:
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    return found


@pytest.mark.skipif(not FILES, reason="not a git checkout")
@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY], ids=["machine path", "registry"])
def test_no_committed_line_names(pattern):
    assert not lines_with(pattern)


@pytest.mark.skipif(not FILES, reason="not a git checkout")
def test_files_are_small():
    assert not [str(path.relative_to(ROOT)) for path in FILES if path.stat().st_size > TEXT_SIZE]


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("cd /work" + "/main", MACHINE_PATH),
        ("/home" + "/someone/x", MACHINE_PATH),
        ("https://" + "host.example/simple", REGISTRY),
        ("--index-url " + "https://host.example/x", REGISTRY),
    ],
)
def test_the_patterns_find_what_they_should(line, pattern):
    assert pattern.search(line)


@pytest.mark.parametrize("line", ["/usr/share/vulkan", "a/home/b", "see /root", "docs/work/main.md"])
def test_the_patterns_leave_the_rest_alone(line):
    assert not MACHINE_PATH.search(line)


def test_no_two_test_files_have_one_name():
    """pytest imports them by name alone, and refuses the second in a whole run."""
    names = Counter(path.name for path in committed_files() if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []
