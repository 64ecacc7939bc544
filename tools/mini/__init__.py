"""How the embedded mini pair is made: a synthetic chat corpus, a tokenizer, a small target, and its drafters."""
