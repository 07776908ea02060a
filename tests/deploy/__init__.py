"""What operators are given: the compose file, dashboards, packages, the demo's data, the docs'
commands.
"""
