"""A disk that fills up while a list is updated: the old list stays, and DNS is answered."""

from pathlib import Path

import pytest

from kudurru.entrypoints.rpc import RemoteService, connect
from kudurru.entrypoints.service import ChangeRequest
from tests.blackbox.program import serving, wait_until
from tests.objects import manifest
from tests.simulation.test_bad_disks import fill
from tests.simulation.volumes import memory_volume

BLOCKED = ["0.0.0.0"]

pytestmark = pytest.mark.slow


def errors(service: RemoteService) -> list[str]:
    return [source.error for row in service.lists() for source in row.sources]


def test_on_a_full_disk_the_list_of_before_stays_and_with_space_the_new_one_comes(
    tmp_path: Path,
    short_path: Path,
) -> None:
    origin = tmp_path / "list.txt"
    origin.write_text("old.example\n")
    lists = manifest(
        "BlockList", "disk", {"sources": [{"url": f"file:{origin}"}]}, namespace="default"
    )
    policy = manifest("Policy", "all", {"blockListRefs": ["disk"]}, namespace="default")
    with (
        memory_volume(short_path, "8m") as volume,
        serving(volume.path / "d", prefix=volume.prefix) as server,
    ):
        service = connect(volume.view / "d" / "kudurru.sock")
        assert service is not None
        with service:
            service.change(ChangeRequest(apply=[lists, policy]))
            wait_until(lambda: server.texts("old.example") == BLOCKED)
            origin.write_text("new.example\n" * 100_000)
            fill(volume.view / "ballast")
            service.refresh_lists([])
            wait_until(lambda: any("disk refuses" in error for error in errors(service)))
            assert server.texts("old.example") == BLOCKED
            assert server.texts("new.example") != BLOCKED
            (volume.view / "ballast").unlink()
            service.refresh_lists([])
            wait_until(lambda: server.texts("new.example") == BLOCKED)
            assert errors(service) == [""]
