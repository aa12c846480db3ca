"""Clients from their registries, at pinned versions, in a cache folder of the user's.

Nothing of them is kept in this repository. A folder appears whole or not at all, and is used again
by later runs. Where there is no Node, no such Python or no registry, the test is skipped and says
which of them it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemon import paths

INSTALL_SECONDS = 300
NPM_OPTIONS = (
    "--no-audit",
    "--no-fund",
    "--no-package-lock",
    "--no-save",
    "--loglevel=error",
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",
    "--fetch-retry-maxtimeout=5000",
)
NEWER_PYTHONS = ("python3.13", "python3.14", "python3.12")

_refused: dict[Package, str] = {}
"""Why what cannot be installed in this run cannot be."""


@dataclass(frozen=True)
class Package:
    """What to install. `executable` is what the package calls its command."""

    name: str
    version: str
    executable: str

    @property
    def folder(self) -> Path:
        told = f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}"
        return paths.cache_folder() / "clients" / told


def npm(package: Package) -> Path:
    """The command of a package from npm; skips the test where it cannot be had."""
    program = shutil.which("npm")
    if program is None or shutil.which("node") is None:
        pytest.skip("Node.js is not installed here")

    def install(folder: Path) -> None:
        _run([program, "install", *NPM_OPTIONS, f"--prefix={folder}", _pinned(package, "@")])

    return _installed(package, install) / "node_modules" / ".bin" / package.executable


def pip(package: Package, minimum: tuple[int, int]) -> Path:
    """The Python of an environment with a package from PyPI; skips where it cannot be had."""
    python = _newer_python(minimum)
    if python is None:
        pytest.skip(f"there is no Python {minimum[0]}.{minimum[1]} or later here")

    def install(folder: Path) -> None:
        """Environments cannot be moved: this one is made in its place."""
        folder.rmdir()
        _run([python, "-m", "venv", str(package.folder)])
        inside = str(package.folder / "bin" / "python")
        try:
            _run([inside, "-m", "pip", "install", "--quiet", _pinned(package, "==")])
        except BaseException:
            shutil.rmtree(package.folder)
            raise

    return _installed(package, install) / "bin" / "python"


def _pinned(package: Package, sign: str) -> str:
    return f"{package.name}{sign}{package.version}"


def _installed(package: Package, install: Callable[[Path], None]) -> Path:
    if package.folder.is_dir():
        return package.folder
    if package in _refused:  # it takes long to find that out
        pytest.skip(_refused[package])
    package.folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=package.folder.parent))
    try:
        install(scratch)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(scratch, ignore_errors=True)
        told = f"{package.name} {package.version} cannot be installed: {_why(error)}"
        _refused[package] = told
        pytest.skip(told)
    if scratch.is_dir():
        scratch.rename(package.folder)
    return package.folder


def _run(command: Sequence[str]) -> None:
    subprocess.run(
        command, check=True, timeout=INSTALL_SECONDS, capture_output=True, stdin=subprocess.DEVNULL
    )


def _why(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    lines = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
    codes = [line for line in lines if line.startswith("npm error code")]
    return (codes or lines[-1:] or [str(error)])[0]


def _newer_python(minimum: tuple[int, int]) -> str | None:
    """A Python that starts: a version manager's stand-in may be on the path without one."""
    managed = sorted(Path.home().glob(".pyenv/versions/*/bin/python3"))
    for candidate in (*NEWER_PYTHONS, *map(str, managed)):
        found = shutil.which(candidate)
        if found is not None and _version(found) >= minimum:
            return found
    return None


def _version(python: str) -> tuple[int, ...]:
    said = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"],
        capture_output=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return tuple(map(int, said.stdout.split())) if said.returncode == 0 else ()
