"""Traffic against real servers that are killed, frozen and restarted meanwhile; every answer is checked.

``questions`` knows what is asked and what is right, ``plan`` draws from one seed who asks what and what
happens to whom, ``traffic`` asks, ``injector`` kills and freezes, ``judge`` says what was wrong (it starts
nothing and has tests of its own), ``resources`` counts what servers hold, ``logs`` reads what they wrote,
``report`` and ``draw`` tell, and ``run`` ties them together.
"""
