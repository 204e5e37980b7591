"""From question to answer: the stages a query passes through."""
