"""Find out what this host can enforce by attacking it: live escapes, and one breach of each limit.

Start at `doctor.py`. `escapes.py` tries to leave the sandbox, `limit_breaches.py` exceeds each limit on purpose.
"""
