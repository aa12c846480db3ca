"""`--prefix-checkpoint-policy`: a function of the user's by its dotted name."""

from pathlib import Path

import pytest

from daemon.errors import ConfigurationError
from daemon.serve import named_policy, serve
from daemon.settings import Settings

MODULE = """
class Ends:
    @staticmethod
    def last(start, prompt, opening, marks):
        return [len(prompt) - 1]

def ends(start, prompt, opening, marks):
    return [marks.head_end, len(prompt) - 1]

def too_few(start, prompt):
    return []

number = 7
"""


@pytest.fixture(autouse=True)
def policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policies_of_mine.py").write_text(MODULE)
    (tmp_path / "broken_policies.py").write_text("raise RuntimeError('not today')")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_policy_is_found_by_its_name():
    assert named_policy(None) is None
    found = named_policy("policies_of_mine:ends")
    assert found is not None
    assert found.__name__ == "ends"
    nested = named_policy("policies_of_mine:Ends.last")
    assert nested is not None
    assert nested.__name__ == "last"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("no_such_package.module:ends", "no_such_package"),
        ("policies_of_mine:missing", "missing"),
        ("policies_of_mine:number", "not a callable"),
        ("policies_of_mine:too_few", "too many positional"),
        ("broken_policies:ends", "not today"),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused_by_its_name(name, fault):
    with pytest.raises(ConfigurationError) as refusal:
        named_policy(name)
    assert f"--prefix-checkpoint-policy {name} " in str(refusal.value)
    assert fault in str(refusal.value)
    assert "(start, prompt, opening, marks)" in str(refusal.value)


def test_a_daemon_with_a_policy_that_cannot_be_used_does_not_start():
    with pytest.raises(ConfigurationError, match="no_such_package"):
        serve(Settings(prefix_checkpoint_policy="no_such_package:ends"))
