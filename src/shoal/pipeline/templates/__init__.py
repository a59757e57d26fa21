"""Templates such as `{{ steps.plan.output }}`: parsed by Jinja, evaluated by us over plain data."""
