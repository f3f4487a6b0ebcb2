"""The recipe of the built-in demo checkpoint: corpus, tokenizer, model, training and its quality table.

Everything here is made from nothing but these files and a seed. The recipe knows transformers and torch; it
knows nothing of dgen's engine, except through the backend function that `measure` is given.
"""
