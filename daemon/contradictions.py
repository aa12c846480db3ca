"""Settings that do not go together: in words that say what to leave out, "" if they do."""

from __future__ import annotations


def in_policies(prompt_end: str | None, interval: int | None, policy: str | None) -> str:
    """Of what decides where prompts are captured; None where nothing was said."""
    has_interval = interval is not None
    if has_interval and prompt_end == "every":
        return (
            "--prefix-checkpoint-interval does not go together with "
            "--prefix-checkpoint-prompt-end every: an interval stands in for the ends of later "
            "prompts, and would keep the same tokens twice; leave one of them out."
        )
    if policy is not None and (has_interval or prompt_end is not None):
        return (
            "--prefix-checkpoint-policy does not go together with --prefix-checkpoint-prompt-end "
            "or --prefix-checkpoint-interval: it alone decides what is captured; leave one out."
        )
    return ""


def at_the_door(
    remote_host: str | None, may_be_remote: bool, key_file: str | None, key_item: str | None
) -> str:
    """Of who may ask; `remote_host` is the address where other machines could."""
    if key_file is not None and key_item is not None:
        return (
            "--api-key-file does not go together with --api-key-keychain: there is one key; "
            "leave one of them out."
        )
    if remote_host is None:
        return ""
    if not may_be_remote:
        return f"--host {remote_host} would let other machines ask: that takes --allow-remote yes."
    if key_file is None and key_item is None:
        return (
            f"--host {remote_host} lets other machines ask: that takes an API key, by "
            "--api-key-file or --api-key-keychain."
        )
    return ""


def on_disk(cache_bytes: int | None, write_bytes_per_day: int | None) -> str:
    """Of what is kept there; None for the default, and for no limit."""
    if write_bytes_per_day == 0 and cache_bytes != 0:
        return (
            "--disk-cache-write-bytes-per-day 0 would let nothing be written: `none` is no limit, "
            "and --disk-cache-bytes 0 keeps nothing on disk."
        )
    return ""
