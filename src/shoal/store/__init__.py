"""The only state on disk: the ledger of events, each session's own log, what they add up to, and locks."""
