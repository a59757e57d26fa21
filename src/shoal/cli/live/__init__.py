"""The live terminal: `frame.py` makes lines of what is known, `terminal.py` draws them, `view.py` is the loop between.

Another face of a run, such as `shoal attach`, makes a `LiveView` and gives it the events.
"""
