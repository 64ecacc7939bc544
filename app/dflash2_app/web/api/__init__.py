"""What requests of the OpenAI and Anthropic interfaces say, and what their replies look like."""
