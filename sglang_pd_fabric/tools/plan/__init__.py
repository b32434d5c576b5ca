"""`sglang-pd-fabric plan`: how many servers of which kind a workload needs, from arithmetic and simulation.

Pure computation, no SGLang and no GPU. ``model`` reads a HF config, ``hardware`` holds data sheets and
measured NICs, ``costs`` times a forward pass, ``transfer`` a layer's pages, ``fleet`` puts them into closed
forms for any number of servers, ``simulate`` runs the same servers event by event, ``published`` compares all
of it with published figures and ``fit`` finds the few constants that it rests on.
"""
