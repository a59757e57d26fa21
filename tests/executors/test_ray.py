"""The carrier `ray`, on clusters of Ray in a network of their own."""

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import git
from tests.executors.clusters import open_cluster

pytestmark = pytest.mark.deep

SHOAL = Path(sys.executable).with_name("shoal")
FILE = """\
runtime: {max_concurrent_workers: 6}
agents: {e: {adapter: command, command: ["sh", "-c", "sleep 1; echo $SHOAL_WORKER_INDEX > n-$SHOAL_WORKER_INDEX.txt"]}}
steps: [{name: s, agent: e, prompt: x, concurrency: 6}]
"""
