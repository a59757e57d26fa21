"""The dashboard: a local web page that shows runs and agents as they work, and acts on them.

Start at `app.py`, the routes. `access.py` decides who may ask, `feed.py` follows the ledgers, `documents.py` describes
runs for the page, and `actions.py` turns a click into the command that you would type. `page/` is what the browser
loads: no build step, and nothing from another machine.
"""
