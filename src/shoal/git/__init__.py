"""The only git: the hardened invocation, repositories, private gitdirs, checkouts, imports and the lock."""
