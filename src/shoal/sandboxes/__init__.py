"""Kinds of sandbox: each turns a command and a policy into a command, and runs nothing.

Start reading in `kind.py`, which says what a sandbox is, then `bubblewrap.py`. `launcher.py` is the program that runs
inside of the kinds without namespaces.

To add a kind, write a module with `CONFINES`, `trials(host)` and `build(host)`, and add its line to `KINDS` in
`registry.py`. The file, the command line and the editor schema then accept its name.
"""
