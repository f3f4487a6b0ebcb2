"""Files of prompts: numbered lines in, one record a line out, resumable at any time.

Knows input lines, OpenAI's batch envelope, the output file and what is left to do; asks a Generator for the
answers. Imports no torch, prints nothing and knows no Typer.
"""
