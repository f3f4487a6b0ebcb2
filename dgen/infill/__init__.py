"""Texts with gaps, filled with both sides in view: templates, drafts, and the search for lengths and fillings.

`template` and `draft` know text alone, `pieces` a tokenizer, `window` token ids; `search` runs requests on a Generator.
Nothing is printed.
"""
