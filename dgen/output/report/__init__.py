"""A trace as one HTML file that asks the network for nothing; its page, style and script lie beside this."""
