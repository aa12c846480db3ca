"""A daemon with a scripted model, as a process: `scripted_daemon.py PORT OPTIONS_AS_JSON`.

Options: `script` (fields of `fakes.Script`; `reply` is a text, token ids, "echo" or "endless"),
`faults` (fields of `fakes.Faults`), `kind`, `settings` (fields of `Settings`), `keep_alive`
(seconds without a byte, seconds without an event), `grace_seconds`, `load_error`, `has_token`,
`disk` (the folder of what outlives it), `is_service` (its starts are counted), `file_limits` (soft,
hard), `log` (a file: logs as `mlxd serve` does).
"""

import atexit
import json
import logging
import resource
import sys
from pathlib import Path

from daemon import paths
from daemon.api.sse import KeepAlive
from daemon.errors import ConfigurationError
from daemon.logs import start_logging
from daemon.serve import serve
from daemon.settings import Settings
from daemon.starts import Starts
from mlx_backend.errors import ModelDamaged
from mlx_backend.messages import CacheKind
from tests.fakes import Faults, Script, ScriptedModel, echo_reply, fixed_reply

EXIT_CONFIGURATION = 78


def script_of(options: dict) -> Script:
    fields = dict(options.get("script", {}))
    match fields.pop("reply", None):
        case None:
            pass
        case "echo":
            fields["reply"] = echo_reply()
        case "endless":
            fields["reply"] = lambda state, index: 97
        case list(ids):
            fields["reply"] = fixed_reply(ids)
        case str(text):
            fields["reply"] = fixed_reply(list(text.encode()))
    return Script(**fields, faults=Faults(**options.get("faults", {})))


def main() -> int:
    atexit.register(print, "the interpreter ends", file=sys.stderr)
    port, options = int(sys.argv[1]), json.loads(sys.argv[2])
    if "log" in options:
        start_logging("info", Path(options["log"]))
    else:
        logging.basicConfig(level="INFO")
    if "file_limits" in options:
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(options["file_limits"]))
    script = script_of(options)

    def load() -> ScriptedModel:
        if "load_error" in options:
            raise ModelDamaged(options["load_error"])
        return ScriptedModel(script, CacheKind(options.get("kind", "sliceable")))

    settings = {"prefix_cache_bytes": 10_000_000, **options.get("settings", {})}
    if "grace_seconds" in options:
        settings["shutdown_grace_seconds"] = options["grace_seconds"]
    try:
        return serve(
            Settings(port=port, **settings),
            load=load,
            keep_alive=KeepAlive(*options.get("keep_alive", ())),
            token_file=paths.token_file() if options.get("has_token") else None,
            disk_folder=Path(options["disk"]) if "disk" in options else None,
            starts=Starts(paths.starts_file(), counted=True) if options.get("is_service") else None,
        )
    except ConfigurationError as error:
        print(f"refused: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION


if __name__ == "__main__":
    sys.exit(main())
