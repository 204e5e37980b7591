import os
from pathlib import Path

import pytest

from kudurru.adapters import cpus


def group(folder: Path, text: str | None, path: str = "/a/b") -> tuple[Path, Path]:
    """Files as the kernel shows them to a process in a control group."""
    own = folder / "cgroup"
    own.write_text(f"1:name=systemd:/x\n0::{path}\n")
    place = folder / "groups" / path.lstrip("/")
    place.mkdir(parents=True)
    if text is not None:
        (place / "cpu.max").write_text(text)
    return own, folder / "groups"


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 1.5),
        ("max 100000\n", None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_a_quota_of_the_control_group_counts(
    tmp_path: Path, text: str | None, quota: float | None
) -> None:
    assert cpus._quota(*group(tmp_path, text)) == quota


def test_a_group_at_the_root_and_a_system_without_any(tmp_path: Path) -> None:
    assert cpus._quota(*group(tmp_path, "100000 100000", "/")) == 1
    assert cpus._quota(tmp_path / "none", tmp_path) is None


def test_there_are_as_many_as_the_affinity_mask_allows_or_fewer() -> None:
    assert 1 <= cpus.usable_cpus() <= len(os.sched_getaffinity(0))
