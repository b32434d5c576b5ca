"""The tests are one package, so that the folder ``sglang`` cannot stand in for the real SGLang."""
