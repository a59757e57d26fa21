"""Everything between an agent without a network and the outside: model calls, allowed hosts, rate limits, budgets."""
