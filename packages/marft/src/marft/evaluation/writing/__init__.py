"""How agents write, whatever it earns: repetition, scripts, kinds of characters, who writes most. No model is asked."""
