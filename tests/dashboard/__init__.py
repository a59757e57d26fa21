"""Tests of the dashboard: `shoal serve` as a process, and a real browser in front of it."""
