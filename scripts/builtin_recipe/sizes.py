"""The sizes that corpus rows, model and training agree on."""

CANVAS = 64
WINDOW = 64
VOCABULARY = 2048
LAYERS = ("sliding_attention", "sliding_attention", "full_attention") * 2
SHORT, LONG = 64, 192  # the two prefix lengths that steps are captured for
