"""Lists of names to deny or allow, as people subscribe to them.

How a name finds its rule, from the outside in:

* `matcher.Matcher.lookup(name)` gives every rule that covers a name, of all lists at once: a tuple
  of `Hit`, empty for most names. It costs the same for one list and for fifty.
* `verdicts.verdicts(hits, lists, qtype, asker)` says what those lists make of it, class by class:
  `important_allow`, `important_deny`, `allow`, `deny`, each a `Verdict` or None. Between the first
  two and the last two a policy's own rules stand. It is called once per policy, with the keys of
  the lists that the policy names.
* `Matcher.place(hit)` leads from a rule back to its source, line number and text, for `explain`.

A list is known by the `Key` of its BlockList object. `memory.MemoryMatcher` keeps rules in a
dictionary (inline sources, tests); `table.Table` reads them from a file that is mapped (everything
that was fetched); `matcher.Union` asks several, each list in any of them.

`parser.Parser` turns lines of every format into `rules.Rule`s.
"""
