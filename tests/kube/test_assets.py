"""The server of these tests is built once for each source that it is built from."""

from pathlib import Path

import pytest

from tests.kube import assets


def test_what_is_there_is_not_built_again_and_another_source_has_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "main.go").write_text("package main")
    monkeypatch.setattr(assets, "SOURCE", source)
    monkeypatch.setenv("KUDURRU_KUBE_ASSETS", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")  # nothing can be built
    with pytest.raises(assets.NoAssets, match="need Go"):
        assets.build()
    place = assets.place()
    place.parent.mkdir(parents=True)
    place.touch()
    assert assets.build() == place
    (source / "main.go").write_text("package main // changed")
    assert assets.place() != place
