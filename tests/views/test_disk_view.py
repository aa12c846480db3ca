"""What a person reads of what is kept on disk."""

from dataclasses import replace

import pytest

from daemon.disk_status import DiskCheck, DiskContents, DiskModelStatus, DiskStatus, StageStatus
from daemon.status import ModelStatus
from daemon.views.disk import check_words, disk_view
from daemon.views.status import status_view
from daemon.views.why import why_view
from tests.views.examples import MODEL, WIDTHS, joined, request, shown, status

GB = 10**9
DISK = DiskStatus(
    folder="/Users/me/Library/Caches/mlxd/read",
    is_on=True,
    bytes=12 * GB,
    max_bytes=40 * GB,
    files=5_120,
    usable_bytes=9 * GB,
    unusable_bytes=3 * GB,
    free_bytes=100 * GB,
    floor_bytes=20 * GB,
    written_today_bytes=2 * GB,
    write_bytes_per_day=50 * GB,
)
IDENTITY = "0123456789abcdef" * 4
QWEN = DiskModelStatus(
    IDENTITY, "Qwen3-8B-4bit", 5_000, 9 * GB, 4_990, 10, 61_234, is_usable=True, idle_seconds=90.0
)
UNKNOWN = DiskModelStatus("fedcba98" * 8, "", 120, 3 * GB, idle_seconds=400_000.0)


def test_status_tells_what_is_on_disk_beside_each_limit() -> None:
    text = shown(status_view(status(disk=DISK)), 120)
    assert "disk" in text
    assert "12.0 GB of 40.0 GB (30%) in 5,120 files" in text
    assert "3.0 GB of models not loaded yet" in text
    assert "100 GB free, and 20.0 GB stay so" in text
    assert "2.0 GB written today of 50.0 GB at most" in text
    full = shown(status_view(status(disk=replace(DISK, free_bytes=19 * GB))), 120)
    assert "19.0 GB free: nothing is written below 20.0 GB" in " ".join(full.split())
    for silent in ("on their way", "made room", "left out", "warning  ", "from there"):
        assert silent not in text.split("disk", 1)[1]


def test_what_is_on_its_way_what_went_and_what_came_back_are_told_where_there_is_any() -> None:
    busy = replace(
        DISK,
        pending_bytes=120_000_000,
        evicted_files=7,
        skipped_writes=3,
        hits=2,
        restored_tokens=22_000,
        restored_bytes=3 * GB,
        read_bytes_per_second=2.5e9,
    )
    said = joined(status_view(status(disk=busy)))
    assert "120MBontheirway,7filesmaderoom,3filesleftoutforalimit" in said
    assert "2requestsgot22,000tokensfromthere,3.0GBat2.5GB/s" in said


def test_failures_are_warnings_with_the_last_one_in_words() -> None:
    bad = replace(DISK, failed_writes=1, bad_files=2, last_failure="no space left")
    said = joined(status_view(status(disk=bad)))
    words = "1 write to the disk failed, 2 files on disk could not be used and went"
    assert "".join(f"{words}; last: no space left".split()) in said


def test_without_a_disk_it_is_said_what_that_means() -> None:
    assert "gone when the daemon ends" in " ".join(shown(status_view(status())).split())
    broken = DiskStatus(last_failure="the folder is another account's")
    said = " ".join(shown(status_view(status(disk=broken))).split())
    assert "nothing is kept there: the folder is another account's" in said


def test_until_the_folder_was_looked_through_no_numbers_are_made_up() -> None:
    text = shown(status_view(status(disk=replace(DISK, is_scanning=True, files=0))))
    assert "being looked through" in text
    assert "0 files" not in text
    some = " ".join(shown(status_view(status(disk=replace(DISK, is_scanning=True)))).split())
    assert "in 5,120 files, 3.0 GB of models not loaded yet, still being looked through" in some


@pytest.mark.parametrize("width", WIDTHS)
def test_each_model_is_listed_and_of_one_that_was_not_loaded_only_what_is_known(width) -> None:
    view = disk_view(DiskContents(DISK, (QWEN, UNKNOWN)))
    text = shown(view, width)
    assert "/Users/me/Library/Caches/mlxd/read" in text
    assert " 9.0 GB   5,000   4,990          10    61,234    1m" in text
    assert " 3.0 GB     120       -           -         -    4d" in text
    assert "Qwen3-8B-4bit(0123456789ab)" in joined(view, width)
    assert "fedcba98fedc" in text
    assert "fedcba98fedcb" not in text


def test_a_folder_without_a_daemon_is_nobodys_now() -> None:
    alone = DiskStatus(folder="/c/read", bytes=3 * GB, files=120)
    counted = replace(UNKNOWN, blocks=118, checkpoints=2)
    text = shown(disk_view(DiskContents(alone, (counted,))))
    assert " 3.0 GB     120     118           2         -    4d" in text
    assert "3.0 GB in 120 files, that no daemon uses now" in text
    assert "Nothing is kept on disk." in shown(disk_view(DiskContents(DiskStatus())))


def test_a_name_on_disk_cannot_write_to_the_terminal() -> None:
    strange = replace(UNKNOWN, identity="\x1b[2J", name="[red]x[/]")
    text = shown(disk_view(DiskContents(DISK, (strange,))))
    assert "\x1b" not in text
    assert "[red]x[/]" in text
    assert "\x1b" not in check_words(DiskCheck(1, 1, ("\x1b[2J",)))


def test_a_check_says_how_much_was_read_and_what_was_wrong_with_which() -> None:
    sound = DiskCheck(5_120, 12 * GB, (), 6.0)
    assert check_words(sound).startswith("Sound: every file is")
    assert "(5,120 files, 12.0 GB in 6.0 s)" in check_words(sound)
    bad = check_words(replace(sound, bad=("a/b: its checksum is wrong", "a/c: cut short")))
    assert bad.startswith("Not sound: 2 files of 5,120 files")
    assert bad.splitlines()[1:] == ["  a/b: its checksum is wrong", "  a/c: cut short"]


STAGES = [
    (34.0, (("saved", 60.0, 26.0), ("unloaded", 1_800.0, 1_766.0)),
     "for 34.0 s, on disk in 26.0 s, unloaded in 29m 26s"),
    (100.0, (("saved", 60.0, 0.0), ("unloaded", None, None)),
     "for 1m 40s, on disk, never unloaded"),
    (100.0, (("saved", 60.0, None), ("unloaded", 1_800.0, 1_700.0)),
     "for 1m 40s, not all on disk, unloaded in 28m 20s"),
    (1_900.0, (("saved", 60.0, 0.0), ("unloaded", 1_800.0, 0.0)),
     "for 31m 40s, on disk, unloaded"),
]  # fmt: skip


@pytest.mark.parametrize(("idle", "stages", "words"), STAGES)
def test_status_tells_which_stage_of_idleness_a_model_is_in_and_when_the_next_comes(
    idle: float, stages: tuple[tuple[str, float | None, float | None], ...], words: str
) -> None:
    told = tuple(StageStatus(*stage) for stage in stages)
    model = replace(MODEL, idle_seconds=idle, stages=told)
    assert f"idle {words}" in " ".join(shown(status_view(status(model=model))).split())
    other = replace(model, key="other", name="other")
    text = " ".join(shown(status_view(status(models=(MODEL, other)))).split())
    assert f"idle {words}" in text


def test_a_model_that_is_loading_has_no_stages_to_tell() -> None:
    text = shown(status_view(status(model=ModelStatus("loading"))))
    assert "idle" not in text.split("requests")[0]


def test_why_tells_how_much_of_what_was_reused_came_from_disk() -> None:
    said = " ".join(shown(why_view(request(from_disk=10_000), 0.0)).split())
    assert "11,000 reused (91%), 10,000 of them from disk, 1,034 read." in said
    assert "disk" not in shown(why_view(request(), 0.0))
