"""Runs test files on software drivers that are not installed: `python tools/drivers.py [--only NAME] [FILE ...]`.

Owns where each driver comes from (packages of Debian, unpacked into a folder of their own, never installed) and the
table of what passed. Mesa 26's lavapipe has cooperative matrices, so their kernels run without a GPU; it wants a newer
C library than Debian 12 has, so Python runs under the one that comes with it. SwiftShader tells what it lacks.

Needs apt, dpkg and a Debian mirror; run it with the interpreter that the tests run with.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = f"{LIBRARIES}/ld-linux-x86-64.so.2"

# Every kind of template, and the tests that count on what a driver computes.
FILES = tuple(
    f"tests/codegen/test_{name}.py"
    for name in (
        "gemm_blocks", "gemm_integer", "gemm_quads", "matmul", "gemv", "attention", "attention_decode",
        "attention_gradient", "convolution", "convolution_products", "norm_training", "reductions", "row_sums",
        "determinism",
    )
)  # fmt: skip

SWEEP = "sweep over kernels"


@dataclass(frozen=True)
class Driver:
    """``package`` of Debian's ``suite`` holds the driver file ``library``; ``whole``: with all it depends on, the C
    library too."""

    suite: str
    package: str
    library: str
    whole: bool = False


DRIVERS = {
    "Mesa 25": Driver("bookworm-backports", "mesa-vulkan-drivers", f"{LIBRARIES}/libvulkan_lvp.so"),
    "Mesa 26": Driver("sid", "mesa-vulkan-drivers", f"{LIBRARIES}/libvulkan_lvp.so", whole=True),
    "SwiftShader": Driver("bookworm", "chromium-common", "usr/lib/chromium/libvk_swiftshader.so"),
}


def mirror() -> str:
    """Where this machine gets Debian's packages."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = [uri for uri in listed.stdout.split() if uri.rstrip("/").endswith("/debian")]
    if not found:
        raise SystemExit("apt knows no mirror of Debian: this tool unpacks Debian's packages")
    return found[0].rstrip("/")


def unpacked(driver: Driver, folder: Path) -> Path:
    """The folder with the driver's files, fetched if it is not there yet."""
    root = folder / "root"
    if (root / driver.library).exists():
        return root
    for name in ("lists/partial", "archives/partial", "debs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    debian = f"deb [signed-by={KEYRING}] {mirror()}"
    base = "" if driver.whole or driver.suite == "bookworm" else f"{debian} bookworm main\n"
    (folder / "sources.list").write_text(f"{base}{debian} {driver.suite} main\n")
    # What is already installed counts, unless the driver brings a C library that all of it must go with.
    status = "" if driver.whole else 'Dir::State::status "/var/lib/dpkg/status";\n'
    (folder / "status").touch()
    (folder / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{folder}/sources.list";\nDir::Etc::sourceparts "-";\n'
        f'Dir::State::lists "{folder}/lists";\nDir::State::status "{folder}/status";\n{status}'
        f'Dir::Cache "{folder}";\nDir::Cache::archives "{folder}/archives";\n'
    )
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}

    def apt(*args: str) -> str:
        return subprocess.run(
            ["apt-get", "-q", *args], cwd=folder / "debs", env=environment, check=True, capture_output=True, text=True
        ).stdout

    apt("update")
    wanted = [f"{driver.package}/{driver.suite}"]
    if driver.package != "chromium-common":
        found = apt("-s", "--no-install-recommends", "install", *wanted)
        wanted = [f"{name}={version}" for name, version in re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", found, re.M)]
    apt("download", *wanted)
    for package in sorted((folder / "debs").glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
    return root


def command(driver: Driver, root: Path) -> list[str]:
    """What runs Python with the driver's libraries in reach."""
    if not driver.whole:
        return [sys.executable]
    # Python's own library first: a distribution's of another version may lie among the others.
    folders = [sysconfig.get_config_var("LIBDIR"), root / LIBRARIES, f"/{LIBRARIES}"]
    path = ":".join(str(folder) for folder in folders if folder)
    return [str(root / LOADER), "--library-path", path, "--argv0", sys.executable, sys.executable]


def run(name: str, files: Sequence[str], cache: Path, limit: float, sweep: float) -> dict[str, str]:
    """What became of each file on driver ``name``: passed/failed/skipped, or why it did not run. ``sweep``: seconds of
    the sweep over kernels, whose status is in its place."""
    driver, folder = DRIVERS[name], cache / name.lower().replace(" ", "-")
    root = unpacked(driver, folder)
    manifest = folder / "icd.json"
    icd = {"library_path": str(root / driver.library), "api_version": "1.3.0"}
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    environment = {
        **os.environ,
        "VK_DRIVER_FILES": str(manifest),
        "VK_ICD_FILENAMES": str(manifest),
        "PYTHONPATH": str(ROOT),
        "VKINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    if not driver.whole:
        environment["LD_LIBRARY_PATH"] = str(root / LIBRARIES)
    python = command(driver, root)
    usable = "import vkinductor; print(vkinductor.device_info())"
    probe = subprocess.run([*python, "-c", usable], env=environment, cwd=ROOT, capture_output=True, text=True)
    lines = (probe.stdout if probe.returncode == 0 else probe.stderr).strip().splitlines()
    said = [line for line in lines if "lacks" in line] or lines[-1:] or ["no output"]
    print(f"{name}: {said[0]}", flush=True)
    if probe.returncode:
        return dict.fromkeys([*files, SWEEP], "-")
    results = {}
    if sweep:
        log = folder / "sweep.log"
        # In this process: one of its own would begin without the driver's C library.
        command_line = [*python, "-W", "ignore", "-m", "vkinductor", "sweep", "--workers", "0", "--seconds", str(sweep)]
        with log.open("w") as out:
            done = subprocess.run(command_line, env=environment, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        results[SWEEP] = {0: "1/0/0"}.get(done.returncode, "0/1/0")
        print(f"  {SWEEP}: {log.read_text().strip().splitlines()[-1]} ({log})", flush=True)
    for file in files:
        log = folder / f"{Path(file).stem}.log"
        try:
            with log.open("w") as out:
                subprocess.run(
                    [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", file],
                    env=environment, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, timeout=limit,
                )  # fmt: skip
        except subprocess.TimeoutExpired:
            pass
        results[file] = summary(log.read_text())
        print(f"  {file}: {results[file]} ({log})", flush=True)
    return results


def summary(log: str) -> str:
    """passed/failed/skipped of pytest's output, counted by its dots where it did not come to its end."""
    last = re.findall(r"^.*(?:passed|failed|skipped|error).* in [\d.]+s.*$", log, re.M)
    if last:
        kinds = ("passed", "failed|errors?", "skipped")
        counts = [sum(int(n) for n in re.findall(rf"(\d+) (?:{kind})", last[-1])) for kind in kinds]
        return "/".join(map(str, counts))
    if not re.search(r"^[.FEsx]+(?=\s|$)", log, re.M):
        return "did not begin"
    dots = "".join(re.findall(r"^[.FEsx]+(?=\s|$)", log, re.M))
    return f"{dots.count('.')}/{dots.count('F') + dots.count('E')}/{dots.count('s')} of unfinished"


def main() -> int:
    """Exit status 1 where a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", default=list(FILES), help="test files (default: those of the templates)")
    parser.add_argument("--only", action="append", choices=DRIVERS, help="a driver (default: all)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "drivers", help="where drivers are unpacked")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds a file may take")
    parser.add_argument("--sweep", type=float, default=0.0, help="seconds of `python -m vkinductor sweep` before them")
    options = parser.parse_args()
    names = options.only or list(DRIVERS)
    table = {name: run(name, options.files, options.folder.resolve(), options.limit, options.sweep) for name in names}
    print(f"\n{'passed/failed/skipped':44}" + "".join(f"{name:>16}" for name in names))
    for file in [*([SWEEP] if options.sweep else []), *options.files]:
        print(f"{file:44}" + "".join(f"{table[name][file]:>16}" for name in names))
    return any(not re.fullmatch(r"-|\d+/0/\d+", result) for row in table.values() for result in row.values())


if __name__ == "__main__":
    sys.exit(main())
