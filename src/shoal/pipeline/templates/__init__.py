"""Templates such as `{{ steps.plan.output }}`: parsed by Jinja, evaluated here over plain data.

Start with `template.py`. `syntax.py` refuses what is not part of our templates, `evaluation.py` renders within bounds,
and `names.py` finds unknown names before a run. To add a filter, add a function and its line in `filters.FILTERS`.
"""
