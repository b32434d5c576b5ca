"""Who writes which bytes to whom, and how many units that is: pure functions over two layout records.

A *pair* is a prefill rank and a decode rank. Everything here follows from their two records, the number of
the room and a salt, so that both sides compute the same without a message.

One rule for all caches
-----------------------
A cache is a number of KV heads over all ranks and the slice of them that a rank holds (``heads``). MLA is the
case of one head: its latent is replicated on every rank. Ranks that hold the same slice are *replicas*.

1. **Pairs** (``pairing.sources``): decode rank d of D meets the prefill ranks ``[d*P/D, (d+1)*P/D)`` of P, at
   least one. One of P and D divides the other. Only the attention TP group counts: with DP attention, on
   either side, P and D are the sizes of one group, and SGLang chooses the group of a request.
2. **Writers** (``pairing.duty``): among the prefill ranks that a decode rank meets, replicas elect one for
   each room, by a uniform draw (``draw``). So MLA to fewer ranks is one writer drawn for each transfer, MLA
   to as many ranks is the twin, MLA to more ranks is one source for each decode rank with all sources at
   work, and GQA with fewer heads than ranks has one writer for each head.
3. **Bytes** (``copies``): the heads that both hold, of the layers that both hold.
4. **Pipeline stages**: each prefill stage writes the layers that it has. The stage that ends the model also
   writes the draft's layers and the metadata row. Decode has one stage, or as many as prefill with the same
   layers; then stages meet their twins, and each twin writes the row.
5. **Units** (``units``): each copied piece counts one, so the number follows from rows, pages and duty.

How it refines SGLang
---------------------
``CommonKVManager._resolve_rank_mapping`` (sglang/srt/disaggregation/common/conn.py) decides which ranks
open connections; ``pairing.sources`` is the same function, and tests/sglang/test_pairing.py holds the two
together. A prefill rank waits for ``required_dst_info_num`` pulls, which is ``pairing.pulls_per_writer``.
SGLang calls all but the first MLA source *dummies*; we let the draw decide which one is not. A rank that is
met but elected for nothing takes the pull, sends zero units and concludes, since SGLang's ranks agree on a
status by the minimum. SGLang expects ``required_prefill_response_num`` answers; we expect units, from
whoever sends them. Stock SGLang lets every real rank write the metadata row; here exactly one does, since
its units are counted.
"""

from sglang_pd_fabric.messenger.sharding.copies import PairTables, pair_tables, split_heads_notice
from sglang_pd_fabric.messenger.sharding.draw import Draw
from sglang_pd_fabric.messenger.sharding.pairing import Duty, duty, meets, pulls_per_writer, sources
from sglang_pd_fabric.messenger.sharding.units import expected_units, writer_units

__all__ = [
    "Draw",
    "Duty",
    "PairTables",
    "duty",
    "expected_units",
    "meets",
    "pair_tables",
    "pulls_per_writer",
    "sources",
    "split_heads_notice",
    "writer_units",
]
