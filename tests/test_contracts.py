"""Rules of the code that neither a type checker nor import-linter knows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("daemon", "mlx_backend", "launchd")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

THREADS = {"threading", "_thread", "concurrent.futures"}
ARRAY_LIBRARIES = {"mlx", "mlx_lm", "transformers", "tokenizers"}
FREE_OF_MLX = {"interface", "messages", "errors", "host_arrays", "journal", "blas"}
UNPICKLERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "torch", "yaml"}
RUNNERS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "runpy.run_path"}
MAX_MODULE_LINES = 400


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module named by an import, also by one inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_within(imported: str, names: set[str]) -> bool:
    return any(imported == name or imported.startswith(name + ".") for name in names)


def importers(names: set[str]) -> set[str]:
    return {
        module
        for module, tree in MODULES.items()
        if any(is_within(imported, names) for imported in imports(tree))
    }


def of_package(modules: set[str], package: str) -> set[str]:
    return {module for module in modules if module.split(".")[0] == package}


def test_one_module_starts_threads():
    assert importers(THREADS) == {"daemon.engine"}


def test_one_module_reads_the_environment():
    readers = {
        module
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"})
    }
    assert readers == {"daemon.settings"}


def writes_to_the_terminal(node: ast.AST) -> bool:
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return called in {"print", "sys.stdout.write", "sys.stderr.write"}


def test_one_module_prints():
    printers = {
        module
        for module, tree in MODULES.items()
        if any(map(writes_to_the_terminal, ast.walk(tree)))
    }
    assert printers == {"daemon.cli.output"}


def test_nothing_is_unpickled_and_no_text_is_run():
    """What is read from files or from the network is data. Tests of folders are in
    `tests/mlx_backend/test_untrusted_folders`."""
    assert importers(UNPICKLERS) == set()
    for module, tree in MODULES.items():
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not called & RUNNERS, module
        named = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
        assert "allow_pickle" not in named, module
        assert "shell" not in named, module


def test_modules_are_named_by_users_and_by_mlx_lm_only():
    importing = {
        module
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
    }
    assert importing == {"daemon.serve", "mlx_backend.tiny_models"}


def test_no_middleware_that_hides_a_disconnect_is_used():
    for module, tree in MODULES.items():
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert "BaseHTTPMiddleware" not in named, module
        assert not any("starlette.middleware.base" in name for name in imports(tree)), module


def test_the_daemon_imports_no_array_library():
    assert of_package(importers(ARRAY_LIBRARIES), "daemon") == set()


def test_only_models_imports_the_backends_implementation_and_only_inside_functions():
    implementation = {
        module
        for module in MODULES
        if module.startswith("mlx_backend.") and module.split(".")[1] not in FREE_OF_MLX
    }
    assert implementation
    assert of_package(importers(implementation), "daemon") == {"daemon.models"}
    body = MODULES["daemon.models"].body
    at_the_top = [node for node in body if isinstance(node, ast.ImportFrom)]
    for node in at_the_top:
        assert not is_within(str(node.module), implementation), ast.unparse(node)


@pytest.mark.parametrize("name", sorted(FREE_OF_MLX))
def test_what_crosses_to_the_daemon_is_free_of_mlx(name):
    module = f"mlx_backend.{name}"
    assert not any(is_within(imported, ARRAY_LIBRARIES) for imported in imports(MODULES[module]))


def test_settings_stop_at_serve():
    assert importers({"daemon.settings"}) <= {
        "daemon.cli.asking",
        "daemon.cli.commands",
        "daemon.cli.configuration",
        "daemon.cli.doctor",
        "daemon.cli.flags",
        "daemon.cli.models",
        "daemon.cli.this_mac",
        "daemon.cli.work",
        "daemon.serve",
        "daemon.views.configuration",
    }


WALL_CLOCKS = {"time.time", "datetime.now", "datetime.today", "datetime.utcnow"}
DATES = {
    "daemon.api.admin",  # when a run began, as a date
    "daemon.api.door",  # when an answer was made, as a date
    "daemon.cli.asking",  # how long ago a request came, for a person
    "daemon.cli.menubar",  # what day it is, for what was reused today
    "daemon.disk_cache.folder",  # when a file was used, as its folder has it
    "daemon.disk_cache.offline",  # how long ago that was, for a person
    "daemon.disk_tier",  # the same, where a daemon is asked
    "daemon.deliveries",  # when a request came, as a date
    "daemon.starts",  # when a start was refused, as a date
    "mlx_backend.clock",  # the day that a chat template sees
    "mlx_backend.prompts",
}
"""Who may look at the wall clock, which jumps when a machine wakes up or is set: for dates only."""


def wall_clocks(tree: ast.AST) -> Iterator[str]:
    """Every mention of a clock that may jump, as it would be called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in WALL_CLOCKS:
            yield f"{ast.unparse(node)}()"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from ("time()" for alias in node.names if alias.name == "time")


def test_no_timer_goes_by_the_wall_clock():
    clocks = {module: set(wall_clocks(tree)) for module, tree in MODULES.items()}
    users = {module for module, found in clocks.items() if found}
    assert users <= DATES, "intervals are measured with time.monotonic"
    for module in users:
        for node in ast.walk(MODULES[module]):
            if isinstance(node, ast.BinOp):
                sides = {ast.unparse(node.left), ast.unparse(node.right)}
                assert not sides & clocks[module], f"{module} reckons with {ast.unparse(node)}"


def test_every_module_says_what_it_is_for_and_stays_small():
    for path in SOURCES:
        module = name_of(path)
        assert ast.get_docstring(MODULES[module]), f"{module} has no docstring"
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= MAX_MODULE_LINES, f"{module} has {lines} lines"
