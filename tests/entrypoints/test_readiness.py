"""Whether queries should be sent here."""

from kudurru.entrypoints.readiness import Readiness


def test_what_is_synced_is_ready_until_something_stands_against_it() -> None:
    obstacles: list[str] = []
    readiness = Readiness()
    readiness.add_obstacles(lambda: obstacles)
    assert readiness.why_not() == ["NotSynced: the log is being replayed"]
    readiness.synced.set()
    assert readiness.why_not() == []
    obstacles.append("StorageBroken: what is recorded is not known")
    assert readiness.why_not() == obstacles
    assert not readiness.is_lameduck


def test_lameduck_is_asked_for_and_taken_back_and_a_stop_is_not() -> None:
    told: list[bool] = []
    readiness = Readiness(lambda: told.append(readiness.is_lameduck))
    readiness.synced.set()
    readiness.ask_lameduck(True)
    assert readiness.why_not() == [
        "Lameduck: somebody asked for it; `kudurru lameduck --cancel` ends it"
    ]
    readiness.ask_lameduck(False)
    assert readiness.why_not() == []
    readiness.stop()
    readiness.ask_lameduck(False)
    assert readiness.is_lameduck
    assert readiness.why_not() == ["Lameduck: the server is stopping"]
    assert told == [True, False, True, True]


def test_warnings_are_of_everybody_who_has_some() -> None:
    readiness = Readiness()
    readiness.add_warnings(lambda: ["one"])
    readiness.add_warnings(lambda: ["another"])
    assert readiness.warnings() == ["one", "another"]
