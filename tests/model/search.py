"""Visits every state of a model, and asks of each whether the end can still be reached."""

from collections import deque
from typing import NamedTuple

from .protocol import Model, WrongError
from .values import State


class Found(NamedTuple):
    """What a search saw.

    Attributes:
        states: how many there are.
        steps: how many ways lead from one to another.
        wrong: what must not have happened; None: nothing.
        stuck: states from which the end cannot be reached although nobody is frozen.
    """

    states: int
    steps: int
    wrong: str | None
    stuck: int


def search(model: Model) -> Found:
    """Breadth first, so what it finds wrong is found in the fewest steps."""
    start = model.start()
    numbers: dict[State, int] = {start: 0}
    before: list[list[int]] = [[]]
    queue, steps = deque([start]), 0
    while queue:
        state = queue.popleft()
        origin = numbers[state]
        try:
            for following in model.steps(state):
                steps += 1
                number = numbers.get(following)
                if number is None:
                    number = numbers[following] = len(before)
                    before.append([])
                    queue.append(following)
                before[number].append(origin)
        except WrongError as error:
            return Found(len(numbers), steps, str(error), 0)
    reached = bytearray(len(before))
    todo = [number for state, number in numbers.items() if model.over(state)]
    for number in todo:
        reached[number] = 1
    while todo:
        for earlier in before[todo.pop()]:
            if not reached[earlier]:
                reached[earlier] = 1
                todo.append(earlier)
    frozen = (any(writer.frozen for writer in state.writers) for state in numbers)
    stuck = sum(not good and not cold for good, cold in zip(reached, frozen, strict=True))
    return Found(len(numbers), steps, None, stuck)
