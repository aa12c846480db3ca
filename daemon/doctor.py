"""What may be wrong with an installation, and what to do about it: judgements on plain facts.

Every check is a pure function of what was found out, so that each machine can be described in a
test. Who finds out is `cli.doctor`, which is the only one to ask tools, files and the daemon.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from daemon import __version__
from daemon.disk_status import DiskStatus
from daemon.starts import Memory
from daemon.status import DaemonStatus

TESTED = {"mlx": "0.32.4", "mlx-lm": "0.32.2"}
"""The versions that the code was written and tested against; a test compares the package's own."""

OLDEST_MACOS = 14
MEMORY_SHARE = 0.75
"""Weights beyond this share of what models may take leave too little for prompts."""

SCARCE_DISK_BYTES, FULL_DISK_BYTES = 10 * 10**9, 10**9
LARGE_LOG_BYTES = 100 * 10**6
FOR_OTHERS = 0o077
REINSTALL = "Install mlxd anew, in an environment of its own: `uv tool install --force mlxd`."


class Severity(IntEnum):
    """`NOTE`: may well be meant. `PROBLEM`: it cannot work like this."""

    OK = 0
    NOTE = 1
    WARNING = 2
    PROBLEM = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what mends it, "" where nothing is to be done."""

    check: str
    severity: Severity
    words: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """`system` as in `platform.system()`, `release` the version of macOS, `chip` its brand."""

    system: str
    machine: str
    release: str = ""
    chip: str = ""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The default model: its name and weights, or why there is none. Bytes; 0 is unknown."""

    name: str = ""
    weight_bytes: int = 0
    memory_bytes: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What launchd knows of the service; `missing` is the program of its plist, if it is gone."""

    is_installed: bool = False
    is_running: bool = False
    last_exit: int | None = None
    missing: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class DiskCacheFacts:
    """The disk cache's `folder`; "" if it is turned off. `mode`: its rights, None while it is not
    there. `status`: what a running daemon says of it."""

    folder: str = ""
    mode: int | None = None
    is_writable: bool = True
    status: DiskStatus | None = None


def worst(findings: Iterable[Finding]) -> Severity:
    return max((finding.severity for finding in findings), default=Severity.OK)


def check_machine(machine: Machine) -> Finding:
    name = "machine"
    if machine.system != "Darwin":
        words = f"{machine.system}: MLX runs on the CPU here, which is for trying out and for tests"
        return Finding(name, Severity.NOTE, words)
    if machine.machine != "arm64":
        what = "This Python is for Intel processors" if "Apple" in machine.chip else "An Intel Mac"
        fix = "Install a Python for Apple silicon: `uv python install`, then mlxd anew."
        return Finding(name, Severity.PROBLEM, f"{what}; MLX needs Apple silicon", fix)
    words = f"macOS {machine.release}, {machine.chip or 'Apple silicon'}"
    major = re.match(r"\d+", machine.release)
    if major is not None and int(major[0]) < OLDEST_MACOS:
        fix = f"Update to macOS {OLDEST_MACOS} or later."
        return Finding(name, Severity.PROBLEM, f"{words}: too old for MLX", fix)
    return Finding(name, Severity.OK, words)


def check_packages(installed: Mapping[str, str | None]) -> list[Finding]:
    """`installed` versions by name; None for a package that is not there."""
    return [_package(name, installed.get(name), tested) for name, tested in TESTED.items()]


def _package(name: str, version: str | None, tested: str) -> Finding:
    if version is None:
        return Finding(name, Severity.PROBLEM, "is not installed", REINSTALL)
    if version == tested:
        return Finding(name, Severity.OK, f"{version}, as tested")
    words = f"{version}; tested with {tested}"
    if version.split(".")[:2] != tested.split(".")[:2]:
        return Finding(name, Severity.WARNING, words, REINSTALL)
    return Finding(name, Severity.OK, words)


def check_model(model: ModelFacts) -> Finding:
    name = "model"
    if model.error:
        fix = "`mlxd models` lists those that are here, `mlxd pull REPO` fetches one."
        return Finding(name, Severity.PROBLEM, model.error, fix)
    words = f"{model.name}: {_size(model.weight_bytes)} of weights"
    if not model.memory_bytes:
        return Finding(name, Severity.OK, words)
    words += f", {_size(model.memory_bytes)} for models on this machine"
    fix = "Choose a smaller one, or one with fewer bits per weight: `mlxd use MODEL`."
    if model.weight_bytes > model.memory_bytes:
        return Finding(name, Severity.PROBLEM, f"{words}: it cannot be loaded", fix)
    if model.weight_bytes > MEMORY_SHARE * model.memory_bytes:
        return Finding(name, Severity.WARNING, f"{words}: little is left for prompts", fix)
    return Finding(name, Severity.OK, words)


def check_port(port: int, found: DaemonStatus | None, stranger: str = "") -> list[Finding]:
    """Who answers on the port: a daemon, or a `stranger` in words, or nobody."""
    name = "port"
    if stranger:
        fix = "Stop what listens there, or choose another port: `mlxd config set port N`."
        return [Finding(name, Severity.PROBLEM, stranger, fix)]
    if found is None:
        fix = "`mlxd start` starts the service, `mlxd serve` a daemon in the foreground."
        return [Finding(name, Severity.NOTE, f"{port} is free: no daemon runs", fix)]
    words = f"mlxd {found.version} answers on {port} (process {found.pid})"
    if found.version != __version__:
        words += f", while this is {__version__}"
        return [Finding(name, Severity.WARNING, words, "`mlxd restart` runs the installed one.")]
    return [Finding(name, Severity.OK, words), *_running(found)]


def _running(found: DaemonStatus) -> Iterable[Finding]:
    model, machine = found.engine.model, found.machine
    if model.state == "failed":
        fix = "`mlxd logs` shows what led to it; `mlxd load` tries again."
        yield Finding("daemon", Severity.PROBLEM, f"the model failed: {model.error}", fix)
    if machine.memory_pressure in ("warning", "critical"):
        words = f"memory is short ({machine.memory_pressure}): the cache gives back what it holds"
        yield Finding("daemon", Severity.WARNING, words, "End other programs, or `mlxd unload`.")
    if machine.is_low_power:
        words = "low-power mode makes answers slower"
        yield Finding("daemon", Severity.NOTE, words, "System Settings, Battery, Low Power Mode.")
    if machine.heat in ("serious", "critical"):
        yield Finding("daemon", Severity.NOTE, f"heat is {machine.heat}: the chip runs slower")


def check_service(service: ServiceFacts) -> Finding:
    name = "service"
    if service.error:
        return Finding(name, Severity.WARNING, service.error)
    if not service.is_installed:
        fix = "`mlxd install` makes it start at every login."
        return Finding(name, Severity.NOTE, "not installed", fix)
    if service.missing:
        words = f"its program is gone: {service.missing}"
        return Finding(name, Severity.PROBLEM, words, "`mlxd install` names the present one.")
    if service.is_running:
        return Finding(name, Severity.OK, "installed, and runs")
    if service.last_exit not in (None, 0):
        words = f"installed, and ended with exit code {service.last_exit}"
        return Finding(name, Severity.WARNING, words, "`mlxd logs` shows why.")
    return Finding(name, Severity.NOTE, "installed, and stopped", "`mlxd start` starts it.")


def check_starts(memory: Memory, is_running: bool = False) -> Iterable[Finding]:
    """What the last starts left behind."""
    if memory.refusal and is_running:
        yield Finding("starts", Severity.NOTE, f"another one was refused: {memory.refusal}")
    elif memory.refusal:
        words = f"the last one was refused: {memory.refusal}"
        yield Finding("starts", Severity.PROBLEM, words, "Mend that, then start again.")
    if memory.crashes:
        words = f"{len(memory.crashes)} crashed within the last minutes"
        yield Finding("starts", Severity.WARNING, words, "`mlxd logs` shows what led to that.")


def check_settings(path: str, written: int | None, error: str = "") -> Finding:
    """`written`: how many keys stand in the file; None if there is no file."""
    if error:
        fix = "Mend the line, or take it out: `mlxd config unset KEY`."
        return Finding("settings", Severity.PROBLEM, error, fix)
    if written is None:
        return Finding("settings", Severity.OK, f"defaults; {path} is not there")
    noun = "setting" if written == 1 else "settings"
    return Finding("settings", Severity.OK, f"{written} {noun} in {path}")


def check_logs(folder: str, nbytes: int, refusal: str = "") -> Finding:
    if refusal:
        fix = f"Make {folder} yours: `sudo chown -R $USER {folder}`."
        return Finding("logs", Severity.WARNING, f"nothing can be logged: {refusal}", fix)
    words = f"{_size(nbytes)} in {folder}"
    if nbytes > LARGE_LOG_BYTES:
        return Finding("logs", Severity.WARNING, words, f"Delete what you do not need in {folder}.")
    return Finding("logs", Severity.OK, words)


def check_disk(folder: str, free_bytes: int) -> Finding:
    words = f"{_size(free_bytes)} are free for {folder}"
    fix = (
        "Delete models that you do not use (`mlxd models`, `mlxd rm MODEL`), or what was read: "
        "`mlxd cache clear --disk`."
    )
    if free_bytes < FULL_DISK_BYTES:
        return Finding("disk", Severity.PROBLEM, words, fix)
    if free_bytes < SCARCE_DISK_BYTES:
        return Finding("disk", Severity.WARNING, words, fix)
    return Finding("disk", Severity.OK, words)


def check_disk_cache(facts: DiskCacheFacts) -> Iterable[Finding]:
    name, folder = "disk cache", facts.folder
    if not folder:
        yield Finding(name, Severity.OK, "off: what was read is gone when the daemon ends")
    elif not facts.is_writable:
        fix = (
            f"If it is not yours, `sudo chown -R $USER {folder}`; if its disk cannot be written, "
            "`mlxd config set disk_cache_folder PATH` names another place."
        )
        yield Finding(name, Severity.WARNING, f"nothing can be kept in {folder}", fix)
    elif facts.mode is None:
        yield Finding(name, Severity.OK, f"{folder} is not there yet")
    elif not stat.S_ISDIR(facts.mode):
        fix = f"Move {folder} away, then `mlxd restart`."
        yield Finding(name, Severity.WARNING, f"{folder} is no folder", fix)
    elif facts.mode & FOR_OTHERS:
        fix = f"`chmod -R go= {folder}`; what is in it are prompts and answers."
        yield Finding(name, Severity.WARNING, f"others may look into {folder}", fix)
    else:
        yield Finding(name, Severity.OK, f"{folder}, which only you can read")
    if folder and facts.status is not None:
        yield from _disk_cache_at_work(name, facts.status)


def _disk_cache_at_work(name: str, disk: DiskStatus) -> Iterable[Finding]:
    if not disk.is_on:
        if disk.last_failure:
            words = f"the daemon keeps nothing there: {disk.last_failure}"
            yield Finding(name, Severity.WARNING, words, "Mend that, then `mlxd restart`.")
        return
    if disk.bad_files:
        words = f"files that could not be used, and went: {disk.bad_files}"
        fix = "If that happens again, check the disk itself, as with Disk Utility's First Aid."
        yield Finding(name, Severity.WARNING, words, fix)
    if disk.failed_writes:
        why = f", the last one: {disk.last_failure}" if disk.last_failure else ""
        words = f"writes that failed: {disk.failed_writes}{why}"
        yield Finding(name, Severity.WARNING, words, "`mlxd logs` shows which.")
    if disk.free_bytes < disk.floor_bytes:
        words = f"{_size(disk.free_bytes)} are free, and {_size(disk.floor_bytes)} are to stay so"
        fix = "Make room on the disk, or `mlxd config set disk_cache_free_bytes SIZE`."
        yield Finding(name, Severity.NOTE, f"nothing is written: {words}", fix)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 10**8 else f"{nbytes / 1e6:.1f} MB"
