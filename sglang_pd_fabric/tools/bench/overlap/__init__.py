"""`sglang-pd-fabric bench overlap`: what of a transfer hides behind the forward pass that fills its pages.

``pair`` moves pages between two processes, ``delay`` looks at the way from the progress word to the first
post, ``figures`` works out what both say, ``chart`` draws it, ``main`` is the command.
"""
