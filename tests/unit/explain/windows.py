"""Synthetic windows: a healthy deployment, and what makes each phase slow, by one change."""

from dataclasses import replace

from sglang_pd_fabric.tools.explain.figures import (
    Answers,
    Figures,
    Gaps,
    Moved,
    Prefill,
    Stages,
    Timing,
    Waiting,
)

REQUESTS = 100.0


def timing(milliseconds: float) -> Timing:
    return Timing(milliseconds / 1e3, REQUESTS)


# 100 requests of 2,000 tokens in 10 s; 300 ms to the first token, of which 240 ms are computing.
HEALTHY = Figures(
    10.0,
    answers=Answers(
        requests=REQUESTS,
        ttft=timing(300),
        gaps=Gaps(20_000, 0.020, 0.020, 0.030, 0.0),
        busy=0.7,
        tokens=20_000,
        running=20,
        history=44_000,
        memory_used=0.4,
        retracted=0.0,
    ),
    prefill=Prefill(timing(5), timing(240), timing(8), 0.6, 2_000 * REQUESTS, 0.0),
    stages=Stages(timing(1), timing(2), timing(3), timing(265), timing(2), timing(5)),
    waiting=Waiting(0, 1, 0, 0, 2, 0),
    moved=Moved(REQUESTS, 20e9, 19e9, 4e6, 1e6, 4.0),
)


def with_prefill(**changes: object) -> Figures:
    """Prefill differs, and decode has waited for it as much longer."""
    prefill = replace(HEALTHY.prefill, **changes)  # type: ignore[arg-type]
    stages = (prefill.queue, prefill.forward, prefill.exposed)
    longer = sum(stage.mean for stage in stages if stage) - 0.253
    return replace(
        HEALTHY,
        prefill=prefill,
        stages=replace(HEALTHY.stages, arrival=Timing(0.265 + longer, REQUESTS)),
        answers=replace(HEALTHY.answers, ttft=Timing(0.3 + longer, REQUESTS)),
    )


def with_stages(more: float, **changes: Timing | None) -> Figures:
    """Decode's stages differ, and the first token comes so many milliseconds later."""
    return replace(
        HEALTHY,
        stages=replace(HEALTHY.stages, **changes),
        answers=replace(HEALTHY.answers, ttft=timing(300 + more)),
    )


def with_answers(figures: Figures = HEALTHY, **changes: object) -> Figures:
    return replace(figures, answers=replace(figures.answers, **changes))  # type: ignore[arg-type]


INTERRUPTED = Gaps(20_000, 0.040, 0.020, 0.400, 0.5)
