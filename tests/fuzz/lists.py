"""Fuzz targets of lists: no octets break the parser, and both ways to read a text agree."""

from collections.abc import Callable
from contextlib import suppress

from kudurru.domain.dns import names
from kudurru.domain.lists.body import NoList, inspect
from kudurru.domain.lists.memory import MemoryMatcher
from kudurru.domain.lists.parser import Parser
from kudurru.domain.lists.rules import Context, Format, Reason
from kudurru.domain.lists.scan import rules_of, scan, text_of
from kudurru.domain.lists.verdicts import verdicts
from kudurru.domain.objects import Key

FORMATS: tuple[Format, ...] = ("auto", "hosts", "domains", "adblock", "dnsmasq", "rpz", "regex")
LIST = Key("BlockList/default/fuzz")


def lists() -> Callable[[bytes], None]:
    def one(octets: bytes) -> None:
        if not octets:
            return
        context = Context(format=FORMATS[octets[0] % 7], covers=1 + 2 * (octets[0] >> 7))
        text = octets[1:]
        rules = [
            rule
            for _, found, more in scan(text, 0, len(text), context)
            for rule in rules_of(found, more, context)
        ]
        parser = Parser(context)
        lines = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        assert rules == [rule for line in lines for rule in parser.feed(text_of(line)).rules]
        with suppress(NoList):
            facts = inspect(text, context, had_entries=False)
            assert facts.entries + facts.refused.get(Reason.REGEX_MAX, 0) == len(rules)
        matcher = MemoryMatcher()
        matcher.put(LIST, [("fuzz", [text_of(line) for line in lines])], context)
        for rule in rules[:8]:
            name = names.Name(b"\x01x" + rule.name) if len(rule.name) < 250 else rule.name
            verdicts(name, matcher.lookup(name), [LIST], 1)

    return one
