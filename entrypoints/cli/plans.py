"""How plans of restore and undo are shown."""

from typing import Any

from kudurru.entrypoints.cli.history import print_change
from kudurru.entrypoints.cli.output import Output, counted, echo, escape, note, print_documents
from kudurru.entrypoints.restoring import Carried


def print_plan(plan: dict[str, Any], output: Output) -> None:
    if print_documents(output, [plan], single=True):
        return
    if plan["verb"] == "restore":
        echo(escape(f"restore {plan['scope']} to position {plan['target']}"))
    else:
        echo(escape(f"undo {plan['target']}"))
    for step in plan["steps"]:
        echo(escape(f"{step['action']} {step['object']}{_owner(step)}"))
        for change in step["changes"]:
            print_change(change, "  ")
    for skipped in plan["skipped"]:
        echo(escape(f"skip {skipped['object']}: {skipped['reason']}"))
    for zone in plan["zones"]:
        echo(escape(_zone(zone)))
    if not plan["steps"]:
        echo("nothing to do")
    else:
        echo(f"plan {plan['digest']}")


def print_carried(carried: Carried, output: Output) -> None:
    """What was done."""
    document = {"id": carried.id, "position": carried.seq, "plan": carried.plan}
    if print_documents(output, [document], single=True):
        return
    print_plan(carried.plan, Output.table)
    if carried.seq:
        undo = f"; `kudurru undo {carried.id or carried.seq}` takes it back"
        note(f"recorded at position {carried.seq}{undo}")


def _owner(step: dict[str, Any]) -> str:
    if "ownerNow" in step:
        return f", back to {step['owner']!r} from {step['ownerNow']!r}"
    if "ownerThen" in step:
        return f", which {step['owner']!r} keeps; {step['ownerThen']!r} had it then"
    return ""


def _zone(zone: dict[str, Any]) -> str:
    last = "none yet" if zone["serial"] is None else zone["serial"]
    goes, comes = counted(zone["recordsChanged"], "record"), counted(zone["recordsAdded"], "record")
    return (
        f"zone {zone['zone']}: changes or removes {goes}, changes or adds {comes}; "
        f"serial {last}, then at least {zone['nextSerial']}"
    )
