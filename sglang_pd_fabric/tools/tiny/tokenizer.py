"""A tokenizer with one token per byte: token id and byte value are the same number.

Any text can be encoded, a prompt's length in tokens is its length in bytes, and nothing has to be fetched.
"""

from __future__ import annotations

from pathlib import Path

from sglang_pd_fabric.tools.tiny.config import CONTEXT_LENGTH, END_TOKEN

END, TURN_START, TURN_END = "<|end|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{TURN_START}{{{{ message['role'] }}}}\n{{{{ message['content'] }}}}{TURN_END}\n"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{TURN_START}assistant\n{{% endif %}}"
)


def _printable_bytes() -> list[str]:
    """Map each byte to the character that stands for it in byte-level BPE vocabularies (GPT-2's table)."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(256, 512))
    return [chr(byte if byte in plain else next(stand_ins)) for byte in range(256)]


def save_tokenizer(directory: Path) -> None:
    """Write the tokenizer and its chat template in the form that ``AutoTokenizer`` loads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: byte for byte, character in enumerate(_printable_bytes())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, TURN_START, TURN_END])
    if tokenizer.token_to_id(END) != END_TOKEN:
        raise AssertionError(f"the end token has id {tokenizer.token_to_id(END)}, not {END_TOKEN}")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
