"""Tests of the package `patterns`."""
