"""What is timed, how, and the tables: every figure beside its floor and its peers of the same run.

Knows the sampler, the engine and a loaded model; prints nothing and reads no file but an older run's. The model's
own `generate` is the only piece of transformers that it meets. `suite.run_suite` is the way in.
"""
