"""From the command line to a command, and from what it raises to an exit code."""

from __future__ import annotations

import sys

import typer

from daemon.cli import asking, configuration, doctor, logs, models, service, work
from daemon.cli.exits import ExitCode
from daemon.cli.output import complain
from daemon.errors import CommandFailed, ConfigurationError, NotAnswering, NotRunning, Refused
from daemon.settings import require_home
from daemon.signals import ignore_from_now_on
from launchd.errors import ServiceError
from mlx_backend.errors import BackendError

COMMANDS = (
    work.serve,
    asking.status,
    asking.top,
    asking.why,
    asking.cache,
    asking.sessions,
    models.models,
    models.pull,
    models.use,
    models.load,
    models.unload,
    models.rm,
    configuration.config,
    doctor.doctor,
    logs.logs,
    service.install,
    service.uninstall,
    service.start,
    service.stop,
    service.restart,
    service.menubar,
    work.demo,
    work.bench,
    work.version,
)

app = typer.Typer(
    name="mlxd",
    help="An inference daemon for local coding agents that reads no prompt token twice.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """The console script: what goes wrong for a known reason is one sentence, not a traceback."""
    try:
        require_home()
        app()
    except ConfigurationError as error:
        complain(str(error))
        sys.exit(ExitCode.CONFIGURATION)
    except (BackendError, CommandFailed, ServiceError) as error:
        complain(str(error))
        sys.exit(code_for(error))
    finally:
        ignore_from_now_on()


def code_for(error: Exception) -> ExitCode:
    match error:
        case NotRunning():
            return ExitCode.STOPPED
        case NotAnswering() | Refused(status=503):
            return ExitCode.DEGRADED
        case _:
            return ExitCode.FAILED
