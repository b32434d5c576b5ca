"""What a person reads when the planner cannot go on."""


class PlanError(Exception):
    """A flag's value cannot be used. The message names the flag, the value and the fix."""
