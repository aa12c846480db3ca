"""`mlxd doctor`: looks at everything that an installation depends on, and says what mends it.

Finding out is here, judging in `daemon.doctor`. Whatever cannot be found out is a finding of its
own and stops nothing.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import typer

from daemon import doctor as checks
from daemon import paths
from daemon.agent_configs import check_agents
from daemon.cli.asking import JsonFlag
from daemon.cli.exits import ExitCode
from daemon.cli.flags import disk_folder_of, settings_file
from daemon.cli.output import print_json, show
from daemon.doctor import DiskCacheFacts, Finding, Machine, ModelFacts, ServiceFacts, Severity
from daemon.errors import CommandFailed, ConfigurationError, NotRunning
from daemon.settings import Settings, resolve
from daemon.starts import Starts
from daemon.status import DaemonStatus
from launchd.errors import ServiceError
from launchd.tools import run_tool
from mlx_backend.errors import BackendError

SYSCTL = "/usr/sbin/sysctl"


def doctor(as_json: JsonFlag = False) -> None:
    """Check this installation and this machine, and say what mends what is wrong."""
    from daemon.views.doctor import doctor_json, doctor_view

    findings = list(examine())
    if as_json:
        print_json(doctor_json(findings))
    else:
        show(doctor_view(findings))
    raise typer.Exit(code_of(checks.worst(findings)))


def code_of(worst: Severity) -> ExitCode:
    codes = {Severity.WARNING: ExitCode.DEGRADED, Severity.PROBLEM: ExitCode.FAILED}
    return codes.get(worst, ExitCode.READY)


def examine() -> Iterator[Finding]:
    yield checks.check_machine(_machine())
    yield from checks.check_packages({name: _version(name) for name in checks.TESTED})
    try:
        file = settings_file()
        settings = resolve({}, file=file).settings
        written = len(file.values) if file.path.is_file() else None
        yield checks.check_settings(str(file.path), written)
    except ConfigurationError as error:
        yield checks.check_settings("", None, str(error))
        settings = Settings()
    yield checks.check_model(_model(settings))
    found, stranger = _who_answers(settings.port)
    yield from checks.check_port(settings.port, found, stranger)
    if platform.system() == "Darwin":
        yield checks.check_service(_service())
    yield from checks.check_starts(Starts(paths.starts_file()).read(), found is not None)
    yield _logs()
    yield _disk(paths.models_folder())
    yield from checks.check_disk_cache(_disk_cache(settings, found))
    yield from check_agents(Path.home(), settings.port)


def _machine() -> Machine:
    system, machine = platform.system(), platform.machine()
    if system != "Darwin":
        return Machine(system, machine)
    chip = run_tool((SYSCTL, "-n", "machdep.cpu.brand_string")).stdout.strip()
    return Machine(system, machine, platform.mac_ver()[0], chip)


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _model(settings: Settings) -> ModelFacts:
    try:
        from daemon.models import Shelf, default_model, memory_for_models

        model = default_model(Shelf(settings.context_size), settings.model, settings.name)
        return ModelFacts(model.name, model.weight_bytes, memory_for_models())
    except (ConfigurationError, BackendError, ImportError) as error:
        return ModelFacts(error=str(error))


def _who_answers(port: int) -> tuple[DaemonStatus | None, str]:
    from daemon.client import Client

    try:
        return Client(port, paths.token_file()).status(), ""
    except NotRunning:
        return None, ""
    except CommandFailed as error:
        return None, str(error)


def _service() -> ServiceFacts:
    from daemon.cli.this_mac import this_mac

    try:
        agent = this_mac().agent
        state, program = agent.state(), agent.program()
    except (CommandFailed, ServiceError) as error:
        return ServiceFacts(error=str(error))
    missing = program if program and not os.access(program, os.X_OK) else ""
    return ServiceFacts(agent.is_installed, state.is_running, state.last_exit, missing)


def _logs() -> Finding:
    folder = paths.logs_folder()
    found = folder.glob("*") if folder.is_dir() else ()
    nbytes = sum(file.stat().st_size for file in found if file.is_file())
    is_writable = os.access(_existing(folder), os.W_OK)
    refusal = "" if is_writable else f"{folder} cannot be written"
    return checks.check_logs(str(folder), nbytes, refusal)


def _disk(folder: Path) -> Finding:
    return checks.check_disk(str(folder), shutil.disk_usage(_existing(folder)).free)


def _disk_cache(settings: Settings, found: DaemonStatus | None) -> DiskCacheFacts:
    status = None if found is None else found.engine.disk
    if settings.disk_cache_bytes == 0:
        return DiskCacheFacts(status=status)
    folder = disk_folder_of(settings)
    mode = folder.stat().st_mode if folder.exists() else None
    is_writable = os.access(_existing(folder), os.W_OK | os.X_OK)
    return DiskCacheFacts(str(folder), mode, is_writable, status)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(each for each in (folder, *folder.parents) if each.is_dir())
