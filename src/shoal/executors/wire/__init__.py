"""The node protocol: frames, messages, and the link that both sides speak over.

Start at `link.py`; `messages.py` lists what is said, and `frames.py` how it is cut into frames.
"""
