"""`kudurru diff -f` shows what `apply` would do, and nothing else."""

from pathlib import Path

from tests.blackbox.program import command, records, write_json, zone


def test_a_diff_is_empty_where_apply_changes_nothing(tmp_path: Path) -> None:
    data = ("--data", tmp_path / "data")
    www = records("www", "home.arpa", ("www.home.arpa", "A", "192.0.2.1"))
    www["metadata"]["annotations"] = {"kudurru.io/comment": "the web", "kudurru.io/enabled": "true"}
    file = write_json(tmp_path / "a.json", zone("home.arpa"), www)
    assert command("apply", "-f", file, *data).code == 0
    # What people annotated stays, and what kubectl adds is not taken.
    www["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    write_json(file, zone("home.arpa"), www)
    shown = command("diff", "-f", file, *data)
    assert (shown.code, shown.out) == (0, "")
    assert command("apply", "-f", file, *data).out.count("unchanged") == 2
    www["metadata"]["annotations"] = {"kudurru.io/comment": "gone"}
    write_json(file, zone("home.arpa"), www)
    shown = command("diff", "-f", file, *data)
    assert (shown.code, shown.out.count("kudurru.io/comment")) == (1, 2)
