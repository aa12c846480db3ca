"""A secret out of the account's keychain, by macOS' own `security`.

The tool's exit code is the last byte of the keychain's error: 44 no such item, 36 nobody may be
asked (the keychain is locked, and this is no session at the screen), 51 and 128 refused by the
keychain or by the person. Nothing that the tool says is shown: its output is the secret.
"""

from __future__ import annotations

from launchd.errors import ServiceError
from launchd.tools import NOT_FOUND, Run

SECURITY = "/usr/bin/security"

OK, LOCKED, NO_ITEM = 0, 36, 44
REFUSED = frozenset({51, 128})


def password(service: str, run: Run) -> str:
    """The password of the generic item named `service`. Raises ServiceError."""
    done = run((SECURITY, "find-generic-password", "-s", service, "-w"))
    if done.returncode == OK:
        return done.stdout.removesuffix("\n")
    raise ServiceError(_words(service, done.returncode))


def _words(service: str, code: int) -> str:
    if code == NO_ITEM:
        how = f"security add-generic-password -s {service} -a mlxd -w"
        return f"The keychain has no item {service}; `{how}` asks for one and keeps it."
    if code == LOCKED:
        return f"The keychain is locked, so its item {service} cannot be read."
    if code in REFUSED:
        return f"The keychain refused to give its item {service}."
    if code == NOT_FOUND:
        return "There is no keychain here: only macOS has one. Keep the key in a file."
    return f"The keychain's item {service} cannot be read: `security` ended with {code}."
